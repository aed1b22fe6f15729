/* The result of the sampling profiler: a tree of stacks with the time spent at each. No Python in here.
 *
 * One thread fills it; another reads it once the first has stopped. Its size is bounded: beyond that, time goes to the
 * nearest existing node.
 */
#ifndef VMH_PROFILE_H
#define VMH_PROFILE_H

#include "profile/functions.h"

enum { VMH_PROFILE_DEPTH = 128, VMH_PROFILE_NODES = 1 << 18 };

typedef struct vmh_profile_node {
    int32_t parent, function, line;   /* parent -1: a root */
    int64_t samples, wall_ns, cpu_ns; /* with this node innermost */
} vmh_profile_node;

typedef struct vmh_profile {
    vmh_functions functions; /* functions of tasks, and the tasks themselves (file ""), which are the roots */
    vmh_profile_node *nodes; /* owned */
    int32_t node_count;
    size_t node_room;
    vmh_index codes, children;
    bool full; /* incomplete: a bound was reached, or memory ran out */
} vmh_profile;

void vmh_profile_clear(vmh_profile *profile);

/* The function known by the three numbers (the identity of a code object); -1: none. */
int32_t vmh_profile_code(const vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c);
/* Maps the numbers to the function, which is added, with its `lines`, if it is new; frees `lines` if not. -1: no room.
 */
int32_t vmh_profile_learn(vmh_profile *profile, uint64_t a, uint64_t b, uint64_t c, const char *file, const char *name,
                          int first_line, unsigned char *lines, size_t lines_size);
/* The root node of a task's version; -1: no room. */
int32_t vmh_profile_task(vmh_profile *profile, const char *task, const char *version);
/* The node of `function` at `line` below `parent` (-1: a root); `parent` itself if there is no room. */
int32_t vmh_profile_node_of(vmh_profile *profile, int32_t parent, int32_t function, int32_t line);
void vmh_profile_add(vmh_profile *profile, int32_t node, int64_t wall_ns, int64_t cpu_ns);

#endif
