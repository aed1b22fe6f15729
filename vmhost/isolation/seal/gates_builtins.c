/* Gates of builtins. */
#include "seal/gates.h"

/* exec and eval run existing code objects. For a text, `texts.recorded` of the guest finds the code that the cloud
 * compiler made of it, if it saw it. That is code like any other that the guest has. */
static int check_run(vmh_gated *call)
{
    if (call->nargs == 0 || PyCode_Check(call->args[0]))
        return 0;
    if (call->owned_count == VMH_GATED_OWNED_MAX) {
        PyErr_SetString(PyExc_SystemError, "exec: no room for the code of a text");
        return -1;
    }
    PyObject *texts = PyImport_ImportModule("vmhost.guest.texts");
    PyObject *code =
        texts == NULL ? NULL : PyObject_CallMethod(texts, "recorded", "sO", call->gate->name, call->args[0]);
    Py_XDECREF(texts);
    if (code == NULL)
        return -1;
    if (!Py_IS_TYPE(code, &PyCode_Type)) {
        Py_DECREF(code);
        vmh_deny("a VM has no compiler; exec and eval take code objects only", "%s", call->gate->name);
        return -1;
    }
    call->args[0] = call->owned[call->owned_count++] = code;
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
