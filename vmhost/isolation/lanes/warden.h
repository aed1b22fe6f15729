/* The warden: one native thread per process that enforces every deadline: queued and running calls, CPU budgets, grace
 * times, boots and endings. It sleeps until the next one, and costs an idle process nothing. No Python in here.
 */
#ifndef VMH_WARDEN_H
#define VMH_WARDEN_H

#include <stdbool.h>
#include <stdint.h>

struct vmh_lane;
struct vmh_vm;

/* Starts the thread (once). 0 or an errno. */
int vmh_warden_start(void);
/* Its priority under a real-time policy (SCHED_FIFO, SCHED_RR), which it inherits from the thread that started it; 0:
 * it has none. */
int vmh_warden_priority(void);
/* Plans a check at `when_ns` at the latest. Cheap if an earlier one is planned. */
void vmh_warden_arm(int64_t when_ns);

void vmh_warden_add_lane(struct vmh_lane *lane);
void vmh_warden_remove_lane(struct vmh_lane *lane);
/* The list holds no reference: a VM is removed before it is freed. */
void vmh_warden_add_vm(struct vmh_vm *vm);
void vmh_warden_remove_vm(struct vmh_vm *vm);

/* Calls `visit` with each VM, holding a reference to it and no lock. VMs created meanwhile may be missed. */
void vmh_warden_visit_vms(void (*visit)(struct vmh_vm *, void *), void *context);

#endif
