/* How an interpreter is made with what a VM needs and no more.
 *
 * Py_NewInterpreterFromConfig imports the path-based importers, zipimport, the codecs package and `site`, with their
 * native modules: more than half of its time, and objects that most VMs never use. The audit hook sees each import
 * before it happens, on the VM's thread; there, stand-ins take the places of those modules, which go when the
 * interpreter is made. Whoever asks for one of them later imports it like any other module.
 *
 * Nothing of the process is changed: other interpreters that are made meanwhile get all that they ever had.
 */
#ifndef VMH_CREATION_H
#define VMH_CREATION_H

#include "cpython/compat.h"

/* Once per process, in the main interpreter. 0, or -1 with a Python error set. */
int vmh_creation_install(void);

/* On a thread without a thread state; on success *tstate is current, its GIL held, and its garbage collector off. */
PyStatus vmh_creation_make(PyThreadState **tstate);

/* The guest runtime has booted: what there is stays for good, so the collector begins its work without it … */
void vmh_creation_settle(void);
/* … until the interpreter is to end. */
void vmh_creation_unsettle(void);

/* What the audit hook calls first, on any thread: is an interpreter being made on this one? Then vmh_creation_event is
 * the whole hook: 0, or -1 with a Python error set. */
bool vmh_creation_under_way(void);
int vmh_creation_event(const char *event, PyObject *args);

#endif
