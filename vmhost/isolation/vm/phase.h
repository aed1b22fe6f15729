/* Phases: what a VM's thread is doing, and its deadline. Each phase has a generation; a stop is for one generation. */
#ifndef VMH_PHASE_H
#define VMH_PHASE_H

#include "lanes/lane.h"

/* Everything but IDLE can be stopped. */
enum vmh_phase { VMH_PHASE_IDLE, VMH_PHASE_BOOT, VMH_PHASE_LOAD, VMH_PHASE_CALL, VMH_PHASE_END };

/* Guarded by the VM's life lock. */
typedef struct vmh_phase_state {
    enum vmh_phase which;
    int64_t generation; /* also counted while idle */
    vmh_call *call;     /* phase CALL; the worker's reference */
    int64_t deadline_ns, start_ns, cpu_limit_ns, cpu_start_ns;
    int64_t end_starved_ns; /* phase END: how long its thread had waited for a core before it began */
} vmh_phase_state;

const char *vmh_phase_name(enum vmh_phase phase);

/* A phase begins and ends on the VM's thread, with the GIL held. end: true if a stop was delivered in it (*kind: why).
 */
void vmh_phase_begin(vmh_vm *vm, enum vmh_phase phase, vmh_call *call, int64_t deadline_ns, int64_t cpu_limit_ns);
bool vmh_phase_end(vmh_vm *vm, enum vmh_kind *kind);

#endif
