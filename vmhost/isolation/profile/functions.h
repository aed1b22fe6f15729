/* Functions of tasks by name, and a hash index: the basis of profiles and coverage. No Python in here. */
#ifndef VMH_FUNCTIONS_H
#define VMH_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VMH_FUNCTIONS_MAX = 1 << 16 };

/* A hash table with open addressing, from keys of three words to indices. */
typedef struct vmh_index {
    struct {
        uint64_t key[3];
        int32_t value; /* -1: free */
    } *slots;
    size_t size, used; /* size: a power of 2, or 0 */
} vmh_index;

/* -1: the key is missing. */
int32_t vmh_index_find(const vmh_index *index, const uint64_t key[3]);
/* `key` must be new. False: no memory, and nothing has changed. */
bool vmh_index_insert(vmh_index *index, const uint64_t key[3], int32_t value);

typedef struct vmh_function {
    char *file, *name; /* owned */
    int first_line;
    size_t lines_size;
    unsigned char *lines; /* its line table; owned; NULL: none */
} vmh_function;

typedef struct vmh_functions {
    vmh_function *items; /* owned */
    int32_t count;
    size_t room;
    vmh_index names;
} vmh_functions;

/* The function with these names, created if new. A new one takes over *lines, which may be NULL, and sets it to NULL.
 * Functions whose names have equal 64-bit hashes count as one. -1: no room. */
int32_t vmh_function_of(vmh_functions *functions, const char *file, const char *name, int first_line,
                        unsigned char **lines, size_t lines_size);
void vmh_functions_clear(vmh_functions *functions);

/* Grows `items` of `size` bytes to hold one more; NULL: no memory, and `items` is unchanged. */
void *vmh_grown(void *items, size_t *room, int32_t count, size_t size);

#endif
