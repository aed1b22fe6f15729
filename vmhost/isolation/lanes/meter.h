/* Who owns how much memory: one meter per VM, charged by the allocator hooks (memory.c), buffers and the gates.
 *
 * A meter outlives its VM as long as memory that it paid for lives: it is counted. Two limits: passing `soft` asks for
 * the running call to be stopped (once per call, through on_soft); what would pass `hard` is refused, small requests a
 * reserve later. No Python in here.
 */
#ifndef VMH_METER_H
#define VMH_METER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmh_meter {
    atomic_int refs;
    atomic_llong live; /* bytes; may pass through negative for a moment: frees of another VM's raw memory drift */
    atomic_llong peak;
    atomic_llong arenas;        /* pymalloc arenas, a count */
    atomic_llong buffers;       /* bytes of `live` that are buffers */
    atomic_llong libraries;     /* bytes of `live` that native libraries asked the C library for (library_memory.c) */
    atomic_llong refused;       /* allocations refused at the hard limit */
    atomic_llong helper_cpu_ns; /* of threads of the process that worked for this VM (the engine's) */
    atomic_llong soft, hard;    /* bytes; LLONG_MAX: none */
    atomic_bool over;           /* soft limit passed since vmh_meter_rearm */
    atomic_bool denied;         /* a native library was refused memory since then; it tells so in an error of its own */
    atomic_bool ended;          /* its VM: what libraries still hold is for the whole process, nobody's */
    void (*on_soft)(void *context); /* called once when `over` turns true; must only wake someone */
    void *context;                  /* valid while on_soft is set; cleared by the VM before it goes */
    /* What holds this memory, where somebody wants to know: memory/holders.h. Set once, by the VM's thread, `watch`
     * first; owned. NULL: nobody does. */
    _Atomic(struct vmh_holdings *) holdings;
    const struct vmh_meter_watch *watch;
} vmh_meter;

/* What is told to whom keeps the holdings. Any thread. */
typedef struct vmh_meter_watch {
    void (*drop)(struct vmh_holdings *holdings); /* the meter goes */
    /* The soft limit was passed by a request of `bytes`; or, not `passed`, the request was refused. */
    void (*limit)(vmh_meter *meter, size_t bytes, bool passed);
    /* Storage that the meter paid for was made, and will be freed. */
    void (*made)(vmh_meter *meter, const void *address, size_t bytes);
    void (*gone)(vmh_meter *meter, const void *address);
} vmh_meter_watch;

vmh_meter *vmh_meter_new(void);
vmh_meter *vmh_meter_ref(vmh_meter *meter);
void vmh_meter_unref(vmh_meter *meter);

/* False: refused, nothing was charged. */
bool vmh_meter_charge(vmh_meter *meter, size_t bytes);
/* Charges in any case. Passing the soft limit asks for the stop, as ever. */
void vmh_meter_force(vmh_meter *meter, size_t bytes);
/* Charges what another meter was charged with, whose owner ended. Stops nothing: who is over its soft limit now is
 * stopped at its next charge. Not `forced`: false, and nothing charged, where that would be so. */
bool vmh_meter_inherit(vmh_meter *meter, size_t bytes, bool forced);
void vmh_meter_release(vmh_meter *meter, size_t bytes);
void vmh_meter_rearm(vmh_meter *meter);
/* The bytes that its VM has, or has left behind. */
long long vmh_meter_live(vmh_meter *meter);

#endif
