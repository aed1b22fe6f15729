/* Waiting, for locks and threads; see waits.c. All under the VM's GIL, which is released during the sleep. */
#ifndef VMH_WAITS_H
#define VMH_WAITS_H

#include "seal/gates.h"

/* Runs the interpreter's pending calls. -1: they raised (a stop). */
int vmh_breathe(void);

/* A queue may be initialised by zeroing. A waiter that is woken is removed from its queue; others remove themselves. */
void vmh_queue_push(vmh_queue *queue, vmh_waiter *waiter);
void vmh_queue_remove(vmh_queue *queue, vmh_waiter *waiter);
bool vmh_queue_wake(vmh_queue *queue); /* wakes the longest waiter; false: there is none */

/* Sleeps until the waiter is woken (1), the deadline is over (0) or the VM is stopped (-1, error set). */
int vmh_wait(vmh_seal *seal, vmh_waiter *waiter, int64_t deadline_ns);

/* Seconds from now as a deadline; NULL or None: no limit. -1: error set; its text for a negative number is `what`. */
int vmh_deadline_parse(PyObject *timeout, const char *what, int64_t *deadline_ns);

/* Marks the calling thread as a daemon of the task. */
void vmh_waits_daemon(bool daemon);
/* Adds a function to a module's dict, under its name. */
int vmh_def_set(PyObject *dict, const char *module, PyMethodDef *def, PyObject *self);

/* locks.c: sets lock, LockType, RLock and allocate_lock in the dict of `_thread`. */
int vmh_locks_finish(PyObject *dict);
/* This interpreter's type of `spec`, created at the first call and kept under `key`; a new reference. */
PyObject *vmh_type_once(const char *key, PyType_Spec *spec);

/* Frees an object that holds nothing but a list of weak references. */
void vmh_object_dealloc(PyObject *self);

#endif
