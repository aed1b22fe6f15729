#include "lanes/spin.h"

#include <sched.h>

#include "lanes/clock.h"

/* A spin is as long as the wake of the other side and a wake of this one: the other side may sleep as well. */
#define WAKES_PER_SPIN 2
#define SHORT_CALL_NS  INT64_C(5000)     /* and what a short call takes itself */
#define WAKE_NS        INT64_C(50000)    /* assumed until a wake was measured */
#define WAKE_MAX_NS    INT64_C(150000)   /* more is not a wake's cost: other threads held the core */
#define SHARE          10                /* spins without success take a tenth of a thread's time, */
#define BURST_NS       INT64_C(10000000) /* in bursts of a tenth of this */

enum { PAUSES = 32, ASK_EVERY = 1024 };

static atomic_int hot;
static atomic_llong wake_ns = WAKE_NS;
static atomic_int cores = 1;

void vmh_hot_enter(void) { atomic_fetch_add_explicit(&hot, 1, memory_order_relaxed); }
void vmh_hot_leave(void) { atomic_fetch_sub_explicit(&hot, 1, memory_order_relaxed); }

int vmh_core_here(void) { return sched_getcpu(); }

void vmh_spin_wake_took(int64_t ns)
{
    int64_t before = atomic_load_explicit(&wake_ns, memory_order_relaxed);
    if (ns > WAKE_MAX_NS)
        ns = WAKE_MAX_NS;
    atomic_store_explicit(&wake_ns, before + (ns - before) / 8, memory_order_relaxed);
}

/* The number of cores that threads of this process may use: of the largest set of a thread that asked so far. Threads
 * that are held to one core each use two. */
static int cores_of_all(vmh_spinner *spinner, int here, int peer)
{
    int most = atomic_load_explicit(&cores, memory_order_relaxed), mine = here != peer && peer >= 0 ? 2 : 1;
    if ((atomic_fetch_add_explicit(&spinner->asked, 1, memory_order_relaxed) & (ASK_EVERY - 1)) == 0) {
        cpu_set_t set;
        int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
        mine = count > mine ? count : mine;
    }
    if (mine > most)
        atomic_store_explicit(&cores, most = mine, memory_order_relaxed);
    return most;
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

bool vmh_spin(atomic_uint *word, unsigned mask, vmh_spinner *spinner, const atomic_int *peer)
{
    int here = vmh_core_here(), there = atomic_load_explicit(peer, memory_order_relaxed);
    if (here == there || atomic_load_explicit(&hot, memory_order_relaxed) >= cores_of_all(spinner, here, there))
        return false;
    int64_t paid = atomic_load_explicit(&spinner->paid_ns, memory_order_relaxed), began = 0, now = 0, end = 0;
    if (paid != 0 && paid - (began = vmh_now_ns()) > BURST_NS)
        return false;
    bool came = false;
    vmh_hot_enter();
    do {
        for (int i = 0; i < PAUSES && !came; i++) {
            cpu_pause();
            came = (atomic_load_explicit(word, memory_order_acquire) & mask) != 0;
        }
        if (came)
            break;
        now = vmh_now_ns();
        if (end == 0) {
            began = began != 0 ? began : now;
            end = began + WAKES_PER_SPIN * atomic_load_explicit(&wake_ns, memory_order_relaxed) + SHORT_CALL_NS;
        }
    } while (now < end && atomic_load_explicit(peer, memory_order_relaxed) != vmh_core_here());
    vmh_hot_leave();
    if (!came)
        atomic_store_explicit(&spinner->paid_ns, (paid > began ? paid : began) + SHARE * (now - began),
                              memory_order_relaxed);
    else if (paid != 0 && paid < began)
        atomic_store_explicit(&spinner->paid_ns, 0, memory_order_relaxed);
    return came;
}
