/* Creates an interpreter with only what a VM needs.
 *
 * Py_NewInterpreterFromConfig imports the path-based importers, zipimport, the codecs package and `site`, with their
 * native modules: more than half of its time, and objects that most VMs never use. The audit hook sees each import
 * before it happens, on the VM's thread, and puts stand-ins in place of those modules. The stand-ins are removed once
 * the interpreter exists; a later import of one of these modules works like any other.
 *
 * No process-wide state changes: interpreters created by others at the same time are complete.
 */
#ifndef VMH_CREATION_H
#define VMH_CREATION_H

#include "cpython/compat.h"

/* Once per process, in the main interpreter. 0, or -1 with a Python error set. */
int vmh_creation_install(void);

/* On a thread without a thread state; on success *tstate is current, its GIL held, and its garbage collector off. */
PyStatus vmh_creation_make(PyThreadState **tstate);

/* Call when the guest runtime has booted: its objects are permanent, so they are frozen (gc.freeze) and the collector
 * starts … */
void vmh_creation_settle(void);
/* … and unfrozen before the interpreter ends. */
void vmh_creation_unsettle(void);

/* Called first by the audit hook, on any thread: true while this thread creates an interpreter. Then
 * vmh_creation_event is the whole hook: 0, or -1 with a Python error set. */
bool vmh_creation_under_way(void);
int vmh_creation_event(const char *event, PyObject *args);

#endif
