/* A fake VM for the warden: it counts looks and asks for another one. */
#include "fake_vm.h"

#include <stdlib.h>

void vmh_vm_link(vmh_vm *vm, vmh_vm **list)
{
    vm->next = *list;
    vm->link = list;
    if (*list != NULL)
        (*list)->link = &vm->next;
    *list = vm;
}

void vmh_vm_unlink(vmh_vm *vm)
{
    *vm->link = vm->next;
    if (vm->next != NULL)
        vm->next->link = vm->link;
}

vmh_vm *vmh_vm_next(const vmh_vm *vm) { return vm->next; }
atomic_int *vmh_vm_refs(vmh_vm *vm) { return &vm->refs; }

void vmh_vm_unref(vmh_vm *vm)
{
    if (atomic_fetch_sub(&vm->refs, 1) != 1)
        return;
    vmh_warden_remove_vm(vm);
    free(vm);
}

int64_t vmh_vm_check(vmh_vm *vm, int64_t now_ns)
{
    atomic_fetch_add(&vm->looks, 1);
    return now_ns + 2000000;
}
