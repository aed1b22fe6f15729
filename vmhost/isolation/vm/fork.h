/* fork(2) in a process that runs VMs. */
#ifndef VMH_FORK_H
#define VMH_FORK_H

#include <stdbool.h>

#include "cpython/compat.h"

/* Call around the creation and the ending of an interpreter. */
void vmh_fork_transit_begin(void);
void vmh_fork_transit_end(void);
/* -1 with an error set: this is a forked child, where no VM can run. */
int vmh_fork_check(void);

/* True in a forked child. No lock of the core may be used there, not even to release something: a thread that the child
 * does not have may have held it. */
bool vmh_fork_is_child(void);

/* The before, after_in_parent and after_in_child of os.register_at_fork. */
PyObject *vmh_fork_prepare(PyObject *module, PyObject *unused);
PyObject *vmh_fork_parent(PyObject *module, PyObject *unused);
PyObject *vmh_fork_child(PyObject *module, PyObject *unused);

#endif
