/* Buffers: reference-counted bytes. A buffer is one block that holds header and data (blocks.h); a large one has its
 * data on pages of its own (pages.h). Either way the data never holds what another context left in memory.
 *
 * A buffer that was passed to other contexts has a share for each receiver: a separate header for the same bytes.
 * When the context that pays for the bytes ends, one of the receivers pays from then on. One lock guards the lists of
 * shares and of passed buffers; buffers that are never passed do not take it. */
#include "runtime/blocks.h"
#include "runtime/pages.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "vme_window.h"
#include "vme_writes.h"

enum { PAGES_MIN = 128 << 10 }; /* from this size on, data is on mapped pages: malloc would unmap it at each free */

struct vme_buffer {
    atomic_int refs;
    atomic_int windows; /* open windows on the whole buffer, including those opened through a share */
    atomic_bool frozen;
    atomic_bool crossed; /* passed to another context: may be in a list */
    bool writable;
    int16_t block_class; /* of the block of vme_block_new that is this header, with the data if `pages` is 0; -1: the
                          * header was allocated by calloc */
    void *data;
    size_t size;        /* bytes */
    size_t pages;       /* bytes of mapped pages; 0: none */
    bool inherited;     /* the payer did not allocate it, and may have had access to a part only: its memory is not
                         * cached for the payer */
    vme_context *payer; /* one reference; NULL: not charged. Guarded by the lock once `crossed` is set */
    uint64_t last_write;
    void *owner; /* foreign memory: the argument of `drop` */
    void (*drop)(void *owner);
    /* passed to another context */
    vme_buffer *whole;        /* of a share: the buffer with the bytes, one reference; otherwise NULL */
    vme_context *holder;      /* of a share: the context that holds it, one reference */
    vme_buffer *shares;       /* guarded by the lock */
    vme_buffer *next, **link; /* guarded by the lock: links in the list of whole's shares, or in the payer's list of
                               * crossed buffers; link NULL: in no list */
};

static pthread_mutex_t lists_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&lists_lock); }
static void after_fork(void) { pthread_mutex_unlock(&lists_lock); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, after_fork, after_fork); }

/* Both expect the lock held. */
static void list_add(vme_buffer **list, vme_buffer *buffer)
{
    buffer->next = *list;
    buffer->link = list;
    if (buffer->next != NULL)
        buffer->next->link = &buffer->next;
    *list = buffer;
}

static void list_remove(vme_buffer *buffer)
{
    *buffer->link = buffer->next;
    if (buffer->next != NULL)
        buffer->next->link = buffer->link;
    buffer->link = NULL;
}

/* Allocates a buffer, uncharged. Contents: zeros if `zeroed`, otherwise undefined. NULL: no memory. */
static vme_buffer *block_new(const vme_context *context, size_t bytes, bool zeroed)
{
    size_t block_bytes = sizeof(vme_buffer) + (bytes >= PAGES_MIN ? 0 : VME_ALIGNMENT - 1 + bytes);
    int class = vme_block_class(block_bytes);
    vme_buffer *buffer = vme_block_new(context, class, block_bytes);
    if (buffer == NULL)
        return NULL;
    memset(buffer, 0, sizeof *buffer);
    buffer->block_class = (int16_t)class;
    if (bytes < PAGES_MIN) {
        buffer->data = vme_align((char *)(buffer + 1));
        if (zeroed)
            memset(buffer->data, 0, bytes);
        return buffer;
    }
    buffer->data = vme_pages_new(context, bytes, zeroed, &buffer->pages);
    if (buffer->data == NULL) {
        vme_block_free(context, buffer, class);
        return NULL;
    }
    return buffer;
}

/* A header without a block of its own. NULL: no memory. */
static vme_buffer *header_new(void)
{
    vme_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer != NULL)
        buffer->block_class = -1;
    return buffer;
}

vme_status vme_buffer_new(vme_context *context, size_t bytes, bool zeroed, vme_buffer **result)
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
    buffer->payer = vme_context_ref(context);
    atomic_fetch_add_explicit(&context->buffers, 1, memory_order_relaxed);
    vme_context_note_peak(context);
    if (context->account.made != NULL)
        context->account.made(context->account.owner, buffer, bytes);
    *result = buffer;
    return VME_OK;
}

