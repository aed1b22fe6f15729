/* Every read and write of a file by the engine goes through here in its tests (linked with --wrap). */
#include <errno.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

#include "check.h"

ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __real_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset);

static atomic_long countdown = -1;
static atomic_int failed;

int failing_files(long after)
{
    int before = failed;
    countdown = after;
    failed = 0;
    return before;
}

static int fails(int error)
{
    if (atomic_load(&countdown) < 0 || atomic_fetch_sub(&countdown, 1) != 0)
        return 0;
    failed = 1;
    countdown = -1;
    errno = error;
    return 1;
}

/* In pieces and interrupted now and then, as the system may do it. */
static size_t some(size_t bytes)
{
    static atomic_uint calls;
    return atomic_fetch_add(&calls, 1) % 3 == 0 && bytes > 100 ? 100 : bytes;
}

ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset)
{
    return fails(EIO) ? -1 : __real_pread(file, to, some(bytes), offset);
}

ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset)
{
    return fails(ENOSPC) ? -1 : __real_pwrite(file, from, some(bytes), offset);
}
