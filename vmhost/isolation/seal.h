/* Sealing, as the thread of a VM sees it: what turns a fresh interpreter into one that runs bundles and nothing else. */
#ifndef VMH_SEAL_H
#define VMH_SEAL_H

#include "compat.h"
#include "vm.h"

/* In a fresh interpreter, GIL held: adds the native functions of importer, gates and waits to `native` (the `_vmhost` module),
 * runs `vmhost.guest.boot` of the system image and seals. Returns its result, a new reference to a tuple of callables
 * (entry_for(name) -> callable, report(exc) -> dict, finish() -> None), or NULL with an error set. */
PyObject *vmh_seal_boot(vmh_vm *vm, PyObject *native);

/* Once per process, main interpreter: the audit hook. 0, or -1 with an error set. */
int vmh_audit_install(void);

#endif
