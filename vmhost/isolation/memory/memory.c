/* Every pymalloc arena and every raw allocation on a VM's thread is charged to the VM's meter.
 *
 * Arenas are recorded by address with their meter, so that any thread may free them. Raw blocks have no header (blocks
 * from before the hooks could not be told apart), so their usable size is charged to the VM that runs; a block
 * allocated by one VM and freed by another causes drift in both counters, which cancels out over the process. On host
 * threads the hooks cost one thread-local load.
 *
 * No VM sees what another one, or the host, left in memory: raw blocks are zeroed when a VM gets them, and arenas when
 * a VM leaves them for the next (new ones come from the system).
 */
#include "memory/memory.h"

#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cpython/compat.h"
#include "memory/fresh.h"
#include "memory/holders.h"
#include "memory/overflow.h"

static _Thread_local vmh_meter *paying __attribute__((tls_model("initial-exec")));
/* Blocks handed over on this thread (see memory.h); nearly always NULL. */
static _Thread_local void *keep __attribute__((tls_model("initial-exec"))),
    *offer __attribute__((tls_model("initial-exec")));
static _Thread_local size_t offer_size __attribute__((tls_model("initial-exec")));
static PyMemAllocatorEx raw, object;
static PyObjectArenaAllocator arena;
static bool plain; /* CPython had its default allocators before our hooks */

_Thread_local struct vmh_holdings *vmh_memory_watched __attribute__((tls_model("initial-exec")));

void vmh_memory_bind(vmh_meter *meter)
{
    paying = meter;
    vmh_memory_watched = meter == NULL ? NULL : atomic_load(&meter->holdings);
}
vmh_meter *vmh_memory_payer(void) { return paying; }

/* ---- arenas ---- */

/* Open addressing by address. There are a few thousand arenas at most, with few operations. */
typedef struct {
    void *address;
    vmh_meter *meter;
} arena_owner;

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static arena_owner *owners;
static size_t owners_capacity, owners_used; /* a power of two; used counts tombstones too */
static char tombstone;

static size_t slot_of(const void *address, size_t capacity)
{
    return (size_t)(((uintptr_t)address >> 12) * 11400714819323198485u) & (capacity - 1);
}

static void insert(arena_owner *table, size_t capacity, void *address, vmh_meter *meter)
{
    size_t at = slot_of(address, capacity);
    while (table[at].address != NULL)
        at = (at + 1) & (capacity - 1);
    table[at] = (arena_owner){address, meter};
}

/* Lock held. False: no memory for the table. */
static bool own(void *address, vmh_meter *meter)
{
    if (owners_used * 2 >= owners_capacity) {
        size_t live = 0;
        for (size_t i = 0; i < owners_capacity; i++)
            live += owners[i].address != NULL && owners[i].address != &tombstone;
        size_t capacity = 1024;
        while (capacity < live * 4)
            capacity *= 2;
        arena_owner *table = calloc(capacity, sizeof *table);
        if (table == NULL)
            return false;
        for (size_t i = 0; i < owners_capacity; i++)
            if (owners[i].address != NULL && owners[i].address != &tombstone)
                insert(table, capacity, owners[i].address, owners[i].meter);
        free(owners);
        owners = table;
        owners_capacity = capacity;
        owners_used = live;
    }
    insert(owners, owners_capacity, address, meter);
    owners_used++;
    return true;
}

/* Lock held. The meter that was charged, or NULL. */
static vmh_meter *disown(void *address)
{
    if (owners_capacity == 0)
        return NULL;
    for (size_t at = slot_of(address, owners_capacity); owners[at].address != NULL;
         at = (at + 1) & (owners_capacity - 1))
        if (owners[at].address == address) {
            owners[at].address = &tombstone;
            return owners[at].meter;
        }
    return NULL;
}

/* Arenas of ended VMs, reused by the next ones: their pages are mapped, which saves a boot some hundred page faults.
 * They are zeroed. */
enum { STOCK_MAX = 4, STOCK_BYTES = 1 << 20 }; /* the size of real arenas; frame chunks also come from this allocator */
static void *stock[STOCK_MAX];
static int stock_count;

static void *arena_new(size_t size)
{
    void *memory = NULL;
    vmh_mutex_lock(&arenas_lock);
    if (size == STOCK_BYTES && stock_count > 0)
        memory = stock[--stock_count];
    vmh_mutex_unlock(&arenas_lock);
    return memory != NULL ? memory : arena.alloc(arena.ctx, size);
}

