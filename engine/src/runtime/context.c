/* Contexts: the account for memory and CPU time, and the stop flag. A context lives until the last buffer charged to it
 * is freed. */
#include "runtime/blocks.h"
#include "runtime/pages.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static atomic_ullong next_number = 1;

vme_status vme_context_new(const vme_account *account, unsigned flags, vme_context **result)
{
    vme_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for an engine context");
    atomic_init(&context->refs, 1);
    context->flags = flags;
    context->number = atomic_fetch_add(&next_number, 1);
    if (account != NULL) {
        context->account = *account;
        if (account->retain != NULL)
            account->retain(account->owner);
    }
    *result = context;
    return VME_OK;
}

vme_context *vme_context_ref(vme_context *context)
{
    atomic_fetch_add_explicit(&context->refs, 1, memory_order_relaxed);
    return context;
}

void vme_context_unref(vme_context *context)
{
    if (atomic_fetch_sub_explicit(&context->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (context->account.forget != NULL)
        context->account.forget(context->account.owner);
    vme_blocks_drop(context);
    vme_pages_drop(context);
    free(context);
}

void vme_context_stop(vme_context *context, bool stop)
{
    atomic_store(&context->stopped, stop);
    vme_context_event(context);
}

bool vme_context_stopped(const vme_context *context) { return atomic_load(&context->stopped); }

const char *vme_context_doing(const vme_context *context, uintptr_t thread)
{
    const char *const what = atomic_load(&context->doing);
    return atomic_load(&context->doer) == thread && atomic_load(&context->doing) == what ? what : NULL;
}

/* The name of this thread's operation. vme_context_do returns this name, not the context's: if two threads compute for
 * one context, neither restores the name of an operation of the other that may have ended. */
static _Thread_local const char *doing_here;

const char *vme_context_do(vme_context *context, const char *what)
{
    const char *const before = doing_here;
    const uintptr_t self = (uintptr_t)pthread_self();
    doing_here = what;
    if (atomic_load_explicit(&context->doer, memory_order_relaxed) != self) {
        atomic_store_explicit(&context->doing, NULL, memory_order_release); /* a reader never sees this thread with the
                                                                             * name of another thread's operation */
        atomic_store_explicit(&context->doer, self, memory_order_release);
    }
    atomic_store_explicit(&context->doing, what, memory_order_release);
    return before;
}

vme_status vme_stopped_here(vme_context *context)
{
    atomic_fetch_add_explicit(&context->stops, 1, memory_order_relaxed);
    return vme_fail(VME_STOPPED, "the work was stopped");
}

void vme_context_note_peak(vme_context *context)
{
    long long live = atomic_load_explicit(&context->live, memory_order_relaxed);
    long long peak = atomic_load_explicit(&context->peak, memory_order_relaxed);
    while (live > peak
           && !atomic_compare_exchange_weak_explicit(&context->peak, &peak, live, memory_order_relaxed,
                                                     memory_order_relaxed))
        ;
}

vme_status vme_context_charge(vme_context *context, size_t bytes)
{
    if (context->account.charge != NULL && !context->account.charge(context->account.owner, bytes)) {
        atomic_fetch_add_explicit(&context->refused, 1, memory_order_relaxed);
        return vme_fail(VME_NO_MEMORY, "an array of %zu bytes would pass the memory limit", bytes);
    }
    atomic_fetch_add_explicit(&context->live, (long long)bytes, memory_order_relaxed);
    return VME_OK;
}

bool vme_context_inherit(vme_context *context, size_t bytes, bool forced)
{
    if (context->account.inherit != NULL && !context->account.inherit(context->account.owner, bytes, forced))
        return false;
    atomic_fetch_add_explicit(&context->live, (long long)bytes, memory_order_relaxed);
    vme_context_note_peak(context);
    return true;
}

void vme_context_release(vme_context *context, size_t bytes)
{
    atomic_fetch_sub_explicit(&context->live, (long long)bytes, memory_order_relaxed);
    if (context->account.release != NULL)
        context->account.release(context->account.owner, bytes);
}

/* Precedes scratch memory. */
typedef struct {
    void *memory;
    size_t pages; /* of vme_pages_new; 0: a block of vme_block_new */
    int class;    /* of the block */
} scratch_header;

void *vme_scratch_new(vme_context *context, size_t bytes)
{
    if (bytes > PTRDIFF_MAX / 2) {
        vme_fail(VME_NO_MEMORY, "%zu bytes are more than memory can hold", bytes);
        return NULL;
    }
    if (vme_context_charge(context, bytes) != VME_OK)
        return NULL;
    size_t all = sizeof(scratch_header) + VME_ALIGNMENT - 1 + bytes;
    scratch_header header = {.class = all <= VME_BLOCK_MAX ? vme_block_class(all) : -1};
    header.memory = header.class >= 0 ? vme_block_new(context, header.class, all)
                                      : vme_pages_new(context, all, false, &header.pages);
    if (header.memory == NULL) {
        vme_context_release(context, bytes);
        vme_fail(VME_NO_MEMORY, "the system has no %zu bytes", bytes);
        return NULL;
    }
    vme_context_note_peak(context);
    char *scratch = vme_align((char *)header.memory + sizeof header);
    memcpy(scratch - sizeof header, &header, sizeof header);
    return scratch;
}

void vme_scratch_free(vme_context *context, void *scratch, size_t bytes)
{
    if (scratch == NULL)
        return;
    scratch_header header;
    memcpy(&header, (char *)scratch - sizeof header, sizeof header);
    if (header.pages == 0)
        vme_block_free(context, header.memory, header.class);
    else
        vme_pages_free(context, header.memory, header.pages);
    vme_context_release(context, bytes);
}

void vme_context_statistics(const vme_context *context, vme_statistics *statistics)
{
    *statistics = (vme_statistics){
        .live_bytes = atomic_load(&context->live),
        .peak_bytes = atomic_load(&context->peak),
        .buffers = atomic_load(&context->buffers),
        .operators = atomic_load(&context->operators),
        .stopped = atomic_load(&context->stops),
        .refused = atomic_load(&context->refused),
        .helper_cpu_ns = atomic_load(&context->helper_ns),
    };
}
