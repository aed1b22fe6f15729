/* Which lines and branches of tasks ran, in all VMs of the process. No Python in here. Any thread. */
#ifndef VMH_COVERAGE_H
#define VMH_COVERAGE_H

#include "profile/functions.h"

enum vmh_covered { VMH_COVERED_LINE, VMH_COVERED_BRANCH, VMH_COVERED_RETURN };
enum { VMH_COVERAGE_POINTS = 1 << 21 };

/* A line; or a branch from one instruction to another; or a return from an instruction. Instructions are byte offsets.
 */
typedef struct vmh_point {
    int32_t function;
    enum vmh_covered kind;
    int32_t from, to; /* a line: its number, and 0 */
} vmh_point;

typedef struct vmh_coverage {
    vmh_functions functions;
    vmh_point *points; /* owned */
    int32_t count;
    size_t room;
    vmh_index known;
    bool full; /* a bound was met, or memory was short */
} vmh_coverage;

/* Adds to what the process knows. */
void vmh_coverage_add(const char *file, const char *name, int first_line, enum vmh_covered kind, int from, int to);
/* The process's, locked until it is let go of. */
const vmh_coverage *vmh_coverage_lock(void);
void vmh_coverage_unlock(void);
/* For tests: forgets all. */
void vmh_coverage_clear(void);

#endif
