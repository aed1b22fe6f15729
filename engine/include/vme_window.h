/* Windows on a buffer: code outside of the engine was given its bytes to write (a memoryview, a DLPack tensor), and
 * writes at any time. While one is open, the buffer is passed to other contexts as a copy: freezing would not stop that
 * writer. */
#ifndef VME_WINDOW_H
#define VME_WINDOW_H

#include "vme.h"

/* The opener holds the buffer until it closes the window. Windows on a share are windows on its whole. Any thread. */
VME_API void vme_buffer_open_window(vme_buffer *buffer);
VME_API void vme_buffer_close_window(vme_buffer *buffer);
VME_API bool vme_buffer_has_window(const vme_buffer *buffer);

#endif
