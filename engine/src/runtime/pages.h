/* Memory for buffers that are not small: pages from mmap, huge pages for large buffers. The kernel takes longer to
 * clear fresh pages than most operators take, so freed pages are cached for the next buffer of that size of the same
 * context. They never go to another context, which could read their old contents. Thread-safe. */
#ifndef VME_PAGES_H
#define VME_PAGES_H

#include "runtime/internal.h"

/* Pages with undefined contents or zeros. `*pages`: the size in bytes, to be passed to vme_pages_free. NULL: no memory.
 */
void *vme_pages_new(const vme_context *context, size_t bytes, bool zeroed, size_t *pages);
/* `context` NULL: the pages are returned to the system instead of being cached. */
void vme_pages_free(const vme_context *context, void *data, size_t pages);
/* Returns the cached pages of a context that ends to the system. */
void vme_pages_drop(const vme_context *context);

#endif
