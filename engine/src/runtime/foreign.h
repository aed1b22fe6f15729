/* Foreign libraries run on threads of the engine: see foreign.c. */
#ifndef VME_FOREIGN_H
#define VME_FOREIGN_H

#include "runtime/internal.h"

/* Works on the block, on a thread with 8 MiB of stack, and checks `abandoned` where it can. It charges what it
 * allocates to the context, and frees it. */
typedef vme_status vme_foreign_work(vme_context *context, void *block, const atomic_bool *abandoned);

/* Runs work(block) on another thread and waits for it. The CPU time is charged to the context. `*block` comes from
 * vme_scratch_new and has `bytes` bytes. The caller keeps it, unless the context is stopped meanwhile: then the thread
 * takes it over, `*block` is set to NULL and the status is VME_STOPPED. */
vme_status vme_foreign(vme_context *context, vme_foreign_work *work, void **block, size_t bytes);

/* memcpy in pieces, for copies in foreign work. False: stopped between two pieces. */
bool vme_foreign_copy(const vme_context *context, void *to, const void *from, size_t bytes);

#endif
