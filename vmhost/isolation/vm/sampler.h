/* The sampling profiler: samples all VMs of the process from outside, many times a second. */
#ifndef VMH_SAMPLER_H
#define VMH_SAMPLER_H

#include <stdatomic.h>

#include "profile/profile.h"

typedef struct vmh_sampler {
    vmh_profile profile;
    atomic_uint stop;    /* futex; 1 asks it to end */
    int64_t interval_ns; /* requested average */
    int64_t began_ns, ended_ns;
    int64_t looks, cost_ns; /* number of samples; CPU time of the sampling thread */
    int64_t unreadable;     /* stacks that could not be read */
} vmh_sampler;

/* Samples until `stop` is set, on the calling thread, which needs no interpreter. 0 or an errno. EBUSY: another sampler
 * runs in this process. ENOSYS, EPERM and the like: the system does not let a process read its own memory this way. */
int vmh_sampler_run(vmh_sampler *sampler);

#endif
