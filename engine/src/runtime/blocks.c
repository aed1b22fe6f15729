/* Blocks, and what each thread keeps of them (blocks.h). */
#include "runtime/blocks.h"

#include <pthread.h>
#include <string.h>

/* Under the address sanitizer, blocks have their own size and are never kept, so that wrong accesses are seen. */
#ifdef __SANITIZE_ADDRESS__
enum { EXACT = true };
#else
enum { EXACT = false };
#endif
enum { CALLOC_MIN = 1 << 10 }; /* from this size on, calloc is used: it need not zero fresh pages */

_Thread_local vme_blocks *vme_blocks_own __attribute__((tls_model("initial-exec")));
uint32_t vme_block_bytes[VME_BLOCK_CLASSES];
static pthread_key_t at_exit;
static bool has_key;

static void empty(vme_blocks *own)
{
    for (int class = 0; class < VME_BLOCK_CLASSES; class++)
        for (vme_block *block = own->first[class], *next; block != NULL; block = next) {
            next = block->next;
            free(block);
        }
    *own = (vme_blocks){.room = VME_BLOCKS_KEPT_MAX};
}

static void thread_ends(void *own)
{
    vme_blocks_own = NULL;
    empty(own);
    free(own);
}

__attribute__((constructor)) static void begin(void)
{
    for (int class = 0; class < VME_BLOCK_CLASSES; class++) {
        int steps = class + VME_BLOCK_SHIFT_MIN * VME_BLOCK_STEPS - 1;
        vme_block_bytes[class] =
            VME_BLOCK_OVERHEAD
            + ((uint32_t)(steps % VME_BLOCK_STEPS + VME_BLOCK_STEPS + 1) << (steps / VME_BLOCK_STEPS - 3));
    }
    has_key = pthread_key_create(&at_exit, thread_ends) == 0;
}

/* From now on this thread keeps blocks of the context, if it can. */
static void keep_for(const vme_context *context)
{
    vme_blocks *own = vme_blocks_own;
    if (own == NULL && has_key && (own = calloc(1, sizeof *own)) != NULL && pthread_setspecific(at_exit, own) != 0) {
        free(own);
        own = NULL;
    }
    if (own == NULL)
        return;
    empty(own);
    own->context = context->number;
    vme_blocks_own = own;
}

void *vme_block_from_system(const vme_context *context, int class, size_t bytes)
{
    if (EXACT)
        return calloc(1, bytes);
    if (vme_blocks_own == NULL || vme_blocks_own->context != context->number)
        keep_for(context);
    bytes = vme_block_bytes[class];
    if (bytes >= CALLOC_MIN)
        return calloc(1, bytes);
    void *block = malloc(bytes); /* calloc does not use glibc's cache of the thread */
    return block == NULL ? NULL : memset(block, 0, bytes);
}

void vme_blocks_drop(const vme_context *context)
{
    if (vme_blocks_own != NULL && vme_blocks_own->context == context->number)
        empty(vme_blocks_own);
}
