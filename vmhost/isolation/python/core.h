/* The types of `vmhost.isolation._core`: one file each (core_code_store.c, core_call.c, core_lane.c, core_vm.c,
 * core_events.c, core_profile.c), added to the module by core.c. This header has what they share. Main interpreter
 * only.
 *
 * A wrapper owns one reference to its native object. Events carry native references; the reader of the queue finds the
 * wrapper in the object's `wrapper` field, which is accessed only under the main GIL.
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
    PyObject *pack, *unpack; /* of its calls' codec, see wire.h; NULL: none */
} lane_object;

typedef struct {
    PyObject_HEAD
    vmh_call *call;
    PyObject *owner;  /* set by the host's Python: the call's Future */
    PyObject *unpack; /* the lane's; NULL: none */
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

/* Set once: the module loads only once per process, in the main interpreter. */
extern PyTypeObject *vmh_code_store_type, *vmh_events_type, *vmh_lane_type, *vmh_call_type, *vmh_vm_type,
    *vmh_host_call_type, *vmh_buffer_type, *vmh_packed_type, *vmh_profile_type;
extern PyType_Spec vmh_code_store_spec, vmh_events_spec, vmh_lane_spec, vmh_call_spec, vmh_vm_spec, vmh_host_call_spec,
    vmh_profile_spec;

/* core.c */
/* For a process with SQLite linked into the executable (a device host): CPython's module for it is the file `module`
 * (kept), and SQLite's code is between `begin` and `end`. Call once, before the core is loaded. */
void vmh_core_sqlite_linked(const char *module, const void *begin, const void *end);
/* Converts a span in seconds (None: no limit) to a monotonic deadline. 0, or -1 with an error set. */
int vmh_core_deadline(PyObject *timeout_s, int64_t *deadline_ns);
int64_t vmh_core_span_ns(double seconds);
/* The exception that set_error_factory()'s function returns for kind and payload. NULL with an error set. */
PyObject *vmh_core_error(vmh_lane *lane, int kind, PyObject *payload);
/* Raises it. Always NULL. */
PyObject *vmh_core_raise(vmh_lane *lane, int kind, PyObject *payload);

/* core_profile.c */
PyObject *vmh_core_coverage(PyObject *module, PyObject *unused);

/* core_text.c */
PyObject *vmh_core_fill(PyObject *module, PyObject *args);
PyObject *vmh_core_reached(PyObject *module, PyObject *args);

/* core_call.c */
/* A `Call` that takes over the caller's reference. NULL with an error set: the caller keeps it. `unpack`: the lane's,
 * borrowed. */
PyObject *vmh_core_wrap_call(vmh_call *call, PyObject *unpack);
/* Waits with the GIL released. 1: done, 0: timed out, -1: a signal handler raised. */
int vmh_core_wait(vmh_call *call, int64_t deadline_ns);
/* The value of a finished call, or its error raised. Call once: it drops the reply, so that its arrays belong to the
 * caller alone. `unpack`: the lane's, borrowed. */
PyObject *vmh_core_last_outcome(vmh_call *call, PyObject *unpack);
/* The report of an ended call, whose exception is None in it: no code of the host's types runs. None if it has none
 * that can be read. NULL with an error set. */
PyObject *vmh_core_report(vmh_call *call);
/* Cancels a queued call, or stops a running one. */
void vmh_core_stop(vmh_call *call);

#endif
