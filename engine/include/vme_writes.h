/* When a buffer was last written, by its holder's own count of writes; 0 at first. For holders only, one at a time. */
#ifndef VME_WRITES_H
#define VME_WRITES_H

#include "vme.h"

VME_API void vme_buffer_note_write(vme_buffer *buffer, uint64_t number);
VME_API uint64_t vme_buffer_last_write(const vme_buffer *buffer);

#endif
