/* Which lines and branches of tasks ran, in all VMs of the process. No Python in here. Any thread. */
#ifndef VMH_COVERAGE_H
#define VMH_COVERAGE_H

#include "profile/functions.h"

enum vmh_covered { VMH_COVERED_LINE, VMH_COVERED_BRANCH, VMH_COVERED_RETURN };
enum { VMH_COVERAGE_POINTS = 1 << 21 };

/* A line, a branch between two instructions, or a return from one. Instructions are byte offsets. */
typedef struct vmh_point {
    int32_t function;
    enum vmh_covered kind;
    int32_t from, to; /* of a line: its number, and 0 */
} vmh_point;

typedef struct vmh_coverage {
    vmh_functions functions;
    vmh_point *points; /* owned */
    int32_t count;
    size_t room;
    vmh_index known;
    bool full; /* incomplete: a bound was reached, or memory ran out */
} vmh_coverage;

/* Adds a point to the coverage of the process. */
void vmh_coverage_add(const char *file, const char *name, int first_line, enum vmh_covered kind, int from, int to);
/* The coverage of the process, locked until vmh_coverage_unlock. */
const vmh_coverage *vmh_coverage_lock(void);
void vmh_coverage_unlock(void);
/* For tests: discards everything. */
void vmh_coverage_clear(void);

#endif
