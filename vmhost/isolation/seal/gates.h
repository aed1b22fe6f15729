/* Gates replace the functions of a VM's native modules that reach outside the VM.
 *
 * A gate is an ordinary builtin function (or method) of the same name. Its C function checks the call and then calls
 * the original's C function. The original's Python object is gone; only its PyMethodDef, which is static, is kept. So a
 * guest cannot find the original through gc, attributes or sys.modules. Gates are static and the same in every VM.
 */
#ifndef VMH_GATES_H
#define VMH_GATES_H

#include "seal/sealing.h"

enum { VMH_GATED_ARGS_MAX = 24, VMH_GATED_OWNED_MAX = 8, VMH_GATED_HELD_MAX = 2 };

struct vmh_gate;

/* One call of a gate. A check may replace arguments and let the original raise its audit event. */
typedef struct vmh_gated {
    struct vmh_gate *gate;
    vmh_seal *seal;
    PyObject *self;
    PyTypeObject *owner;                /* of a method: the native type that defines it */
    PyObject *args[VMH_GATED_ARGS_MAX]; /* borrowed; nargs positional ones, then those of kwnames */
    Py_ssize_t nargs;
    PyObject *kwnames;                    /* of distinct exact str; or NULL */
    PyObject *owned[VMH_GATED_OWNED_MAX]; /* released after the call */
    int owned_count;
    int held[VMH_GATED_HELD_MAX]; /* descriptors in use during the call */
    int held_count;
    bool passes;      /* the arguments are checked: the original may raise its audit event */
    PyObject *result; /* set by a check that returns 1 */
} vmh_gated;

