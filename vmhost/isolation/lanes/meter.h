/* Memory accounting: one meter per VM, charged by the allocator hooks (memory.c), buffers and the gates.
 *
 * A meter is reference-counted and outlives its VM while memory charged to it lives. Two limits: passing `soft` asks
 * for the running call to be stopped (once per call, through on_soft); a request that would pass `hard` is refused,
 * small ones only after a reserve is used up. No Python in here.
 */
#ifndef VMH_METER_H
#define VMH_METER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmh_meter {
    atomic_int refs;
    atomic_llong live; /* bytes; may be briefly negative: frees of another VM's raw memory cause drift */
    atomic_llong peak;
    atomic_llong arenas;        /* pymalloc arenas, a count */
    atomic_llong buffers;       /* bytes of `live` that are buffers */
    atomic_llong libraries;     /* bytes of `live` that native libraries asked the C library for (library_memory.c) */
    atomic_llong refused;       /* allocations refused at the hard limit */
    atomic_llong helper_cpu_ns; /* CPU time of process threads that worked for this VM (the engine's) */
    atomic_llong soft, hard;    /* bytes; LLONG_MAX: none */
    atomic_int descriptors;     /* that the task has open */
    atomic_int descriptors_max;
    atomic_bool over;   /* soft limit passed since vmh_meter_rearm */
    atomic_bool denied; /* since then a native library was refused memory, which it reports as its own error */
    atomic_bool ended;  /* the VM has ended: what libraries still hold belongs to the whole process */
    void (*on_soft)(void *context); /* called once when `over` turns true; must only wake someone */
    void *context;                  /* valid while on_soft is set; cleared by the VM before it is freed */
    /* Which lines hold this memory, if recorded: memory/holders.h. Set once, by the VM's thread, after `watch`; owned.
     * NULL: not recorded. */
    _Atomic(struct vmh_holdings *) holdings;
    const struct vmh_meter_watch *watch;
} vmh_meter;

/* Callbacks to the keeper of the holdings. Any thread. */
typedef struct vmh_meter_watch {
    void (*drop)(struct vmh_holdings *holdings); /* the meter is freed */
    /* A request of `bytes` passed the soft limit or, if not `passed`, was refused. */
    void (*limit)(vmh_meter *meter, size_t bytes, bool passed);
    /* Storage charged to the meter was allocated, or is about to be freed. */
    void (*made)(vmh_meter *meter, const void *address, size_t bytes);
    void (*gone)(vmh_meter *meter, const void *address);
} vmh_meter_watch;

vmh_meter *vmh_meter_new(void);
vmh_meter *vmh_meter_ref(vmh_meter *meter);
void vmh_meter_unref(vmh_meter *meter);

/* False: refused, nothing was charged. */
bool vmh_meter_charge(vmh_meter *meter, size_t bytes);
/* Charges even beyond the limits. Passing the soft limit asks for the stop, as in vmh_meter_charge. */
void vmh_meter_force(vmh_meter *meter, size_t bytes);
/* Takes over a charge of another meter, whose owner ended. Never asks for a stop: a VM that is over its soft limit by
 * this is stopped at its next charge. Unless `forced`, returns false and charges nothing if the soft limit would be
 * passed. */
bool vmh_meter_inherit(vmh_meter *meter, size_t bytes, bool forced);
void vmh_meter_release(vmh_meter *meter, size_t bytes);
void vmh_meter_rearm(vmh_meter *meter);
/* One more descriptor of the task's is open. False: it has as many as it may, and nothing was counted. */
bool vmh_meter_open(vmh_meter *meter);
void vmh_meter_close(vmh_meter *meter);
/* The bytes charged to the VM; after its end, those left behind without what libraries hold. */
long long vmh_meter_live(vmh_meter *meter);

#endif
