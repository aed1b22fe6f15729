/* Charges the memory that OpenSSL and libzstd get from the C library to the VM that uses them. No Python in here. */
#ifndef VMH_LIBRARY_MEMORY_H
#define VMH_LIBRARY_MEMORY_H

#include <stdbool.h>

/* Call when any interpreter has loaded the native module `name` from the file `path` (NULL: built in). If it is one of
 * vmh_library_memory_modules, and its library can be identified, the library is charged from now on. Later calls are
 * cheap. Any thread. */
void vmh_library_memory_loaded(const char *name, const char *path);

/* Whether the module's library is charged. False before it was loaded, and if it cannot be: linked into the
 * interpreter, or its functions not bound yet. */
bool vmh_library_memory_counted(const char *name);

/* The names of the native modules with such a library; NULL at the end. */
extern const char *const vmh_library_memory_modules[];

/* The bounds of the code of malloc interposition. A thread in it may hold a lock of the calling library (overflow.h).
 */
void vmh_library_memory_code(const void **begin, const void **end);

/* Interposes the library that contains the address `inside`. False: it was left unchanged. */
bool vmh_library_memory_interpose(const void *inside);

#endif
