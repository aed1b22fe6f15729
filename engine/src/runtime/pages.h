/* Memory for buffers from 128 KiB on and for large scratch memory: pages from mmap, huge pages for large ones. The
 * system takes longer to clear fresh pages than most operators take to compute. So freed pages are cached for the next
 * request of about that size of the same context. They are never given to another context, which could read their old
 * contents. Thread-safe. */
#ifndef VME_PAGES_H
#define VME_PAGES_H

#include "runtime/internal.h"

/* Contents: zeros if `zeroed`, otherwise undefined. `*pages` receives the size in bytes for vme_pages_free. NULL: no
 * memory. */
void *vme_pages_new(const vme_context *context, size_t bytes, bool zeroed, size_t *pages);
/* Caches the pages for the context; NULL: returns them to the system. */
void vme_pages_free(const vme_context *context, void *data, size_t pages);
/* Returns a context's cached pages to the system, when the context ends. */
void vme_pages_drop(const vme_context *context);

#endif
