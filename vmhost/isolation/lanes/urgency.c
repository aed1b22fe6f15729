#include "lanes/urgency.h"

#include <sched.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The first version of struct sched_attr. The kernel's header collides with sched.h of newer C libraries. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} attributes;

enum { SHORTEST_NS = 100000, LONGEST_NS = 100000000 }; /* the slice lengths that the kernel accepts */

void vmh_urgency_set(enum vmh_urgency urgency)
{
    attributes own = {0};
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) != 0 || own.policy != SCHED_OTHER)
        return;
    own.size = sizeof own;
    own.runtime_ns = urgency == VMH_PROMPT ? SHORTEST_NS : urgency == VMH_PATIENT ? LONGEST_NS : 0;
    syscall(SYS_sched_setattr, 0, &own, 0);
    if (urgency == VMH_PATIENT)
        sched_yield(); /* the current slice keeps its length: give up the rest of it */
    if (urgency == VMH_PROMPT) {
        prctl(PR_SET_TIMERSLACK, 1L, 0L, 0L, 0L); /* by default timers may fire 50 us late, to save wake-ups */
        /* A thread whose own slice ends within 0.1 ms still runs first, for a whole tick: one wake in thirty. A higher
         * weight prevents that, if the process has the privilege; microseconds of work starve nobody. */
        setpriority(PRIO_PROCESS, 0, -20);
    }
}
