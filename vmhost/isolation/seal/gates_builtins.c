/* Gates of builtins. */
#include "seal/gates.h"

/* exec and eval run code that exists; text would have to be compiled. */
static int check_run(vmh_gated *call)
{
    if (call->nargs > 0 && !PyCode_Check(call->args[0])) {
        vmh_deny("a VM has no compiler; exec and eval take code objects only", "%s", call->gate->name);
        return -1;
    }
    return 0;
}

#define GATES(G) \
    G(builtins, , exec, check_run, 0, NULL) \
    G(builtins, , eval, check_run, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_builtins[] = {GATES(VMH_GATE_ADDRESS) NULL};

/* builtins.open is the same function as _io.open, by another reference. */
int vmh_builtins_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyObject *io = PyImport_ImportModule("_io"), *open_gate = io == NULL ? NULL : PyObject_GetAttrString(io, "open");
    int rc = open_gate == NULL ? -1 : PyDict_SetItemString(dict, "open", open_gate);
    Py_XDECREF(open_gate);
    Py_XDECREF(io);
    return rc;
}
