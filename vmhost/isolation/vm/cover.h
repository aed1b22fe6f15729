/* Coverage of what a task runs in this VM, by sys.monitoring, for a share of its calls. All on the VM's thread, its GIL
 * held. */
#ifndef VMH_COVER_H
#define VMH_COVER_H

#include "cpython/compat.h"
#include "lanes/lane.h"

typedef struct vmh_cover {
    PyObject *monitoring; /* the module, which guests do not see; one reference, from the boot to vmh_cover_clear */
    PyObject *disable;    /* what a callback returns to be called no more at that place; NULL: not set up */
    const vmh_lane *lane; /* whose code is looked at; borrowed: the VM serves no other */
    bool failed;          /* it could not be set up, and is not tried again */
    bool on;
    uint64_t state; /* of the numbers that choose calls */
} vmh_cover;

/* Before the VM is sealed. -1: an error is set. */
int vmh_cover_boot(vmh_cover *cover);
void vmh_cover_clear(vmh_cover *cover);

/* Begins to look where the lane asks for it: at each load, and at its share of calls. An error that is set stays. */
void vmh_cover_begin(vmh_cover *cover, const vmh_lane *lane, bool loads);
void vmh_cover_end(vmh_cover *cover);

#endif
