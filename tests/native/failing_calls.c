/* Every allocation, and every read and write of a file at an offset, goes through here in the fault tests (linked with
 * --wrap), so that one of them can fail. Helper threads allocate and read, too. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>
#include <unistd.h>

#include "check.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __real_pwrite(int file, const void *from, size_t bytes, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset);

/* The number of the failing call of its kind. */
typedef struct {
    atomic_long left; /* how many go well before it; -1: none fails */
    atomic_int failed;
} countdown;

static countdown allocations = {.left = -1}, accesses = {.left = -1};

static int start(countdown *kind, long after)
{
    int before = atomic_load(&kind->failed);
    atomic_store(&kind->left, after);
    atomic_store(&kind->failed, 0);
    return before;
}

static int fails(countdown *kind)
{
    if (atomic_load(&kind->left) < 0 || atomic_fetch_sub(&kind->left, 1) != 0)
        return 0;
    atomic_store(&kind->failed, 1);
    atomic_store(&kind->left, -1);
    return 1;
}

/* ---- allocations */

int failing_malloc(long after) { return start(&allocations, after); }

void *__wrap_malloc(size_t size) { return fails(&allocations) ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails(&allocations) ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *memory, size_t size) { return fails(&allocations) ? NULL : __real_realloc(memory, size); }
char *__wrap_strndup(const char *text, size_t size) { return fails(&allocations) ? NULL : __real_strndup(text, size); }
char *__wrap_strdup(const char *text) { return fails(&allocations) ? NULL : __real_strdup(text); }
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails(&allocations) ? NULL : __real_aligned_alloc(alignment, size);
}

/* ---- files */

int failing_files(long after) { return start(&accesses, after); }

/* Sometimes in pieces and interrupted, as the system may do it. */
static size_t some(size_t bytes)
{
    static atomic_uint calls;
    return atomic_fetch_add(&calls, 1) % 3 == 0 && bytes > 100 ? 100 : bytes;
}

static ssize_t refused(int error)
{
    errno = error;
    return -1;
}

ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset)
{
    return fails(&accesses) ? refused(EIO) : __real_pread(file, to, some(bytes), offset);
}

ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset)
{
    return fails(&accesses) ? refused(ENOSPC) : __real_pwrite(file, from, some(bytes), offset);
}
