/* Passes large bytes and str to another interpreter together with their memory: the object ends in its interpreter, and
 * its block becomes that of an equal object in the other one. Nothing is copied, and no page is touched.
 *
 * CPython frees the one object and allocates the other as usual; the raw allocator hooks (memory.c) keep the block and
 * return it. This needs CPython's default allocators, which get large blocks straight from malloc: this is tested when
 * the core is loaded, and checked for each value (tracemalloc may have been enabled). */
#ifndef VMH_HANDOVER_H
#define VMH_HANDOVER_H

#include <stdbool.h>

#include "cpython/compat.h"

/* Smaller values are copied: the checks would cost more. */
enum { VMH_LARGE_BYTES = 64 * 1024 };

/* Tests whether it works in this process; once, on the main interpreter. */
void vmh_handover_try(void);

/* Whether `value` is exact bytes or an ASCII str, large, and the caller has the only reference. */
bool vmh_handover_fits(PyObject *value);

/* Takes the block of a value that fits, for vmh_handover_give or free(); the reference is consumed. NULL with
 * SystemError: the value is lost. */
void *vmh_handover_take(PyObject *value);

/* Creates bytes (or an ASCII str) of `size` from the block of one. NULL with MemoryError: the caller keeps the block.
 */
PyObject *vmh_handover_give(void *block, size_t size, bool text);

#endif
