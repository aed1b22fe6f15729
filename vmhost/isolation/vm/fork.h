/* fork(2) in a process that runs VMs. */
#ifndef VMH_FORK_H
#define VMH_FORK_H

#include <stdbool.h>

#include "cpython/compat.h"

/* Around making and ending an interpreter. */
void vmh_fork_transit_begin(void);
void vmh_fork_transit_end(void);
/* -1 with an error set in a forked child, where no VM can run. */
int vmh_fork_check(void);

/* Here nothing of the core may be locked any more, not even to let go of it: threads that are not here may have held a
 * lock. */
bool vmh_fork_is_child(void);

/* os.register_at_fork's before, after_in_parent and after_in_child. */
PyObject *vmh_fork_prepare(PyObject *module, PyObject *unused);
PyObject *vmh_fork_parent(PyObject *module, PyObject *unused);
PyObject *vmh_fork_child(PyObject *module, PyObject *unused);

#endif
