/* The native threads of a VM, its own and the guest's: their CPU time, and what they waited for cores. */
#ifndef VMH_THREADS_H
#define VMH_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "crash/crash.h"
#include "crash/starvation.h"
#include "lanes/vm.h"

enum { VMH_GUEST_THREADS_MAX = 64 };

typedef struct vmh_threads {
    pthread_t own;
    vmh_crash_slot *crash_slot; /* of its own thread, which sets it first of all; NULL: none was free */
    clockid_t cpu_clock;        /* of its own; valid while cpu_clock_valid */
    pid_t tid;                  /* likewise */
    atomic_bool cpu_clock_valid;
    atomic_llong cpu_ns_final; /* when its own thread is gone */

    /* guarded by the VM's life lock */
    vmh_starvation starvation; /* of its own, while it is stopped */
    int64_t sampling;          /* which run of the sampler the figures named told_cpu_ns are of */
    int64_t told_cpu_ns;       /* its own thread's CPU time that a profile knows already */
    struct {
        bool used;
        clockid_t clock;
        pid_t tid;
        void *state; /* its PyThreadState; NULL: none (yet, or any more) */
        int64_t told_cpu_ns;
        vmh_starvation starvation;
    } guests[VMH_GUEST_THREADS_MAX];
    int64_t ended_cpu_ns; /* of the guest's that ended */
    int count;            /* of the guest's */
} vmh_threads;

/* Life lock held: thread clocks are read while their threads cannot leave. */
int64_t vmh_threads_cpu_ns(vmh_vm *vm);
/* Life lock held. What its threads waited for cores since the first look of this `round`, the one that waited longest:
 * a thread that unwinds may wait for another's GIL, and that one for a core. Grace is put off by as much, not without
 * end. */
int64_t vmh_threads_starved_ns(vmh_vm *vm, int64_t round, int64_t now);

#endif
