/* Runs inside a VM, with its GIL held: the native module of the guest runtime, and one call from request to reply. */
#ifndef VMH_GUEST_H
#define VMH_GUEST_H

#include "cpython/compat.h"
#include "lanes/lane.h"

/* Maximum size of an encoded error. The guest runtime's reports are smaller (boot.py). */
enum { VMH_REPORT_BYTES_MAX = 1 << 20 };

/* Objects of the VM's interpreter: one reference each, from boot to vmh_guest_clear. Used only on its threads. */
typedef struct vmh_guest {
    PyObject *native;                          /* the module `_vmhost` */
    PyObject *entry_for, *report, *finish;     /* set in it by boot.py, like the codec's functions */
    PyObject *begin_recording, *end_recording; /* likewise */
    PyObject *entries;                         /* a dict: entry points by name */
} vmh_guest;

/* A guest's call of a host function. */
typedef struct vmh_host_call {
    atomic_int refs;
    atomic_uint word; /* futex: 0 waiting, 1 answered, 2 the guest gave up */
    vmh_vm *vm;       /* one reference */
    char *name;
    bool ok; /* reply is the result; else the error message */
    vmh_blob request, reply;
    vmh_event event;
} vmh_host_call;

void vmh_host_call_unref(vmh_host_call *call);

int vmh_guest_boot(vmh_vm *vm); /* -1: a Python error is set */
void vmh_guest_load(vmh_vm *vm, vmh_lane *lane);
void vmh_guest_serve(vmh_vm *vm, vmh_call *call);
void vmh_guest_finish(vmh_vm *vm);
void vmh_guest_clear(vmh_vm *vm); /* releases every object of the interpreter */
/* Writes "TypeName: message" of the current error to `to`, and clears it. */
void vmh_error_describe(char *to, size_t size);

#endif
