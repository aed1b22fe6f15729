/* A shared library that uses malloc only, like OpenSSL and libzstd. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "greedy_library.h"

void *greedy_malloc(size_t size) { return malloc(size); }
void *greedy_calloc(size_t count, size_t size) { return calloc(count, size); }
void *greedy_realloc(void *memory, size_t size) { return realloc(memory, size); }
void greedy_free(void *memory) { free(memory); }
char *greedy_copy(const char *text) { return strdup(text); }

void *greedy_aligned(size_t alignment, size_t size)
{
    void *memory;
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
}

static void *work(void *allocated)
{
    *(void **)allocated = malloc(5000);
    return NULL;
}

void *greedy_on_a_thread(void)
{
    pthread_t thread;
    void *allocated = NULL;
    if (pthread_create(&thread, NULL, work, &allocated) == 0)
        pthread_join(thread, NULL);
    return allocated;
}
