/* The native threads of a VM, its own and the guest's: their CPU time, and how long they waited for cores. */
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
    vmh_crash_slot *crash_slot; /* of its own thread, which sets it first; NULL: none was free */
    clockid_t cpu_clock;        /* of its own thread; valid while cpu_clock_valid */
    pid_t tid;                  /* likewise */
    atomic_bool cpu_clock_valid;
    atomic_llong cpu_ns_final; /* total, once its own thread has ended */

    /* guarded by the VM's life lock */
    vmh_starvation starvation; /* of its own thread, during a stop */
    int64_t sampling;          /* the sampler run to which the fields counted_cpu_ns belong */
    int64_t counted_cpu_ns;    /* CPU time of its own thread already added to the profile */
    struct {
        bool used;
        clockid_t clock;
        pid_t tid;
        void *state; /* its PyThreadState; NULL: none */
        int64_t counted_cpu_ns;
        vmh_starvation starvation;
    } guests[VMH_GUEST_THREADS_MAX];
    int64_t ended_cpu_ns; /* of guest threads that have ended */
    int count;            /* of running guest threads */
} vmh_threads;

/* Life lock held, so that no thread ends while its clock is read. */
int64_t vmh_threads_cpu_ns(vmh_vm *vm);
/* Life lock held. How long a thread waited for cores since the first check of this `round`, the maximum of all: a
 * thread that unwinds may wait for another's GIL, and that one for a core. Grace is extended by this, up to
 * VMH_STARVED_MAX_NS. */
int64_t vmh_threads_starved_ns(vmh_vm *vm, int64_t round, int64_t now);

#endif
