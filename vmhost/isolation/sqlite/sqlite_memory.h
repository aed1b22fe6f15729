/* Charges SQLite's allocations to the VM that makes them. */
#ifndef VMH_SQLITE_MEMORY_H
#define VMH_SQLITE_MEMORY_H

#include <stdbool.h>

/* Sets our allocator in the SQLite of the native module in the file `path` (NULL: built in), when the core is loaded.
 * If the host has connections by then, or SQLite hides its functions, its memory is not counted. GIL held. */
void vmh_sqlite_memory_install(const char *path);
bool vmh_sqlite_memory_counted(void);

#endif
