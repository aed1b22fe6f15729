/* How long threads waited for a core although they had work to do: the time that a stop's grace does not count.
 *
 * A VM that has no turn on a busy machine cannot unwind, however willing it is. The kernel counts those waits per
 * thread, and tells them when they are over; one that is under way shows in that the thread is runnable and was not run
 * between two looks. Where the kernel does not tell (no /proc, no scheduler information), nothing was waited, and grace
 * is plain time.
 */
#ifndef VMH_STARVATION_H
#define VMH_STARVATION_H

#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int64_t round;         /* what the rest is about; 0: nothing yet */
    int64_t base_ns;       /* waits that were over when the round began */
    int64_t ran_ns, turns; /* CPU time and turns at the last look at which they had changed */
    int64_t seen_ns;       /* when that was */
} vmh_starvation;

/* What thread `tid` of this process waited for cores in all its life, waits that are over; 0 where that is not known.
 */
int64_t vmh_starved_so_far_ns(pid_t tid);

/* What thread `tid` waited since the first look of this `round` (not 0), the wait under way included. `now_ns` is the
 * time. */
int64_t vmh_starved_ns(vmh_starvation *watch, int64_t round, pid_t tid, int64_t now_ns);

#endif
