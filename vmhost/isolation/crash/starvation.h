/* How long threads waited for a core while runnable: time that does not count against a stop's grace.
 *
 * On a busy machine a VM may get no CPU time in which to unwind. The kernel counts such waits per thread, but only once
 * they are over; a wait in progress is inferred when the thread is runnable and has not run between two checks. Where
 * the kernel gives no figures (no /proc, no scheduler statistics), the wait is taken as 0 and grace is wall time.
 */
#ifndef VMH_STARVATION_H
#define VMH_STARVATION_H

#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int64_t round;         /* identifies the measurement; 0: none yet */
    int64_t base_ns;       /* waits completed before the round began */
    int64_t ran_ns, turns; /* CPU time and time slices at the last check at which they had changed */
    int64_t seen_ns;       /* the time of that check */
} vmh_starvation;

/* The completed waits of thread `tid` of this process since it started; 0 where unknown. */
int64_t vmh_starved_so_far_ns(pid_t tid);

/* How long thread `tid` has waited since the first check of this `round` (not 0), including a wait in progress.
 * `now_ns` is the current time. */
int64_t vmh_starved_ns(vmh_starvation *watch, int64_t round, pid_t tid, int64_t now_ns);

#endif
