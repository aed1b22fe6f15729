/* The warden: one native thread per process that owns every deadline: queued and running calls, CPU budgets, grace
 * times, boots and endings. It sleeps until the next one; an idle process costs it nothing. No Python in here.
 */
#ifndef VMH_WARDEN_H
#define VMH_WARDEN_H

#include <stdbool.h>
#include <stdint.h>

struct vmh_lane;
struct vmh_vm;

/* Starts the thread (once). 0 or an errno. */
int vmh_warden_start(void);
/* Look again at `when_ns` at the latest. Cheap when an earlier look is planned already. */
void vmh_warden_arm(int64_t when_ns);

void vmh_warden_add_lane(struct vmh_lane *lane);
void vmh_warden_remove_lane(struct vmh_lane *lane);
/* The list holds no reference: a VM is removed before it is freed. */
void vmh_warden_add_vm(struct vmh_vm *vm);
void vmh_warden_remove_vm(struct vmh_vm *vm);

/* Calls `visit` with each VM, with a reference on it and no lock held. VMs that are made meanwhile may be missed. */
void vmh_warden_visit_vms(void (*visit)(struct vmh_vm *, void *), void *context);

#endif
