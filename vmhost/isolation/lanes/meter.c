#include "lanes/meter.h"

#include <limits.h>
#include <stdlib.h>

/* Small requests may use a reserve beyond the hard limit until the stop arrives: CPython copes with the refusal of a
 * large block, but crashes when some small ones are refused (PyType_Ready during a module's import). */
enum { SMALL_BYTES = 16 * 1024, RESERVE_BYTES = 32 * 1024 * 1024 };

vmh_meter *vmh_meter_new(void)
{
    vmh_meter *meter = calloc(1, sizeof *meter);
    if (meter == NULL)
        return NULL;
    atomic_init(&meter->refs, 1);
    atomic_init(&meter->soft, LLONG_MAX);
    atomic_init(&meter->hard, LLONG_MAX);
    atomic_init(&meter->descriptors_max, INT_MAX);
    return meter;
}

vmh_meter *vmh_meter_ref(vmh_meter *meter)
{
    atomic_fetch_add_explicit(&meter->refs, 1, memory_order_relaxed);
    return meter;
}

void vmh_meter_unref(vmh_meter *meter)
{
    if (atomic_fetch_sub(&meter->refs, 1) != 1)
        return;
    struct vmh_holdings *holdings = atomic_load(&meter->holdings);
    if (holdings != NULL)
        meter->watch->drop(holdings);
    free(meter);
}

static void note_peak(vmh_meter *meter, long long live)
{
    long long peak = atomic_load_explicit(&meter->peak, memory_order_relaxed);
    while (live > peak
           && !atomic_compare_exchange_weak_explicit(&meter->peak, &peak, live, memory_order_relaxed,
                                                     memory_order_relaxed)) {}
}

static void tell_limit(vmh_meter *meter, size_t bytes, bool passed)
{
    if (atomic_load_explicit(&meter->holdings, memory_order_acquire) != NULL)
        meter->watch->limit(meter, bytes, passed);
}

/* The soft limit was passed; the first thread to find this asks for the stop. */
static void pass(vmh_meter *meter, size_t bytes)
{
    if (atomic_load_explicit(&meter->over, memory_order_relaxed) || atomic_exchange(&meter->over, true))
        return;
    tell_limit(meter, bytes, true);
    if (meter->on_soft != NULL)
        meter->on_soft(meter->context);
}

static void note_soft(vmh_meter *meter, long long live, size_t bytes)
{
    if (live > atomic_load_explicit(&meter->soft, memory_order_relaxed))
        pass(meter, bytes);
}

static bool refuse(vmh_meter *meter, size_t bytes)
{
    atomic_fetch_add_explicit(&meter->refused, 1, memory_order_relaxed);
    tell_limit(meter, bytes, false);
    return false;
}

bool vmh_meter_charge(vmh_meter *meter, size_t bytes)
{
    long long hard = atomic_load_explicit(&meter->hard, memory_order_relaxed);
    if (bytes > (size_t)hard)
        return refuse(meter, bytes);
    long long live = atomic_fetch_add_explicit(&meter->live, (long long)bytes, memory_order_relaxed) + (long long)bytes;
    if (live > hard) {
        pass(meter, bytes);
        if (bytes > SMALL_BYTES || live - hard > RESERVE_BYTES) {
            atomic_fetch_sub_explicit(&meter->live, (long long)bytes, memory_order_relaxed);
            return refuse(meter, bytes);
        }
    }
    note_soft(meter, live, bytes);
    note_peak(meter, live);
    return true;
}

void vmh_meter_force(vmh_meter *meter, size_t bytes)
{
    long long live = atomic_fetch_add_explicit(&meter->live, (long long)bytes, memory_order_relaxed) + (long long)bytes;
    note_soft(meter, live, bytes);
    note_peak(meter, live);
}

bool vmh_meter_inherit(vmh_meter *meter, size_t bytes, bool forced)
{
    long long live = atomic_fetch_add_explicit(&meter->live, (long long)bytes, memory_order_relaxed) + (long long)bytes;
    if (!forced && live > atomic_load_explicit(&meter->soft, memory_order_relaxed)) {
        atomic_fetch_sub_explicit(&meter->live, (long long)bytes, memory_order_relaxed);
        return false;
    }
    note_peak(meter, live);
    return true;
}

void vmh_meter_release(vmh_meter *meter, size_t bytes)
{
    atomic_fetch_sub_explicit(&meter->live, (long long)bytes, memory_order_relaxed);
}

void vmh_meter_rearm(vmh_meter *meter)
{
    atomic_store(&meter->over, false);
    atomic_store(&meter->denied, false);
}

bool vmh_meter_open(vmh_meter *meter)
{
    if (atomic_fetch_add(&meter->descriptors, 1) < atomic_load(&meter->descriptors_max))
        return true;
    vmh_meter_close(meter);
    return false;
}

void vmh_meter_close(vmh_meter *meter) { atomic_fetch_sub(&meter->descriptors, 1); }

long long vmh_meter_live(vmh_meter *meter)
{
    long long live = atomic_load(&meter->live);
    return atomic_load(&meter->ended) ? live - atomic_load(&meter->libraries) : live;
}
