/* The warden's interface to a VM, free of CPython: implemented by vm.c and stop.c, and by a fake in the
 * thread-sanitized unit tests. */
#ifndef VMH_WARDEN_VM_H
#define VMH_WARDEN_VM_H

#include <stdatomic.h>
#include <stdint.h>

#include "lanes/vm.h"

void vmh_vm_link(vmh_vm *vm, vmh_vm **list);
void vmh_vm_unlink(vmh_vm *vm);
vmh_vm *vmh_vm_next(const vmh_vm *vm);
atomic_int *vmh_vm_refs(vmh_vm *vm);
void vmh_vm_unref(vmh_vm *vm);
/* The warden's check: starts, repeats and escalates stops; returns the time of the next check. */
int64_t vmh_vm_check(vmh_vm *vm, int64_t now_ns);

#endif
