#include "memory/holders.h"

#include <limits.h>
#include <unistd.h>

#include "cpython/stack.h"
#include "lanes/critical.h"
#include "memory/memory.h"

/* The sampling interval is a thousandth of the limit, within these bounds. Blocks of LARGE intervals or more are always
 * recorded, with their own size. */
enum { INTERVAL_MIN = 8 << 10, INTERVAL_MAX = 512 << 10, LARGE = 16 };
enum { SMALL_BYTES = 512 }; /* CPython passes larger blocks on to its raw allocator, which records them itself */

static PyMemAllocatorEx objects, memory; /* the allocators before our hooks */

/* ---- sampling ---- */

/* Bytes until the next sample, and the state of the random numbers. Per thread, and so per VM. */
static _Thread_local int64_t left __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t chance __attribute__((tls_model("initial-exec")));

/* The natural logarithm of a number in (0, 1), to about 1e-5. */
static double logarithm(double x)
{
    int halvings = 0;
    for (; x < 0.5; halvings++)
        x *= 2;
    double z = (x - 1) / (x + 1), square = z * z;
    return 2 * z * (1 + square * (1.0 / 3 + square * (1.0 / 5 + square / 7))) - halvings * 0.69314718055994531;
}

/* Bytes from one sample to the next: exponentially distributed, so that each byte is equally likely. */
static int64_t gap(int64_t interval)
{
    if (chance == 0)
        chance = (uint64_t)(uintptr_t)&chance * UINT64_C(11400714819323198485) | 1;
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return 1 + (int64_t)(-logarithm((double)((chance >> 11) + 1) * 0x1p-53 * (1 - 0x1p-53)) * (double)interval);
}

/* The number of bytes that a block represents; 0: it is not sampled. */
static int64_t weight_of(const vmh_holdings *holdings, size_t bytes)
{
    if (bytes >= (size_t)holdings->interval * LARGE)
        return (int64_t)bytes;
    if (chance == 0)
        left = gap(holdings->interval);
    left -= (int64_t)bytes;
    int64_t weight = 0;
    for (; left <= 0; weight += holdings->interval)
        left += gap(holdings->interval);
    return weight;
}

/* ---- stacks ---- */

/* The tree node of this thread's stack. Lock held. */
static int32_t node_here(vmh_holdings *holdings)
{
    vmh_stack_frame frames[VMH_HOLDINGS_DEPTH];
    vmh_profile *tree = &holdings->tree;
    PyThreadState *ts = PyThreadState_GetUnchecked();
    if (ts == NULL) /* the thread released its GIL, so its frames do not change; or it has no state (engine thread) */
        ts = PyGILState_GetThisThreadState();
    int count = ts == NULL ? 0 : vmh_stack_read_own(ts, frames, VMH_HOLDINGS_DEPTH);
    int32_t node = holdings->root;
    for (int i = count - 1; i >= 0; i--) {
        const vmh_stack_frame *frame = &frames[i];
        const uint64_t a = frame->code, b = frame->name ^ (uint64_t)frame->first_line << 48, c = frame->line_table;
        int32_t function = vmh_profile_code(tree, a, b, c);
        vmh_stack_code code;
        if (function < 0 && vmh_stack_name_own(frame, &code))
            function =
                vmh_profile_learn(tree, a, b, c, code.file, code.name, code.first_line, code.lines, code.lines_size);
        if (function < 0)
            continue;
        const vmh_function *known = &tree->functions.items[function];
        int line = known->lines == NULL
                       ? 0
                       : vmh_stack_line(known->lines, known->lines_size, known->first_line, frame->offset);
        node = vmh_profile_node_of(tree, node, function, line);
    }
    return node;
}

/* False in a forked child: it has no VMs, and a lock that another thread held at the fork stays locked. */
static bool is_ours(const vmh_holdings *holdings) { return holdings->process == getpid(); }

void vmh_holders_note(vmh_meter *meter, const void *address, size_t bytes)
{
    vmh_holdings *holdings = atomic_load_explicit(&meter->holdings, memory_order_acquire);
    int64_t weight = weight_of(holdings, bytes);
    if (weight == 0 || !is_ours(holdings))
        return;
    vmh_holdings_lock(holdings);
    vmh_holdings_add(holdings, address, weight, node_here(holdings));
    vmh_holdings_unlock(holdings);
}

static void forget(vmh_holdings *holdings, const void *address)
{
    if (!vmh_holdings_may_have(holdings, address) || !is_ours(holdings))
        return;
    vmh_holdings_lock(holdings);
    vmh_holdings_remove(holdings, address);
    vmh_holdings_unlock(holdings);
}

void vmh_holders_forget(vmh_meter *meter, const void *address)
{
    forget(atomic_load_explicit(&meter->holdings, memory_order_acquire), address);
}

static void on_limit(vmh_meter *meter, size_t bytes, bool passed)
{
    vmh_holdings *holdings = atomic_load_explicit(&meter->holdings, memory_order_acquire);
    if (!is_ours(holdings))
        return;
    vmh_holdings_lock(holdings);
    vmh_holdings_mark(holdings, node_here(holdings), bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes, passed);
    vmh_holdings_unlock(holdings);
}

/* ---- CPython's objects ---- */

/* Objects are allocated and freed every 20 ns or so: the work for each is inline, and the call to CPython's allocator
 * is a tail call. */

static void *noted(void *block, size_t bytes)
{
    if (block != NULL)
        vmh_holders_note(vmh_memory_payer(), block, bytes);
    return block;
}

/* Whether the next block, of this size, is a sample. Larger ones are raw blocks, which are sampled there. */
static inline bool is_next(size_t bytes)
{
    return vmh_memory_watched != NULL && bytes <= SMALL_BYTES && left <= (int64_t)bytes;
}

