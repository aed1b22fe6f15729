/* Memory of buffers that are not small: pages straight from the system, huge ones for large buffers, which a buffer's
 * end does not give back at once. Clearing fresh pages takes the system longer than most operators take, so some are
 * kept for the next buffer of that size of the same context; another one never gets them, for it would see what was in
 * there. Any thread. */
#ifndef VME_PAGES_H
#define VME_PAGES_H

#include "runtime/internal.h"

/* Undefined or zero; `*pages`: the bytes that vme_pages_free takes. NULL: no memory. */
void *vme_pages_new(const vme_context *context, size_t bytes, bool zeroed, size_t *pages);
/* `context` NULL: nobody may have them next, they go back to the system. */
void vme_pages_free(const vme_context *context, void *data, size_t pages);
/* Gives back what is kept for a context: it ends. */
void vme_pages_drop(const vme_context *context);

#endif
