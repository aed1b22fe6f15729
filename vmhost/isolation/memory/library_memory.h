/* Charges what OpenSSL and libzstd ask of the C library by themselves to the VM that asks for it. No Python in here. */
#ifndef VMH_LIBRARY_MEMORY_H
#define VMH_LIBRARY_MEMORY_H

#include <stdbool.h>

/* The native module `name` was loaded from the file `path` (NULL: built in), by any interpreter: from now on the
 * library that it uses is charged, where it is one of those (see library_memory.c) and can be told apart. Cheap when
 * that is done. Threads: any. */
void vmh_library_memory_loaded(const char *name, const char *path);

/* Is it charged? False before it was loaded, and where it cannot be: linked into the interpreter, or its functions not
 * bound yet. */
bool vmh_library_memory_counted(const char *name);

/* Names of the native modules whose library is meant, NULL at the end. */
extern const char *const vmh_library_memory_modules[];

/* The code of malloc interposition. A thread in it may hold a lock of the library that allocates (overflow.h). */
void vmh_library_memory_code(const void **begin, const void **end);

/* The library that holds the address `inside`. False: left as it was. */
bool vmh_library_memory_lead(const void *inside);

#endif
