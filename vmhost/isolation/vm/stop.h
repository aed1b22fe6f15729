/* A VM's stop: what the warden knows of the one that is under way, and what it does when that is not heard. */
#ifndef VMH_STOP_H
#define VMH_STOP_H

#include "cpython/compat.h"
#include "lanes/vm.h"

typedef struct vmh_stop {
    atomic_bool under_way;  /* vmh_vm_stopping */
    atomic_int pending_out; /* pending calls added and not run yet */
    int fd;                 /* eventfd, readable while under way; never changes */

    /* guarded by the VM's life lock */
    int64_t generation; /* of the phase that it is for */
    enum vmh_kind kind;
    int64_t since_ns, next_inject_ns, inject_gap_ns;
    bool delivered;
    bool answered_for;          /* the warden has answered its call, as grace was over: it serves no more */
    int parked_after;           /* injections left before a quarantined VM is parked */
    bool parked;                /* it runs no more, for good */
    const char *quarantined_in; /* phase name; NULL: it was not given up */

    PyObject *error; /* what is injected; one reference, from the boot to the last part of the end */
} vmh_stop;

/* An idle VM was asked to do something, and has not begun. Guarded by the VM's life lock. */
typedef struct vmh_asked {
    int64_t seen_ns; /* when the warden first saw it; 0: it was not asked */
    int64_t generation, handed_ns;
} vmh_asked;

/* However busy the machine is, a VM that does not unwind is given up: its grace is put off by this at most. Its caller
 * never waits for that. */
#define VMH_STARVED_MAX_NS INT64_C(5000000000)

/* The VM is quarantined, since it did not unwind from `where`. Life lock held. */
void vmh_vm_give_up(vmh_vm *vm, const char *where);
/* Sleeps for ever, holding the VM's GIL: what a quarantined VM that cannot be unwound ends in. It burns nothing and,
 * being inside a pending call, holds no lock of the process. */
void vmh_vm_park(void);

#endif
