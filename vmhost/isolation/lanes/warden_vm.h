/* What the warden needs of a VM, apart from CPython: vm.c and stop.c give it; the thread-sanitized unit tests give a
 * fake. */
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
/* The warden's look: starts, repeats and escalates stops; when to look again. */
int64_t vmh_vm_check(vmh_vm *vm, int64_t now_ns);

#endif
