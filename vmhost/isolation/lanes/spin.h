/* Spinning: a caller that waits for a result, and a VM that waits for a call, look for it before they sleep.
 *
 * A sleeping thread on another core is woken through the kernel, which takes up to 100 us where idle cores halt deeply,
 * as virtual ones do. A spin pays while it is shorter than that, so its length follows the measured cost of such wakes.
 * It is of no use on the core of the thread that is to end it. Spins that end without success take at most a tenth of a
 * thread's time.
 */
#ifndef VMH_SPIN_H
#define VMH_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Initially all zero. */
typedef struct vmh_spinner {
    atomic_llong paid_ns; /* until then, earlier spins without success are being paid for */
    atomic_uint asked;    /* how often it spun, or wanted to */
} vmh_spinner;

/* The core that this thread runs on. */
int vmh_core_here(void);

/* Spins until `*word & mask`; true on success. `peer`: the core of the thread that sets it, which may change meanwhile;
 * -1: unknown. */
bool vmh_spin(atomic_uint *word, unsigned mask, vmh_spinner *spinner, const atomic_int *peer);

/* A thread was woken on another core than that of its waker, after this time. */
void vmh_spin_wake_took(int64_t ns);

/* Count the threads that run guest code or spin: spinning pays only while they leave a core free. */
void vmh_hot_enter(void);
void vmh_hot_leave(void);

#endif