static void *arena_alloc(void *context, size_t size)
{
    vmh_meter *meter = paying;
    if (meter == NULL)
        return arena.alloc(arena.ctx, size);
    (void)context;
    if (!vmh_meter_charge(meter, size))
        return NULL;
    void *memory = arena_new(size);
    vmh_overflow_check();
    vmh_mutex_lock(&arenas_lock);
    bool owned = memory != NULL && own(memory, meter);
    vmh_mutex_unlock(&arenas_lock);
    if (!owned) {
        /* No memory for the table: leave the arena uncharged. CPython would crash without it while it creates an
         * interpreter. */
        vmh_meter_release(meter, size);
        return memory;
    }
    vmh_meter_ref(meter);
    atomic_fetch_add(&meter->arenas, 1);
    return memory;
}

static void arena_free(void *context, void *memory, size_t size)
{
    (void)context;
    vmh_mutex_lock(&arenas_lock);
    vmh_meter *meter = disown(memory);
    bool kept = meter != NULL && size == STOCK_BYTES && stock_count < STOCK_MAX;
    vmh_mutex_unlock(&arenas_lock);
    if (kept) {
        memset(memory, 0, size);
        vmh_mutex_lock(&arenas_lock);
        kept = stock_count < STOCK_MAX;
        if (kept)
            stock[stock_count++] = memory;
        vmh_mutex_unlock(&arenas_lock);
    }
    if (!kept)
        arena.free(arena.ctx, memory, size);
    vmh_overflow_check();
    if (meter != NULL) {
        vmh_meter_release(meter, size);
        atomic_fetch_sub(&meter->arenas, 1);
        vmh_meter_unref(meter);
    }
}

/* ---- raw blocks ---- */

static void *charged(vmh_meter *meter, void *memory, size_t asked, bool zeroed)
{
    vmh_overflow_check();
    if (memory == NULL) {
        vmh_meter_release(meter, asked);
        return NULL;
    }
    size_t usable = malloc_usable_size(memory);
    if (!zeroed)
        memset(memory, 0, usable);
    if (usable > asked) /* rounding: charged, but never refused */
        atomic_fetch_add_explicit(&meter->live, (long long)(usable - asked), memory_order_relaxed);
    vmh_holders_made(meter, memory, asked);
    return memory;
}

static _Thread_local bool waits __attribute__((tls_model("initial-exec"))); /* read by each allocation */
void vmh_memory_wait(bool wait) { waits = wait; }

/* Whether to ask the system again, which has just refused: a thread that waits does for a while, as other threads give
 * back soon what they only reserved. */
static bool again(int *tried)
{
    enum { TRIES = 50 };
    const struct timespec pause = {0, 1000000};
    if (!waits || ++*tried == TRIES)
        return false;
    nanosleep(&pause, NULL);
    return true;
}

static void *from_system(size_t count, size_t size, bool zeroed)
{
    void *memory;
    int tried = 0;
    do
        memory = zeroed ? raw.calloc(raw.ctx, count, size) : raw.malloc(raw.ctx, count * size);
    while (memory == NULL && again(&tried));
    return memory;
}

static void *raw_malloc(void *context, size_t size)
{
    (void)context;
    vmh_meter *meter = paying;
    if (meter == NULL) {
        if (offer == NULL || size != offer_size)
            return raw.malloc(raw.ctx, size);
        void *block = offer;
        offer = NULL;
        return block;
    }
    if (!vmh_meter_charge(meter, size))
        return NULL;
    bool zeroed = size >= VMH_FRESH_CALLOC_MIN;
    return charged(meter, from_system(1, size, zeroed), size, zeroed);
}

static void *raw_calloc(void *context, size_t count, size_t size)
{
    (void)context;
    vmh_meter *meter = paying;
    if (meter == NULL)
        return raw.calloc(raw.ctx, count, size);
    if (size != 0 && count > (size_t)PY_SSIZE_T_MAX / size)
        return NULL;
    if (!vmh_meter_charge(meter, count * size))
        return NULL;
    return charged(meter, from_system(count, size, true), count * size, true);
}

static void *raw_realloc(void *context, void *memory, size_t size)
{
    (void)context;
    vmh_meter *meter = paying;
    if (meter == NULL)
        return raw.realloc(raw.ctx, memory, size);
    size_t before = memory == NULL ? 0 : malloc_usable_size(memory);
    if (size > before && !vmh_meter_charge(meter, size - before))
        return NULL;
    vmh_holders_gone(meter, memory);
    void *moved;
    int tried = 0;
    do
        moved = raw.realloc(raw.ctx, memory, size);
    while (moved == NULL && again(&tried));
    vmh_overflow_check();
    if (moved == NULL) {
        if (size > before)
            vmh_meter_release(meter, size - before);
        return NULL;
    }
    vmh_fresh_grown(moved, before);
    long long after = (long long)malloc_usable_size(moved);
    long long paid = (long long)(size > before ? size : before);
    atomic_fetch_add_explicit(&meter->live, after - paid, memory_order_relaxed);
    vmh_holders_made(meter, moved, size);
    return moved;
}

