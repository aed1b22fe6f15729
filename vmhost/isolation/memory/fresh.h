/* Memory of the C library for a VM: it shows nothing of what another VM, or the host, left in it. */
#ifndef VMH_MEMORY_FRESH_H
#define VMH_MEMORY_FRESH_H

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* calloc skips fresh pages, which matters for large blocks. For small ones, malloc is faster: glibc's calloc does not
 * use the cache of the thread. */
enum { VMH_FRESH_CALLOC_MIN = 16 << 10 };

static inline void *vmh_fresh_new(size_t bytes)
{
    if (bytes >= VMH_FRESH_CALLOC_MIN)
        return calloc(1, bytes);
    void *block = malloc(bytes);
    return block == NULL ? NULL : memset(block, 0, bytes);
}

/* After realloc: clears what the block has gained. `before`: its malloc_usable_size before. */
static inline void vmh_fresh_grown(void *block, size_t before)
{
    size_t after = malloc_usable_size(block);
    if (after > before)
        memset((char *)block + before, 0, after - before);
}

#endif
