/* Charges what SQLite allocates to the VM that asks for it. */
#ifndef VMH_SQLITE_MEMORY_H
#define VMH_SQLITE_MEMORY_H

#include <stdbool.h>

/* Puts our allocator into the SQLite that the native module in the file `path` (NULL: built in) uses, when the core is
 * loaded. Where the host has connections of its own by then, or SQLite hides its functions, its memory is not counted.
 * GIL held. */
void vmh_sqlite_memory_install(const char *path);
bool vmh_sqlite_memory_counted(void);

#endif
