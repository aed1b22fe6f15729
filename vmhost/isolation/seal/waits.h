/* What locks and threads wait with; see waits.c. All under the VM's GIL, which a wait releases while it sleeps. */
#ifndef VMH_WAITS_H
#define VMH_WAITS_H

#include "seal/gates.h"

/* Runs the interpreter's pending calls. -1: they raised (a stop). */
int vmh_breathe(void);

/* A queue may start as zero bytes. A woken waiter is out of its queue; others take themselves out. */
void vmh_queue_push(vmh_queue *queue, vmh_waiter *waiter);
void vmh_queue_remove(vmh_queue *queue, vmh_waiter *waiter);
bool vmh_queue_wake(vmh_queue *queue); /* the one that waits longest; false: nobody waits */

/* Sleeps until the waiter is woken (1), the deadline is over (0) or the VM is stopped (-1, error set). */
int vmh_wait(vmh_seal *seal, vmh_waiter *waiter, int64_t deadline_ns);

/* Seconds from now as a deadline; NULL or None: never. -1: error set, for a negative number with `what` as its text. */
int vmh_deadline_parse(PyObject *timeout, const char *what, int64_t *deadline_ns);

/* Puts a function into a module's dict, under its name. */
void vmh_waits_daemon(bool daemon);
int vmh_def_set(PyObject *dict, const char *module, PyMethodDef *def, PyObject *self);

/* locks.c: puts lock, LockType, RLock and allocate_lock into the dict of `_thread`. */
int vmh_locks_finish(PyObject *dict);
/* This interpreter's type of that spec, made at the first call and kept under `key`; a new reference. */
PyObject *vmh_type_once(const char *key, PyType_Spec *spec);

/* Frees an object with a list of weak references and nothing else to let go of. */
void vmh_object_dealloc(PyObject *self);

#endif