/* Counts a block that is not a sample. */
static inline void pass_by(size_t bytes)
{
    if (vmh_memory_watched != NULL && bytes <= SMALL_BYTES)
        left -= (int64_t)bytes;
}

static inline void *make(const PyMemAllocatorEx *before, size_t bytes)
{
    if (is_next(bytes))
        return noted(before->malloc(before->ctx, bytes), bytes);
    pass_by(bytes);
    return before->malloc(before->ctx, bytes);
}

static inline void *make_zeroed(const PyMemAllocatorEx *before, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return before->calloc(before->ctx, count, size);
    if (is_next(bytes))
        return noted(before->calloc(before->ctx, count, size), bytes);
    pass_by(bytes);
    return before->calloc(before->ctx, count, size);
}

/* The record of a block stays until it has moved: if the request to grow it is refused, the report must include it. A
 * block beyond SMALL_BYTES was recorded anew as a raw block already. */
static void *move(const PyMemAllocatorEx *before, void *block, size_t bytes)
{
    void *result = before->realloc(before->ctx, block, bytes);
    if (vmh_memory_watched == NULL || result == NULL)
        return result;
    if (block != NULL && (result != block || bytes <= SMALL_BYTES))
        forget(vmh_memory_watched, block);
    if (is_next(bytes))
        return noted(result, bytes);
    pass_by(bytes);
    return result;
}

static inline void drop(const PyMemAllocatorEx *before, void *block)
{
    if (vmh_memory_watched != NULL && vmh_holdings_may_have(vmh_memory_watched, block))
        forget(vmh_memory_watched, block);
    before->free(before->ctx, block);
}

static void *object_malloc(void *Py_UNUSED(context), size_t size) { return make(&objects, size); }
static void *object_calloc(void *Py_UNUSED(context), size_t count, size_t size)
{
    return make_zeroed(&objects, count, size);
}
static void *object_realloc(void *Py_UNUSED(context), void *block, size_t size) { return move(&objects, block, size); }
static void object_free(void *Py_UNUSED(context), void *block) { drop(&objects, block); }

static void *memory_malloc(void *Py_UNUSED(context), size_t size) { return make(&memory, size); }
static void *memory_calloc(void *Py_UNUSED(context), size_t count, size_t size)
{
    return make_zeroed(&memory, count, size);
}
static void *memory_realloc(void *Py_UNUSED(context), void *block, size_t size) { return move(&memory, block, size); }
static void memory_free(void *Py_UNUSED(context), void *block) { drop(&memory, block); }

/* The hooks are installed while a VM needs them. Like tracemalloc's, they are set and removed while other threads
 * allocate: each field is one word, no function reads its context, and blocks are the same with and without them. */
static void change_watched(int change)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int watched;
    vmh_mutex_lock(&lock);
    if (change > 0 && watched == 0) {
        PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &objects);
        PyMem_GetAllocator(PYMEM_DOMAIN_MEM, &memory);
        PyMem_SetAllocator(PYMEM_DOMAIN_OBJ,
                           &(PyMemAllocatorEx){objects.ctx, object_malloc, object_calloc, object_realloc, object_free});
        PyMem_SetAllocator(PYMEM_DOMAIN_MEM,
                           &(PyMemAllocatorEx){memory.ctx, memory_malloc, memory_calloc, memory_realloc, memory_free});
    }
    watched += change;
    if (watched == 0) {
        PyMemAllocatorEx now;
        PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &now);
        bool ours = now.malloc == object_malloc;
        PyMem_GetAllocator(PYMEM_DOMAIN_MEM, &now);
        if (ours && now.malloc == memory_malloc) { /* else someone wrapped our hooks, and calls them */
            PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &objects);
            PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &memory);
        } else {
            watched = 1; /* keep the hooks for good */
        }
    }
    vmh_mutex_unlock(&lock);
}

static void leave(vmh_holdings *holdings)
{
    bool ours = is_ours(holdings);
    vmh_holdings_free(holdings);
    if (ours)
        change_watched(-1);
}

bool vmh_holders_are(const PyMemAllocatorEx *now, const PyMemAllocatorEx *before)
{
    return now->malloc == object_malloc && now->free == object_free && objects.malloc == before->malloc
           && objects.free == before->free;
}

static const vmh_meter_watch watch = {
    .drop = leave, .limit = on_limit, .made = vmh_holders_note, .gone = vmh_holders_forget};

void vmh_holders_start(vmh_meter *meter, const char *task, const char *version)
{
    if (atomic_load(&meter->holdings) != NULL)
        return;
    long long limit = atomic_load(&meter->soft);
    int64_t interval = limit / 1024 < INTERVAL_MIN   ? INTERVAL_MIN
                       : limit / 1024 > INTERVAL_MAX ? INTERVAL_MAX
                                                     : limit / 1024;
    vmh_holdings *holdings = vmh_holdings_new(task, version, interval);
    if (holdings == NULL)
        return;
    change_watched(1);
    meter->watch = &watch;
    atomic_store_explicit(&meter->holdings, holdings, memory_order_release);
    vmh_memory_bind(meter);
}

void vmh_holders_rearm(vmh_meter *meter)
{
    vmh_holdings *holdings = atomic_load_explicit(&meter->holdings, memory_order_relaxed);
    if (holdings == NULL || !holdings->marked)
        return;
    vmh_holdings_lock(holdings);
    vmh_holdings_unmark(holdings);
    vmh_holdings_unlock(holdings);
}

char *vmh_holders_report(vmh_meter *meter)
{
    vmh_holdings *holdings = atomic_load_explicit(&meter->holdings, memory_order_acquire);
    return holdings == NULL ? NULL : vmh_holdings_report(holdings);
}
