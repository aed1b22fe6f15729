/* Sealing, as threads.c, guest.c and core.c see it: what turns a fresh interpreter into one that runs bundles and
 * nothing else. */
#ifndef VMH_SEAL_H
#define VMH_SEAL_H

#include "cpython/compat.h"
#include "lanes/code_store.h"
#include "lanes/vm.h"

/* All on the VM's thread, GIL held; 0, or -1 with a Python error set. */

/* In a fresh interpreter: adds the native functions of importer, gates and waits to `native` (the `_vmhost` module),
 * runs `vmhost.guest.boot` of the system code store, which leaves `entry_for(name) -> callable`, `report(exc) -> dict`
 * and `finish() -> None` as attributes of `native`, and arms the audit hook. */
int vmh_seal_boot(vmh_vm *vm, PyObject *native);
/* When the VM is attached: what the task may do, {"read": [...], ...} with the kinds of bytecode/fields.py (GRANTS). */
int vmh_seal_grant(vmh_vm *vm, PyObject *permissions);
void vmh_seal_task(vmh_vm *vm, vmh_code_store *task);
/* The call that was recorded is over: clocks and randomness are real again. On the VM's thread, GIL held. */
void vmh_recording_stop(void);
/* When the interpreter is gone; no GIL. */
void vmh_seal_free(vmh_vm *vm);

/* Wakes every thread of `vm` that is in a wait of ours (waits.c). The warden calls it, without any GIL. */
void vmh_waits_interrupt(vmh_vm *vm);

/* Once per process, main interpreter. */
int vmh_audit_install(void);

#endif