vme_status vme_buffer_wrap(vme_context *context, void *data, size_t bytes, bool writable, void *owner,
                           void (*drop)(void *owner), vme_buffer **result)
{
    (void)context; /* foreign memory is not charged */
    vme_buffer *buffer = header_new();
    if (buffer == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a buffer's header");
    atomic_init(&buffer->refs, 1);
    buffer->writable = writable;
    buffer->data = data;
    buffer->size = bytes;
    buffer->owner = owner;
    buffer->drop = drop;
    *result = buffer;
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
    if (atomic_load_explicit(&buffer->crossed, memory_order_relaxed)) {
        pthread_mutex_lock(&lists_lock);
        if (buffer->link != NULL)
            list_remove(buffer);
        pthread_mutex_unlock(&lists_lock);
    }
    if (buffer->whole != NULL) {
        vme_context_unref(buffer->holder);
        vme_buffer_unref(buffer->whole);
        free(buffer);
        return;
    }
    vme_context *payer = buffer->payer, *keeper = buffer->inherited ? NULL : payer;
    if (payer != NULL && payer->account.gone != NULL)
        payer->account.gone(payer->account.owner, buffer);
    if (buffer->pages != 0)
        vme_pages_free(keeper, buffer->data, buffer->pages);
    size_t size = buffer->size;
    if (buffer->drop != NULL)
        buffer->drop(buffer->owner);
    if (buffer->block_class >= 0)
        vme_block_free(keeper, buffer, buffer->block_class);
    else
        free(buffer);
    if (payer != NULL) {
        vme_context_release(payer, size);
        atomic_fetch_sub_explicit(&payer->buffers, 1, memory_order_relaxed);
        vme_context_unref(payer);
    }
}

void *vme_buffer_data(const vme_buffer *buffer) { return buffer->data; }
size_t vme_buffer_size(const vme_buffer *buffer) { return buffer->size; }
int vme_buffer_references(const vme_buffer *buffer) { return atomic_load(&buffer->refs); }
vme_buffer *vme_buffer_whole(vme_buffer *buffer) { return buffer->whole != NULL ? buffer->whole : buffer; }

void vme_buffer_note_write(vme_buffer *buffer, uint64_t number) { buffer->last_write = number; }
uint64_t vme_buffer_last_write(const vme_buffer *buffer) { return buffer->last_write; }

void vme_buffer_freeze(vme_buffer *buffer)
{
    buffer = vme_buffer_whole(buffer);
    atomic_store(&buffer->frozen, true);
    atomic_store(&buffer->crossed, true);
    pthread_mutex_lock(&lists_lock);
    if (buffer->payer != NULL && buffer->link == NULL)
        list_add(&buffer->payer->crossed, buffer);
    pthread_mutex_unlock(&lists_lock);
}

bool vme_buffer_writable(vme_buffer *buffer)
{
    vme_buffer *whole = vme_buffer_whole(buffer);
    if (!whole->writable)
        return false;
    if (!atomic_load_explicit(&whole->frozen, memory_order_relaxed))
        return true;
    if (atomic_load_explicit(&whole->refs, memory_order_acquire) != 1
        || atomic_load_explicit(&buffer->refs, memory_order_acquire) != 1)
        return false;
    atomic_store(&whole->frozen, false); /* the caller has the only reference, so no other thread can read the buffer or
                                          * take a reference */
    return true;
}

/* vme_buffer_whole, for const buffers. */
static vme_buffer *whole_of(const vme_buffer *buffer)
{
    return buffer->whole != NULL ? buffer->whole : (vme_buffer *)buffer;
}

void vme_buffer_open_window(vme_buffer *buffer)
{
    atomic_fetch_add_explicit(&whole_of(buffer)->windows, 1, memory_order_relaxed);
}
void vme_buffer_close_window(vme_buffer *buffer)
{
    atomic_fetch_sub_explicit(&whole_of(buffer)->windows, 1, memory_order_release);
}
bool vme_buffer_has_window(const vme_buffer *buffer)
{
    return atomic_load_explicit(&whole_of(buffer)->windows, memory_order_acquire) != 0;
}

vme_status vme_buffer_share(vme_context *holder, vme_buffer *buffer, vme_buffer **result)
{
    vme_buffer *whole = vme_buffer_whole(buffer), *share = header_new();
    if (share == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a buffer's header");
    atomic_init(&share->refs, 1);
    atomic_init(&share->crossed, true);
    share->data = whole->data;
    share->size = whole->size;
    share->whole = vme_buffer_ref(whole);
    share->holder = vme_context_ref(holder);
    pthread_mutex_lock(&lists_lock);
    list_add(&whole->shares, share);
    pthread_mutex_unlock(&lists_lock);
    *result = share;
    return VME_OK;
}

/* Chooses the context that pays from now on, and charges it. NULL: none can pay. Expects the lock held. */
static vme_context *heir_of(const vme_buffer *buffer)
{
    vme_context *host = NULL;
    for (int forced = 0; forced < 2; forced++)
        for (const vme_buffer *share = buffer->shares; share != NULL; share = share->next) {
            vme_context *holder = share->holder;
            if (holder->ended || atomic_load(&share->refs) == 0)
                continue;
            if (holder->account.inherit == NULL)
                host = holder;
            else if (vme_context_inherit(holder, buffer->size, forced))
                return holder;
        }
    if (host != NULL)
        vme_context_inherit(host, buffer->size, true);
    return host;
}

void vme_context_end(vme_context *context)
{
    pthread_mutex_lock(&lists_lock);
    context->ended = true;
    while (context->crossed != NULL) {
        vme_buffer *buffer = context->crossed;
        vme_context *heir = heir_of(buffer);
        list_remove(buffer);
        vme_context_release(context, buffer->size);
        atomic_fetch_sub_explicit(&context->buffers, 1, memory_order_relaxed);
        buffer->payer = heir;
        buffer->inherited = true;
        if (heir != NULL) {
            vme_context_ref(heir);
            atomic_fetch_add_explicit(&heir->buffers, 1, memory_order_relaxed);
            list_add(&heir->crossed, buffer);
        }
        vme_context_unref(context);
    }
    pthread_mutex_unlock(&lists_lock);
    vme_pages_drop(context);
}
