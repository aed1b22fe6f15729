/* Pages from mmap for buffers, and a cache of freed pages (pages.h). */
#include "runtime/pages.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 2 << 20,         /* size of a huge page: fewer page faults and TLB misses */
    LARGE = 4 << 20,        /* blocks from this size on consist of whole huge pages */
    STEP = 64 << 10,        /* sizes of smaller blocks are multiples of this */
    SPARES = 64,            /* maximum blocks in the cache, process-wide */
    SPARES_MAX = 160 << 20, /* maximum bytes in the cache, process-wide */
};

static struct spare {
    char *data;
    size_t size;
    const vme_context *context;
} spares[SPARES]; /* the cache: from the oldest block to the newest */
static int spare_count;
static size_t spare_bytes;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&spare_lock); }
static void after_fork(void) { pthread_mutex_unlock(&spare_lock); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static struct spare spare_remove(int number)
{
    struct spare removed = spares[number];
    spare_bytes -= removed.size;
    spare_count--;
    memmove(&spares[number], &spares[number + 1], (size_t)(spare_count - number) * sizeof *spares);
    return removed;
}

void *vme_pages_new(const vme_context *context, size_t bytes, bool zeroed, size_t *pages)
{
    const size_t step = bytes >= LARGE ? PAGE : STEP;
    size_t size = (bytes + step - 1) & ~(step - 1);
    struct spare kept = {NULL, 0, NULL};
    pthread_mutex_lock(&spare_lock);
    for (int i = spare_count - 1; i >= 0 && kept.data == NULL; i--)
        if (spares[i].context == context && spares[i].size >= size && spares[i].size - size <= size / 4)
            kept = spare_remove(i);
    pthread_mutex_unlock(&spare_lock);
    if (kept.data != NULL) {
        *pages = kept.size;
        if (zeroed)
            memset(kept.data, 0, bytes);
        return kept.data;
    }
    if (size < LARGE) {
        void *small = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *pages = size;
        return small == MAP_FAILED ? NULL : small;
    }
    char *mapped = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    char *data = (char *)(((uintptr_t)mapped + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    size_t before = (size_t)(data - mapped);
    if (before > 0)
        munmap(mapped, before);
    munmap(data + size, PAGE - before);
    madvise(data, size, MADV_HUGEPAGE); /* a hint only; failure costs speed */
    *pages = size;
    return data;
}

void vme_pages_free(const vme_context *context, void *data, size_t size)
{
    struct spare dropped[SPARES];
    int drops = 0;
    bool keep = context != NULL && size <= SPARES_MAX;
    pthread_mutex_lock(&spare_lock);
    while (keep && (spare_count == SPARES || spare_bytes + size > SPARES_MAX))
        dropped[drops++] = spare_remove(0);
    if (keep) {
        spares[spare_count++] = (struct spare){data, size, context};
        spare_bytes += size;
    }
    pthread_mutex_unlock(&spare_lock);
    if (!keep)
        munmap(data, size);
    while (drops-- > 0)
        munmap(dropped[drops].data, dropped[drops].size);
}

void vme_pages_drop(const vme_context *context)
{
    struct spare dropped[SPARES];
    int drops = 0;
    pthread_mutex_lock(&spare_lock);
    for (int i = spare_count - 1; i >= 0; i--)
        if (spares[i].context == context)
            dropped[drops++] = spare_remove(i);
    pthread_mutex_unlock(&spare_lock);
    while (drops-- > 0)
        munmap(dropped[drops].data, dropped[drops].size);
}
