/* Buffers: reference-counted bytes. A small one is one block, header and data; a larger one's data is a block of its own, the
 * largest ones' on pages of their own (pages.h). */
#include "pages.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALL_MOST = 4096,              /* bytes of one block with the header */
    PAGES_LEAST = 4 << 20,          /* from here on on pages of its own */
};

struct vme_buffer {
    atomic_int refs;
    atomic_bool frozen;
    bool writable, separate;        /* separate: `data` is a block of its own */
    void *data;
    size_t size;                    /* bytes */
    size_t pages;                   /* bytes of pages of its own; 0: malloc's */
    _Atomic(vme_context *) payer;   /* one reference; NULL: foreign memory */
    void *owner;                    /* foreign: what `drop` takes */
    void (*drop)(void *owner);
};

static char *align(char *address)
{
    return (char *)(((uintptr_t)address + VME_ALIGNMENT - 1) & ~(uintptr_t)(VME_ALIGNMENT - 1));
}

/* A buffer with undefined contents (or zeros), not charged; NULL: no memory. */
static vme_buffer *block_new(const vme_context *context, size_t bytes, bool zeroed)
{
    if (bytes <= SMALL_MOST) {
        vme_buffer *buffer = malloc(sizeof *buffer + VME_ALIGNMENT - 1 + bytes);
        if (buffer == NULL)
            return NULL;
        memset(buffer, 0, sizeof *buffer);
        buffer->data = align((char *)(buffer + 1));
        if (zeroed)
            memset(buffer->data, 0, bytes);
        return buffer;
    }
    vme_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return NULL;
    buffer->separate = true;
    if (bytes >= PAGES_LEAST) {
        buffer->data = vme_pages_new(context, bytes, zeroed, &buffer->pages);
    } else {
        buffer->data = aligned_alloc(VME_ALIGNMENT, (bytes + VME_ALIGNMENT - 1) & ~(size_t)(VME_ALIGNMENT - 1));
        if (buffer->data != NULL && zeroed)
            memset(buffer->data, 0, bytes);
    }
    if (buffer->data == NULL) {
        free(buffer);
        return NULL;
    }
    return buffer;
}

vme_status vme_buffer_new(vme_context *context, size_t bytes, bool zeroed, vme_buffer **made)
{
    if (bytes > PTRDIFF_MAX - ((size_t)4 << 20))
        return vme_fail(VME_NO_MEMORY, "%zu bytes are more than memory can hold", bytes);
    vme_status status = vme_context_charge(context, bytes);
    if (status != VME_OK)
        return status;
    vme_buffer *buffer = block_new(context, bytes, zeroed);
    if (buffer == NULL) {
        vme_context_release(context, bytes);
        return vme_fail(VME_NO_MEMORY, "the system has no %zu bytes for an array", bytes);
    }
    atomic_init(&buffer->refs, 1);
    buffer->writable = true;
    buffer->size = bytes;
    atomic_init(&buffer->payer, vme_context_ref(context));
    atomic_fetch_add_explicit(&context->buffers, 1, memory_order_relaxed);
    *made = buffer;
    return VME_OK;
}

vme_status vme_buffer_wrap(vme_context *context, void *data, size_t bytes, bool writable, void *owner,
                           void (*drop)(void *owner), vme_buffer **made)
{
    (void)context;              /* foreign memory is its owner's to pay */
    vme_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a buffer's header");
    atomic_init(&buffer->refs, 1);
    buffer->writable = writable;
    buffer->data = data;
    buffer->size = bytes;
    buffer->owner = owner;
    buffer->drop = drop;
    *made = buffer;
    return VME_OK;
}

vme_buffer *vme_buffer_ref(vme_buffer *buffer)
{
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return buffer;
}

void vme_buffer_unref(vme_buffer *buffer)
{
    if (atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    vme_context *payer = atomic_load_explicit(&buffer->payer, memory_order_relaxed);
    if (buffer->pages != 0)
        vme_pages_free(payer, buffer->data, buffer->pages);
    else if (buffer->separate)
        free(buffer->data);
    if (payer != NULL) {
        vme_context_release(payer, buffer->size);
        atomic_fetch_sub_explicit(&payer->buffers, 1, memory_order_relaxed);
        vme_context_unref(payer);
    }
    if (buffer->drop != NULL)
        buffer->drop(buffer->owner);
    free(buffer);
}

void *vme_buffer_data(const vme_buffer *buffer) { return buffer->data; }
size_t vme_buffer_size(const vme_buffer *buffer) { return buffer->size; }
int vme_buffer_references(const vme_buffer *buffer) { return atomic_load(&buffer->refs); }
void vme_buffer_freeze(vme_buffer *buffer) { atomic_store(&buffer->frozen, true); }

bool vme_buffer_writable(vme_buffer *buffer)
{
    if (!buffer->writable)
        return false;
    if (!atomic_load_explicit(&buffer->frozen, memory_order_relaxed))
        return true;
    if (atomic_load_explicit(&buffer->refs, memory_order_acquire) != 1)
        return false;
    atomic_store(&buffer->frozen, false);       /* nobody else is left to see it change, and nobody can come */
    return true;
}

vme_status vme_buffer_inherit(vme_buffer *buffer, vme_context *heir)
{
    vme_context *payer = atomic_load(&buffer->payer);
    if (payer == NULL || payer == heir)
        return VME_OK;
    vme_status status = vme_context_charge(heir, buffer->size);
    if (status != VME_OK)
        return status;
    vme_context_ref(heir);
    atomic_fetch_add_explicit(&heir->buffers, 1, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(&buffer->payer, &payer, heir))      /* another heir was first */
        payer = heir;
    vme_context_release(payer, buffer->size);
    atomic_fetch_sub_explicit(&payer->buffers, 1, memory_order_relaxed);
    vme_context_unref(payer);
    return VME_OK;
}
