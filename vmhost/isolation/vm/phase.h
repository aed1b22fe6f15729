/* Phases: what a VM's thread is doing, and until when. A phase has a generation; a stop is meant for one. */
#ifndef VMH_PHASE_H
#define VMH_PHASE_H

#include "lanes/lane.h"

/* Everything but IDLE can be stopped. */
enum vmh_phase { VMH_PHASE_IDLE, VMH_PHASE_BOOT, VMH_PHASE_LOAD, VMH_PHASE_CALL, VMH_PHASE_END };

/* Guarded by the VM's life lock. */
typedef struct vmh_phase_state {
    enum vmh_phase which;
    int64_t generation; /* even while idle */
    vmh_call *call;     /* phase CALL; the worker's reference */
    int64_t deadline_ns, start_ns, cpu_limit_ns, cpu_start_ns;
    int64_t end_starved_ns; /* phase END: what its thread had waited for a core when it began */
} vmh_phase_state;

const char *vmh_phase_name(enum vmh_phase phase);

/* A phase begins and ends on the VM's thread, GIL held. end: true when a stop was delivered in it (*kind says why). */
void vmh_phase_begin(vmh_vm *vm, enum vmh_phase phase, vmh_call *call, int64_t deadline_ns, int64_t cpu_limit_ns);
bool vmh_phase_end(vmh_vm *vm, enum vmh_kind *kind);

#endif
