#include "lanes/clock.h"

#include <errno.h>

int vmh_futex_wait(atomic_uint *word, unsigned expected, int64_t deadline_ns)
{
    struct timespec at, *limit = NULL;
    if (deadline_ns != VMH_FOREVER) {
        at.tv_sec = deadline_ns / 1000000000;
        at.tv_nsec = deadline_ns % 1000000000;
        limit = &at;
    }
    long rc =
        syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, limit, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc == 0 ? 0 : errno;
}

void vmh_futex_wake(atomic_uint *word, int threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, threads, NULL, NULL, 0);
}
