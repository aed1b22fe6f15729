#ifndef VMH_TEST_FAKE_VM_H
#define VMH_TEST_FAKE_VM_H

#include "warden.h"
#include "warden_vm.h"

struct vmh_vm {
    atomic_int refs, looks;
    struct vmh_vm *next, **link;
};

#endif
