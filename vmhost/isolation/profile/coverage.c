#include "profile/coverage.h"

#include <pthread.h>
#include <stdlib.h>

#include "lanes/critical.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static vmh_coverage all; /* guarded by lock */

/* Lock held. False: no room. */
static bool add(int32_t function, enum vmh_covered kind, int from, int to)
{
    const uint64_t key[3] = {(uint64_t)function << 2 | kind, (uint64_t)(int64_t)from, (uint64_t)(int64_t)to};
    if (vmh_index_find(&all.known, key) >= 0)
        return true;
    vmh_point *points =
        all.count == VMH_COVERAGE_POINTS ? NULL : vmh_grown(all.points, &all.room, all.count, sizeof *points);
    if (points != NULL)
        all.points = points;
    if (points == NULL || !vmh_index_insert(&all.known, key, all.count))
        return false;
    points[all.count++] = (vmh_point){.function = function, .kind = kind, .from = from, .to = to};
    return true;
}

void vmh_coverage_add(const char *file, const char *name, int first_line, enum vmh_covered kind, int from, int to)
{
    unsigned char *lines = NULL;
    vmh_mutex_lock(&lock);
    int32_t function = vmh_function_of(&all.functions, file, name, first_line, &lines, 0);
    if (function < 0 || !add(function, kind, from, to))
        all.full = true;
    vmh_mutex_unlock(&lock);
}

const vmh_coverage *vmh_coverage_lock(void)
{
    vmh_mutex_lock(&lock);
    return &all;
}

void vmh_coverage_unlock(void) { vmh_mutex_unlock(&lock); }

void vmh_coverage_clear(void)
{
    vmh_mutex_lock(&lock);
    vmh_functions_clear(&all.functions);
    free(all.points);
    free(all.known.slots);
    all = (vmh_coverage){0};
    vmh_mutex_unlock(&lock);
}
