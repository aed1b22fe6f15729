/* Foreign libraries run on threads of the engine: see foreign.c. */
#ifndef VME_FOREIGN_H
#define VME_FOREIGN_H

#include "runtime/internal.h"

/* The work: computes on the block, on a thread with a stack of 8 MiB, and checks `abandoned` where it can. It charges
 * its own allocations to the context, and frees them. */
typedef vme_status vme_foreign_work(vme_context *context, void *block, const atomic_bool *abandoned);

/* Runs the work on another thread and waits for it. The CPU time is charged to the context. `*block` comes from
 * vme_scratch_new and has `bytes` bytes. It stays the caller's, unless the context is stopped meanwhile: then the
 * thread owns it, `*block` is set to NULL and the status is VME_STOPPED. */
vme_status vme_foreign(vme_context *context, vme_foreign_work *work, void **block, size_t bytes);

/* memcpy that checks the stop flag every 256 KiB, for copies around foreign work. False: stopped. */
bool vme_foreign_copy(const vme_context *context, void *to, const void *from, size_t bytes);

#endif
