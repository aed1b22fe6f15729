#ifndef VMH_TEST_FAKE_VM_H
#define VMH_TEST_FAKE_VM_H

#include "lanes/warden.h"
#include "lanes/warden_vm.h"

struct vmh_vm {
    atomic_int refs, looks;
    struct vmh_vm *next, **link;
};

#endif
