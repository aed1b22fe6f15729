#ifndef VMH_TEST_GREEDY_LIBRARY_H
#define VMH_TEST_GREEDY_LIBRARY_H

#include <stddef.h>

void *greedy_malloc(size_t size);
void *greedy_calloc(size_t count, size_t size);
void *greedy_realloc(void *memory, size_t size);
void greedy_free(void *memory);
char *greedy_copy(const char *text);
void *greedy_aligned(size_t alignment, size_t size);
void *greedy_on_a_thread(void); /* a block that a thread of its own asked for */

#endif
