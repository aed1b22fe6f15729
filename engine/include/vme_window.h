/* Windows on a buffer: somebody outside of the engine was given its bytes to write (a memoryview, a DLPack tensor), and
 * asks nobody when. While one is open, what crosses a wall is a copy: freezing would not stop that writer.
 */
#ifndef VME_WINDOW_H
#define VME_WINDOW_H

#include "vme.h"

/* Who opens one holds the buffer until it is closed. A share's windows are its whole's. Any thread. */
VME_API void vme_buffer_open_window(vme_buffer *buffer);
VME_API void vme_buffer_close_window(vme_buffer *buffer);
VME_API bool vme_buffer_has_window(const vme_buffer *buffer);

#endif
