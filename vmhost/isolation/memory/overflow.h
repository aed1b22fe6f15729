/* Stack overflow of a VM's thread: the VM is lost, the process lives.
 *
 *   low                                                      high
 *   [ system's guard | yellow zone | 16 KiB | 16 KiB | stack ... ]
 *                                  |        soft limit: CPython raises RecursionError below it
 *                                  hard limit: CPython aborts the process if it finds itself below it
 *
 * CPython checks most of its recursion against these limits, but not all: nested iterators, partials and generic
 * aliases recurse to the end of the stack. The stack below the hard limit, which must not be used, is therefore
 * protected (the yellow zone). A thread that touches it is parked in the signal handler for good, if it certainly holds
 * nothing that the process needs. Otherwise (most often in malloc) a page is opened and it continues: to the next page,
 * to the allocator hook on its way out of malloc, or back up the stack. When the zone is used up, the system's guard
 * page ends the process.
 */
#ifndef VMH_OVERFLOW_H
#define VMH_OVERFLOW_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/vm.h"

/* Once per process, before its first VM: finds the code of CPython and of this module. */
void vmh_overflow_install(void);
/* Treats code from `begin` to `end` of our own object as a library's: a thread in it may hold that library's locks.
 * Three times at most, before the first VM. */
void vmh_overflow_leave_out(const void *begin, const void *end);
/* First on a new thread of a VM: the C library reuses stacks of ended threads, so gives back to the system what their
 * VMs left below the caller's frame. */
void vmh_overflow_fresh(void);
/* On a thread of `vm`, with its GIL held and its thread state current: protects the yellow zone. Does nothing if the
 * stack's bounds are unknown: an overflow then ends the process. */
void vmh_overflow_guard(vmh_vm *vm);
/* On the same thread, near the top of its stack: protects opened pages again. Cheap if there are none. */
void vmh_overflow_renew(void);
/* Call before the thread ends: removes the protection. */
void vmh_overflow_unguard(void);

/* In an allocator hook, on the way back to CPython: parks the thread if it is in the zone. Costs one thread-local load
 * if it never was. */
extern _Thread_local volatile bool vmh_overflow_seen __attribute__((tls_model("initial-exec")));
void vmh_overflow_land(void);
static inline void vmh_overflow_check(void)
{
    if (__builtin_expect(vmh_overflow_seen, 0))
        vmh_overflow_land();
}

/* Bytes of stack left to this thread below the caller's frame; SIZE_MAX if unknown. */
size_t vmh_overflow_left(void);

/* In the handler of SIGSEGV, on the alternate stack. True: the thread may continue. False: the fault is no stack
 * overflow. Does not return if the thread is parked: then its VM is lost, and the warden has been told. */
bool vmh_overflow_fault(const siginfo_t *info, const void *context);

#endif
