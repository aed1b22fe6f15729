/* Charges what SQLite allocates to the VM that asks for it. */
#ifndef VMH_SQLITE_MEMORY_H
#define VMH_SQLITE_MEMORY_H

/* Puts our allocator into the SQLite that the native module in the file `path` (NULL: built in) uses; once per process, when
 * the core is loaded. Does nothing where the host has initialised SQLite itself already, or hides its functions: then its
 * memory is not counted. Any thread. */
void vmh_sqlite_memory_install(const char *path);

#endif
