/* Coverage of a task's code in one VM, by sys.monitoring, for a share of its calls. Called on the VM's thread with its
 * GIL held. */
#ifndef VMH_COVER_H
#define VMH_COVER_H

#include "cpython/compat.h"
#include "lanes/lane.h"

typedef struct vmh_cover {
    PyObject *monitoring; /* the module, hidden from guests; one reference, from boot to vmh_cover_clear */
    PyObject *disable;    /* what a callback returns to be disabled at that location; NULL: not set up */
    const vmh_lane *lane; /* its code is covered; borrowed: the VM serves no other lane */
    bool failed;          /* set-up failed and is not retried */
    bool on;
    uint64_t state; /* of the random numbers that pick calls */
} vmh_cover;

/* Before the VM is sealed. -1: an error is set. */
int vmh_cover_boot(vmh_cover *cover);
void vmh_cover_clear(vmh_cover *cover);

/* Starts coverage if the lane asks for it: at every load, and for its share of calls. Keeps the error that is set. */
void vmh_cover_begin(vmh_cover *cover, const vmh_lane *lane, bool loads);
void vmh_cover_end(vmh_cover *cover);

#endif