static void raw_free(void *context, void *memory)
{
    (void)context;
    vmh_meter *meter = paying;
    if (meter != NULL && memory != NULL) {
        vmh_meter_release(meter, malloc_usable_size(memory));
        vmh_holders_gone(meter, memory);
    }
    if (memory != NULL && memory == keep)
        keep = NULL;
    else
        raw.free(raw.ctx, memory);
    vmh_overflow_check();
}

/* ---- blocks handed over ---- */

void vmh_memory_keep(void *block) { keep = block; }

bool vmh_memory_kept(void)
{
    bool kept = keep == NULL;
    keep = NULL;
    return kept;
}

void vmh_memory_offer(void *block, size_t size)
{
    offer = block;
    offer_size = size;
}

bool vmh_memory_taken(void)
{
    bool taken = offer == NULL;
    offer = NULL;
    return taken;
}

bool vmh_memory_is_default(void)
{
    PyMemAllocatorEx now;
    PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &now);
    if (!plain || now.malloc != raw_malloc || now.free != raw_free)
        return false;
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &now);
    return (now.malloc == object.malloc && now.free == object.free) || vmh_holders_are(&now, &object);
}

/* Other threads may allocate meanwhile, and CPython reads the allocator without a lock. They may see any mix of old and
 * new functions: each handles the other's blocks, and the context is NULL in both. The place is beneath tracemalloc and
 * the debug mode, so that blocks are the C library's own and malloc_usable_size works on them. */
static void hook(PyMemAllocatorDomain domain)
{
    vmh_compat_allocator_set(domain, &(PyMemAllocatorEx){NULL, raw_malloc, raw_calloc, raw_realloc, raw_free});
}

/* Puts the hooks where the allocator is that they call: the first time, and after somebody who replaced ours has put it
 * back. With PYTHONMALLOC=malloc, objects are raw blocks too. A profiler's functions may serve all domains, each with a
 * context of its own. */
static void install(void)
{
    for (int domain = PYMEM_DOMAIN_RAW; domain <= PYMEM_DOMAIN_OBJ; domain++) {
        PyMemAllocatorEx now = vmh_compat_allocator((PyMemAllocatorDomain)domain);
        if (now.malloc == raw.malloc && now.ctx == raw.ctx)
            hook((PyMemAllocatorDomain)domain);
    }
    PyObjectArenaAllocator now;
    PyObject_GetArenaAllocator(&now);
    if (now.alloc == arena.alloc)
        PyObject_SetArenaAllocator(&(PyObjectArenaAllocator){NULL, arena_alloc, arena_free});
}

/* glibc reserves 64 MiB of addresses for each of its arenas, and makes one for each new thread, up to eight a core.
 * Where addresses are limited, arenas get at most a quarter of them. */
static void leave_addresses(void)
{
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur < (rlim_t)1 << 35)
        mallopt(M_ARENA_MAX, 1 + (int)(addresses.rlim_cur >> 28));
}

int vmh_memory_install(void)
{
    static bool installed;
    if (installed)
        return 0;
    installed = true;
    const char *name = _PyMem_GetCurrentAllocatorName();
    plain = name != NULL && strcmp(name, "pymalloc") == 0;
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &object);
    raw = vmh_compat_allocator(PYMEM_DOMAIN_RAW);
    PyObject_GetArenaAllocator(&arena);
    install();
    leave_addresses();
    return 0;
}

const char *vmh_memory_refusal(void)
{
    return !vmh_compat_uses_mimalloc()
               ? NULL
               : "memory limits cannot be held with PYTHONMALLOC=mimalloc, whose blocks cannot be counted: unset "
                 "PYTHONMALLOC, or set it to pymalloc, malloc or debug";
}

/* Whether an allocation of this thread is charged. */
static bool charges(void)
{
    long long before = atomic_load(&paying->live);
    void *block = PyMem_RawMalloc(64);
    bool charged_it = block != NULL && atomic_load(&paying->live) > before;
    PyMem_RawFree(block);
    PyObjectArenaAllocator now;
    PyObject_GetArenaAllocator(&now);
    return charged_it && now.alloc == arena_alloc;
}

bool vmh_memory_check(void)
{
    static pthread_mutex_t checking = PTHREAD_MUTEX_INITIALIZER;
    if (charges())
        return true;
    vmh_mutex_lock(&checking);
    install();
    vmh_mutex_unlock(&checking);
    return charges();
}
