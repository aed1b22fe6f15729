/* Monotonic nanoseconds, and futexes: how threads of the core sleep and wake each other.
 *
 * Raw futexes, not condition variables: a caller that waits in the main thread must return on a signal (Ctrl-C),
 * and pthread_cond_wait does not. Linux only.
 */
#ifndef VMH_CLOCK_H
#define VMH_CLOCK_H

#include <linux/futex.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define VMH_FOREVER INT64_MAX

static inline int64_t vmh_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* `now + span`, saturating; a negative or endless span never ends. */
static inline int64_t vmh_after_ns(int64_t now, int64_t span)
{
    return span < 0 || span >= VMH_FOREVER - now ? VMH_FOREVER : now + span;
}

/* Sleeps while *word == expected, until `deadline_ns` (monotonic). Returns 0 when woken (possibly spuriously), or an
 * errno: EAGAIN (the word differs), ETIMEDOUT, EINTR. */
int vmh_futex_wait(atomic_uint *word, unsigned expected, int64_t deadline_ns);
void vmh_futex_wake(atomic_uint *word, int threads);

#endif
