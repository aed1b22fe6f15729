/* The end of a VM thread's C stack: a VM that runs over it is lost, the process lives.
 *
 *   low                                                      high
 *   [ system's guard | yellow zone | 16 KiB | 16 KiB | stack ... ]
 *                                  |        soft limit: CPython raises RecursionError below it
 *                                  hard limit: CPython aborts the process where it finds itself below it
 *
 * CPython counts most of its recursion against these limits, but not all: nested iterators, partials and generic
 * aliases go on to the end of the stack. What lies below the hard limit, which nobody may use, is therefore closed (the
 * yellow zone). A thread that touches it is parked in the signal handler, for ever, if it can be told that it holds
 * nothing of the process. Where it cannot (in malloc, most often) a page is opened and it goes on: to the next page, to
 * the allocator hook on its way out of malloc, or back up. When all is used up, the system's guard ends the process as
 * it always did.
 */
#ifndef VMH_OVERFLOW_H
#define VMH_OVERFLOW_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/vm.h"

/* Once per process, before its first VM: learns where CPython's and our own code lies. */
void vmh_overflow_install(void);
/* Treats code from `begin` to `end` of our own object as a library's: a thread in it may hold that library's locks.
 * Three times at most, before the first VM. */
void vmh_overflow_leave_out(const void *begin, const void *end);
/* On a thread of `vm`, its GIL held and its thread state current: closes the yellow zone. Does nothing where the
 * stack's bounds are not known: an overflow then ends the process. */
void vmh_overflow_guard(vmh_vm *vm);
/* On the same thread, near the top of its stack: closes again what was opened. Cheap when nothing was. */
void vmh_overflow_renew(void);
/* Before the thread ends: its stack goes back as it came. */
void vmh_overflow_unguard(void);

/* In an allocator hook, on the way back to CPython: parks the thread if it is in the zone. One thread-local load when
 * it never was. */
extern _Thread_local volatile bool vmh_overflow_seen __attribute__((tls_model("initial-exec")));
void vmh_overflow_land(void);
static inline void vmh_overflow_check(void)
{
    if (__builtin_expect(vmh_overflow_seen, 0))
        vmh_overflow_land();
}

/* Bytes between the caller's frame and the end of what this thread may use of its stack; SIZE_MAX where that is not
 * known. */
size_t vmh_overflow_left(void);

/* In the handler of SIGSEGV, on the alternate stack. True: the thread may go on. False: not our affair. Does not return
 * when the thread is parked: then its VM is lost, and the warden knows. */
bool vmh_overflow_fault(const siginfo_t *info, const void *context);

#endif
