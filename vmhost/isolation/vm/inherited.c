#include "vm/inherited.h"

#include <fenv.h>
#include <pthread.h>

#include "cpython/compat.h"
#include "lanes/signals.h"
#include "lanes/warden.h"
#include "memory/overflow.h"

/* Under a real-time policy, a thread runs until it waits: the warden, which stops VMs, must come before them. */
static void stand_below_the_warden(void)
{
    int policy, limit = vmh_warden_priority();
    struct sched_param own;
    if (pthread_getschedparam(pthread_self(), &policy, &own) != 0 || (policy != SCHED_FIFO && policy != SCHED_RR)
        || own.sched_priority < limit)
        return;
    own.sched_priority = limit - 1;
    if (own.sched_priority < sched_get_priority_min(policy)) {
        own.sched_priority = 0;
        policy = SCHED_OTHER;
    }
    pthread_setschedparam(pthread_self(), policy, &own);
}

void vmh_inherited_undo(void)
{
    vmh_signals_leave_to_host();
    stand_below_the_warden();
    fesetenv(FE_DFL_ENV); /* the rounding mode, and flushing of subnormals (libraries built with -ffast-math set it) */
    /* tracemalloc's table of file names is shared by all interpreters: it would keep, and free, strings of this one.
     * Besides, CPython holds its mutex of thread states while it makes an interpreter, and tracemalloc takes it for a
     * thread that has no thread state. */
    vmh_compat_untrace_thread();
    vmh_overflow_fresh();
}
