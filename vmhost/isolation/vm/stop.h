/* The state of a VM's stop: the one in progress, and the escalation if the VM does not react. */
#ifndef VMH_STOP_H
#define VMH_STOP_H

#include "cpython/compat.h"
#include "lanes/vm.h"

typedef struct vmh_stop {
    atomic_bool under_way;  /* vmh_vm_stopping */
    atomic_int pending_out; /* 1: a pending call was added and has not run */
    int fd;                 /* eventfd, readable while under way; never changes */

    /* guarded by the VM's life lock */
    int64_t generation; /* of the phase that is to be stopped */
    enum vmh_kind kind;
    int64_t since_ns, next_inject_ns, inject_gap_ns;
    bool delivered;
    bool answered_for;          /* grace was over and the warden answered its call: it serves no more */
    int parked_after;           /* injections left before a quarantined VM is parked */
    bool parked;                /* suspended for good */
    const char *quarantined_in; /* phase name; NULL: it was not given up */

    PyObject *error; /* the exception that is injected; one reference, from boot to the last part of the end */
} vmh_stop;

/* A request to an idle VM that has not begun on it. Guarded by the VM's life lock. */
typedef struct vmh_asked {
    int64_t seen_ns; /* when the warden first saw it; 0: no request */
    int64_t generation, handed_ns;
} vmh_asked;

/* The maximum by which a VM's grace is extended on a busy machine; then it is given up. Its caller is not delayed by
 * this. */
#define VMH_STARVED_MAX_NS INT64_C(5000000000)

/* Quarantines the VM, because it did not unwind from `where`. Life lock held. */
void vmh_vm_give_up(vmh_vm *vm, const char *where);
/* Suspends the thread for good, with the VM's GIL: the last resort for a quarantined VM that cannot be unwound. It uses
 * no CPU, and holds no process-wide lock, since it is inside a pending call. */
void vmh_vm_park(void);

#endif
