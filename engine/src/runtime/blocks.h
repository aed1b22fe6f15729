/* Memory below VME_BLOCK_MAX for buffers and scratch: what one context freed never reaches another one as it is. A
 * block comes from the system zeroed. Each thread keeps blocks that its context freed for later requests of the same
 * context, which get them as they are: they are the context's own, so small arrays cost no zeroing.
 *
 *   new   kept block of this context, else malloc, zeroed
 *   free  kept, if this thread keeps blocks of this context, up to VME_BLOCKS_KEPT_MAX bytes; else free
 */
#ifndef VME_BLOCKS_H
#define VME_BLOCKS_H

#include <stdlib.h>

#include "runtime/internal.h"

enum {
    VME_BLOCK_OVERHEAD = 256, /* for headers and alignment, so that data of a power of two in bytes needs no more */
    VME_BLOCK_SHIFT_MIN = 6,  /* the smallest block has 64 bytes of data */
    VME_BLOCK_SHIFT_MAX = 19, /* the largest block has 512 KiB of data */
    VME_BLOCK_STEPS = 8,      /* classes for each power of two */
    VME_BLOCK_CLASSES = (VME_BLOCK_SHIFT_MAX - VME_BLOCK_SHIFT_MIN) * VME_BLOCK_STEPS + 1,
    VME_BLOCK_MAX = (1 << VME_BLOCK_SHIFT_MAX) + VME_BLOCK_OVERHEAD, /* the maximum size in bytes */
    VME_BLOCKS_KEPT_MAX = 1 << 20, /* bytes that a thread keeps; they are not charged */
};

typedef struct vme_block {
    struct vme_block *next;
} vme_block;

/* What a thread keeps. */
typedef struct vme_blocks {
    uint64_t context; /* the number of the context whose blocks these are; 0: none */
    size_t room;      /* bytes that may still be kept */
    vme_block *first[VME_BLOCK_CLASSES];
} vme_blocks;
extern _Thread_local vme_blocks *vme_blocks_own __attribute__((tls_model("initial-exec"))); /* NULL: none */
extern uint32_t vme_block_bytes[VME_BLOCK_CLASSES];                                         /* size of each class */

/* The class of a size of at most VME_BLOCK_MAX: OVERHEAD and 64, 72, 80, ... 128, 144, ... */
static inline int vme_block_class(size_t bytes)
{
    const size_t least = VME_BLOCK_OVERHEAD + (1 << VME_BLOCK_SHIFT_MIN);
    size_t last = (bytes < least ? least : bytes) - VME_BLOCK_OVERHEAD - 1;
    int shift = 63 - __builtin_clzll(last);
    return (shift - VME_BLOCK_SHIFT_MIN) * VME_BLOCK_STEPS + (int)((last >> (shift - 3)) & (VME_BLOCK_STEPS - 1)) + 1;
}

void *vme_block_from_system(const vme_context *context, int class, size_t bytes);

/* A block of the class of `bytes`, aligned as by malloc. Contents: zeros, or what this context left there. NULL: no
 * memory. */
static inline void *vme_block_new(const vme_context *context, int class, size_t bytes)
{
    vme_blocks *own = vme_blocks_own;
    if (__builtin_expect(own != NULL && own->context == context->number && own->first[class] != NULL, 1)) {
        vme_block *block = own->first[class];
        own->first[class] = block->next;
        own->room += vme_block_bytes[class];
        return block;
    }
    return vme_block_from_system(context, class, bytes);
}

/* Context NULL: the block is not kept; this is required if another context may have written to it. */
static inline void vme_block_free(const vme_context *context, void *memory, int class)
{
    vme_blocks *own = vme_blocks_own;
    if (__builtin_expect(own != NULL && context != NULL && own->context == context->number
                             && own->room >= vme_block_bytes[class],
                         1)) {
        vme_block *block = memory;
        block->next = own->first[class];
        own->first[class] = block;
        own->room -= vme_block_bytes[class];
        return;
    }
    free(memory);
}

/* Gives back what this thread keeps of the context. */
void vme_blocks_drop(const vme_context *context);

#endif
