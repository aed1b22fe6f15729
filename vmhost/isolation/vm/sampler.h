/* The sampling profiler: looks at all VMs of the process from outside, many times a second. */
#ifndef VMH_SAMPLER_H
#define VMH_SAMPLER_H

#include <stdatomic.h>

#include "profile/profile.h"

typedef struct vmh_sampler {
    vmh_profile profile;
    atomic_uint stop;    /* futex: 1 when it is to end */
    int64_t interval_ns; /* wanted, on average */
    int64_t began_ns, ended_ns;
    int64_t looks, cost_ns; /* cost: CPU time of the thread that looked */
    int64_t unreadable;     /* stacks */
} vmh_sampler;

/* Looks until stop is set, on the calling thread, which needs no interpreter. One at a time in a process: EBUSY.
 * ENOSYS, EPERM or the like: this system does not let a process read itself. */
int vmh_sampler_run(vmh_sampler *sampler);

#endif