/* 0: call the original; 1: `result` is the answer; -1: a Python error is set. */
typedef int vmh_gate_check(vmh_gated *call);
typedef PyObject *vmh_gate_run(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
typedef PyObject *vmh_gate_run_method(PyObject *, PyTypeObject *, PyObject *const *, Py_ssize_t, PyObject *);

typedef struct vmh_gate {
    const char *module, *type, *name; /* type: "" for a function of the module */
    vmh_gate_check *check;
    int access;          /* of path checks: VMH_READ | VMH_WRITE; of others: defined by the check */
    const char *keyword; /* name of the first argument if it can be passed by keyword */
    vmh_gate_run *run;
    vmh_gate_run_method *run_method;
    _Atomic(PyMethodDef *) original;
    const char *event; /* the audit event of the original that needs a pass; NULL: it has none */
    PyMethodDef def;
    char doc[64]; /* used if the original has none */
} vmh_gate;

PyObject *vmh_gate_call(vmh_gate *gate, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames);
/* Calls the original with the current arguments; with call->passes it may raise its audit event. */
PyObject *vmh_gated_original(vmh_gated *call);
/* Calls the C function of `def`. */
PyObject *vmh_def_call(PyMethodDef *def, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames);
/* The slot of an argument; NULL: not given. */
PyObject **vmh_gated_argument(vmh_gated *call, Py_ssize_t position, const char *keyword);
/* Replaces an argument by `value` (a new reference; NULL: returns -1). */
int vmh_gated_replace(vmh_gated *call, PyObject **argument, PyObject *value);
/* The value of an int, or of __index__, called once; it may be negative; -1 with an error set. */
int vmh_fd_of(PyObject *argument);
/* The descriptor given as an argument, which the guest must own. An exact int replaces the argument, and the descriptor
 * is in use until the call is over. -1 with an error set. */
int vmh_gated_fd(vmh_gated *call, PyObject **argument);
/* The same for functions that accept an int or an object with fileno(), which is called once. */
int vmh_gated_fildes(vmh_gated *call, PyObject **argument);
/* The same for the method's own object (FileIO, socket, epoll): its descriptor, -1 when closed; -2 with an error set.
 */
int vmh_gated_self_fd(vmh_gated *call);
vmh_gate_check vmh_gate_refuse;

/* GATES(G) lists G(module, type, name, check, access, keyword) */
#define VMH_GATE_DEFINE(MODULE, TYPE, NAME, CHECK, ACCESS, KEYWORD) \
    static vmh_gate gate_##MODULE##_##TYPE##_##NAME; \
    static PyObject *run_##MODULE##_##TYPE##_##NAME(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                                    PyObject *kwnames) \
    { \
        return vmh_gate_call(&gate_##MODULE##_##TYPE##_##NAME, self, NULL, args, nargs, kwnames); \
    } \
    static PyObject *method_##MODULE##_##TYPE##_##NAME(PyObject *self, PyTypeObject *owner, PyObject *const *args, \
                                                       Py_ssize_t nargs, PyObject *kwnames) \
    { \
        return vmh_gate_call(&gate_##MODULE##_##TYPE##_##NAME, self, owner, args, nargs, kwnames); \
    } \
    static vmh_gate gate_##MODULE##_##TYPE##_##NAME = {.module = #MODULE, \
                                                       .type = #TYPE, \
                                                       .name = #NAME, \
                                                       .check = CHECK, \
                                                       .access = ACCESS, \
                                                       .keyword = KEYWORD, \
                                                       .run = run_##MODULE##_##TYPE##_##NAME, \
                                                       .run_method = method_##MODULE##_##TYPE##_##NAME};
#define VMH_GATE_ADDRESS(MODULE, TYPE, NAME, CHECK, ACCESS, KEYWORD) &gate_##MODULE##_##TYPE##_##NAME,

extern vmh_gate *const vmh_gates_posix[];
extern vmh_gate *const vmh_gates_io[];
extern vmh_gate *const vmh_gates_socket[];
extern vmh_gate *const vmh_gates_sqlite[];
extern vmh_gate *const vmh_gates_sqlite_use[];
extern vmh_gate *const vmh_gates_builtins[];
extern vmh_gate *const vmh_gates_process[];
extern vmh_gate *const vmh_gates_hashlib[];
extern vmh_gate *const vmh_gates_mmap[];
extern vmh_gate *const vmh_gates_ssl[];
extern vmh_gate *const vmh_gates_certificates[];
extern vmh_gate *const vmh_gates_recording[];

/* Finishes a module after its names are filed: types, dicts and objects. -1: error set. gates.c has the table. */
typedef int vmh_gate_finish(PyObject *dict, PyObject *module);
vmh_gate_finish vmh_posix_finish, vmh_io_finish, vmh_socket_finish, vmh_select_finish, vmh_ssl_finish;
vmh_gate_finish vmh_builtins_finish, vmh_mmap_finish, vmh_sqlite_finish;
vmh_gate_finish vmh_thread_finish;   /* threads.c */
vmh_gate_finish vmh_time_finish;     /* waits.c */
vmh_gate_finish vmh_datetime_finish; /* recording.c */
/* gates_types.c: types that crash if only __new__ has run. */
vmh_gate_finish vmh_asyncio_finish, vmh_pickle_finish;
int vmh_scandir_finish(PyObject *dict, PyObject *module); /* scandir.c: its types, for posix */
/* gates_types.c, for builtins. -1: error set. */
int vmh_super_gate(void);
int vmh_function_gate(void);

/* The stat_result of an open or held file. `module`: posix. */
PyObject *vmh_posix_status(PyObject *module, int fd);
/* scandir.c: os.scandir of `given`, a path whose bytes are `text`; its result goes to call->result. 1, or -1 with an
 * error set. */
int vmh_scandir(vmh_gated *call, PyObject *given, PyObject *text);

/* Replaces a slot of a native heap type for good: in the type, and in the wrapper that Python sees. */
int vmh_slot_replace(PyTypeObject *type, const char *dunder, void **slot, void *function);
/* The getter and setter of an attribute of such a type; NULL with an error set. */
PyGetSetDef *vmh_getset_of(PyTypeObject *type, const char *name);
/* The offset of a member in such an object; 0 with an error set. vmh_member_fill sets a member that is NULL to `value`.
 */
Py_ssize_t vmh_member_offset(PyTypeObject *type, const char *name);
void vmh_member_fill(PyObject *object, Py_ssize_t offset, PyObject *value);
/* The def of a method of a native type; NULL with an error. */
PyMethodDef *vmh_method_def(PyTypeObject *type, const char *name);

/* Whether `object` is an instance of _socket.socket or of a subclass. gates_socket.c */
bool vmh_is_socket(PyObject *object);

/* Checks that an object's descriptor is at vmh_compat_fd, by its fileno(). -1: error set. */
int vmh_fd_field_check(PyObject *object, PyMethodDef *fileno_def);

/* Applies the policy to every name of `module`. -1: error set; also if the policy does not know the module. */
int vmh_gate_module(PyObject *module, const char *name);
bool vmh_policy_knows(const char *module);
bool vmh_policy_gates(const char *module); /* true if it gates functions or methods, not only deletes some */

#endif
