/* Work of foreign libraries on threads of the engine's own: see foreign.c. */
#ifndef VME_FOREIGN_H
#define VME_FOREIGN_H

#include "runtime/internal.h"

/* Works on the block, on a thread with 8 MiB of stack, and looks at `abandoned` where it can. What it allocates itself
 * it charges to the context and frees. */
typedef vme_status vme_foreign_work(vme_context *context, void *block, const atomic_bool *abandoned);

/* Runs work(block) on another thread and waits for it; its CPU is the context's. `*block` is vme_scratch_new's, of
 * `bytes`; it stays the caller's, but when the context is stopped meanwhile: then it is NULL, belongs to the thread,
 * and the status is VME_STOPPED. */
vme_status vme_foreign(vme_context *context, vme_foreign_work *work, void **block, size_t bytes);

/* memcpy in pieces, for the copies that foreign work needs: false when a stop came between two. */
bool vme_foreign_copy(const vme_context *context, void *to, const void *from, size_t bytes);

#endif
