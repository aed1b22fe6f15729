/* Critical sections: code in which a VM's thread holds something that the whole process needs.
 *
 * A thread that overflows its stack is suspended on the spot for good (overflow.c). That must not happen while it holds
 * a lock of ours, or of a library that called us. So every lock that a VM's thread may take at any stack depth is taken
 * through here, and the nesting of such sections is counted per thread.
 *
 * Lock order: a GIL, then a VM's life lock, then one of the others, under which nothing blocks. No lock is held while
 * waiting for a GIL. docs/decisions/locks.md lists them all.
 */
#ifndef VMH_CRITICAL_H
#define VMH_CRITICAL_H

#include <pthread.h>
#include <stdatomic.h>

/* Written by its own thread, read by a signal handler on it. */
extern _Thread_local volatile int vmh_critical_depth __attribute__((tls_model("initial-exec")));

static inline void vmh_critical_enter(void)
{
    vmh_critical_depth = vmh_critical_depth + 1;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void vmh_critical_leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    vmh_critical_depth = vmh_critical_depth - 1;
}

static inline void vmh_mutex_lock(pthread_mutex_t *mutex)
{
    vmh_critical_enter();
    pthread_mutex_lock(mutex);
}

static inline void vmh_mutex_unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    vmh_critical_leave();
}

#endif
