/* The interface of sealing for threads.c, guest.c and core.c: it restricts a fresh interpreter to running bundles. */
#ifndef VMH_SEAL_H
#define VMH_SEAL_H

#include "cpython/compat.h"
#include "lanes/code_store.h"
#include "lanes/vm.h"

/* Puts the gates of static types into their slots, which all interpreters share. In the interpreter that starts VMs,
 * before the first: its boot would do that too, but while others read the slots. 0, or -1 with a Python error set. */
int vmh_seal_prepare(void);

/* All on the VM's thread, with the GIL held; 0, or -1 with a Python error set. */

/* For a fresh interpreter: adds the native functions of importer, gates and waits to `native` (the `_vmhost` module),
 * runs `vmhost.guest.boot` of the system code store, which sets `entry_for(name) -> callable`, `report(exc) -> dict`
 * and `finish() -> None` as attributes of `native`, and arms the audit hook. */
int vmh_seal_boot(vmh_vm *vm, PyObject *native);
/* Sets the task's permissions, when the VM is attached: {"read": [...], ...} with the kinds of bytecode/fields.py
 * (GRANTS). */
int vmh_seal_grant(vmh_vm *vm, PyObject *permissions);
void vmh_seal_task(vmh_vm *vm, vmh_code_store *task);
/* Ends the recording of a call: clocks and randomness are real again. On the VM's thread, with the GIL held. */
void vmh_recording_stop(void);
/* After the interpreter has ended; no GIL. */
void vmh_seal_free(vmh_vm *vm);

/* Wakes every thread of `vm` that is in a wait of waits.c. Called by the warden, without any GIL. */
void vmh_waits_interrupt(vmh_vm *vm);

/* Once per process, main interpreter. */
int vmh_audit_install(void);

#endif
