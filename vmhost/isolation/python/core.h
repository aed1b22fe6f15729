/* The types of `vmhost.isolation._core`: one file each (core_code_store.c, core_call.c, core_lane.c, core_vm.c,
 * core_events.c, core_profile.c), put into the module by core.c. What they need of each other is here. Main interpreter
 * only.
 *
 * A wrapper owns one reference on its native object. Events travel with native references; the queue's reader finds the
 * wrapper through the object's `wrapper` field, which is touched under the main GIL only.
 */
#ifndef VMH_CORE_H
#define VMH_CORE_H

#include "vm/vm_private.h"

typedef struct {
    PyObject_HEAD
    vmh_code_store *store;
} code_store_object;

typedef struct {
    PyObject_HEAD
    vmh_events *events;
} events_object;

typedef struct {
    PyObject_HEAD
    vmh_lane *lane;
    PyObject *weakrefs;
    PyObject *pack, *unpack; /* of the codec for its calls, see wire.h; NULL: none */
} lane_object;

typedef struct {
    PyObject_HEAD
    vmh_call *call;
    PyObject *owner;  /* whatever the host's Python hangs on a call: its Future */
    PyObject *unpack; /* its lane's; NULL: none */
} call_object;

typedef struct {
    PyObject_HEAD
    vmh_vm *vm;
    PyObject *weakrefs;
} vm_object;

typedef struct {
    PyObject_HEAD
    vmh_host_call *hc;
} host_call_object;

/* One main interpreter, one core: the module refuses to load anywhere else, so these may be shared. */
extern PyTypeObject *vmh_code_store_type, *vmh_events_type, *vmh_lane_type, *vmh_call_type, *vmh_vm_type,
    *vmh_host_call_type, *vmh_buffer_type, *vmh_packed_type, *vmh_profile_type;
extern PyType_Spec vmh_code_store_spec, vmh_events_spec, vmh_lane_spec, vmh_call_spec, vmh_vm_spec, vmh_host_call_spec,
    vmh_profile_spec;

/* core.c */
/* Of a process with SQLite in its executable, a device host's: CPython's module for it lies in the file `module`
 * (kept), and SQLite's code from `begin` to `end`. Once, before the core is loaded. */
void vmh_core_sqlite_linked(const char *module, const void *begin, const void *end);
/* A span in seconds (None: for ever) as a monotonic deadline. 0, or -1 with an error set. */
int vmh_core_deadline(PyObject *timeout_s, int64_t *deadline_ns);
int64_t vmh_core_span_ns(double seconds);
/* Raises what set_error_factory()'s function makes of kind and payload. Always NULL. */
PyObject *vmh_core_raise(vmh_lane *lane, int kind, PyObject *payload);

/* core_profile.c */
PyObject *vmh_core_coverage(PyObject *module, PyObject *unused);

/* core_text.c */
PyObject *vmh_core_fill(PyObject *module, PyObject *args);
PyObject *vmh_core_reached(PyObject *module, PyObject *args);

/* core_call.c */
/* A `Call` that takes the caller's reference; NULL with an error set, and the reference stays the caller's. `unpack`:
 * its lane's, borrowed. */
PyObject *vmh_core_wrap_call(vmh_call *call, PyObject *unpack);
/* Waits with the GIL released. 1: done, 0: the time is over, -1: a signal handler raised. */
int vmh_core_wait(vmh_call *call, int64_t deadline_ns);
/* The value of a call that is done, or its error raised; for who asks once only: lets go of what the reply holds, so
 * that its arrays are the caller's alone. `unpack`: its lane's, borrowed. */
PyObject *vmh_core_last_outcome(vmh_call *call, PyObject *unpack);
/* Ends a call that waits, and stops one that runs. */
void vmh_core_stop(vmh_call *call);

#endif
