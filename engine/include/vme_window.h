/* Windows on a buffer: while a window is open, code outside the engine (through a memoryview or a DLPack tensor) may
 * write the bytes at any time. Such a buffer is passed to other contexts as a copy, because freezing it would not stop
 * the writer. */
#ifndef VME_WINDOW_H
#define VME_WINDOW_H

#include "vme.h"

/* The opener keeps a reference until it closes the window. A window on a share is a window on its whole buffer.
 * Callable from any thread. */
VME_API void vme_buffer_open_window(vme_buffer *buffer);
VME_API void vme_buffer_close_window(vme_buffer *buffer);
VME_API bool vme_buffer_has_window(const vme_buffer *buffer);

#endif
