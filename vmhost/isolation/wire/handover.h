/* Large bytes and str that leave an interpreter with their memory: the object ends where it was made, its block stays
 * as it is and becomes the block of an equal object in another interpreter. Nothing is copied, no page is touched.
 *
 * CPython frees the one object and allocates the other as ever; the raw allocator hooks (memory.c) keep the block back
 * and hand it out. That needs CPython's default allocators, where large blocks come straight from malloc: it is tried
 * when the core is loaded, and asked for each value (tracemalloc may have been switched on). */
#ifndef VMH_HANDOVER_H
#define VMH_HANDOVER_H

#include <stdbool.h>

#include "cpython/compat.h"

/* Smaller values are copied: two system calls' worth of checks would cost more. */
enum { VMH_LARGE_BYTES = 64 * 1024 };

/* Tries whether it works in this process; once, on the main interpreter. */
void vmh_handover_try(void);

/* Exact bytes, or an ASCII str, large, whose one reference is the caller's. */
bool vmh_handover_fits(PyObject *value);

/* The block of a value that fits, to be given or free()d; the reference is gone. NULL with SystemError: the value is
 * lost. */
void *vmh_handover_take(PyObject *value);

/* Bytes (or ASCII str) of `size` made of the block of one. NULL with MemoryError: the block is still the caller's. */
PyObject *vmh_handover_give(void *block, size_t size, bool text);

#endif
