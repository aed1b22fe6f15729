/* Critical sections: stretches in which a thread of a VM holds something that the whole process needs.
 *
 * A thread that runs over the end of its stack is stopped where it stands (overflow.c), for ever. That must not happen
 * while it holds a lock of ours, or one of a library that called us: so every lock that a VM's thread may take at any
 * depth of its stack is taken through here, and the depth of such sections is counted per thread.
 *
 * The order: a GIL, then a VM's life lock, then one of the others, under which nothing is waited for. No lock is held
 * while a GIL is wanted. docs/decisions/locks.md has the list.
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
