/* Gates of `_locale` and `_signal`: the process has one locale and one set of signal handlers. */
#include "seal/gates.h"

#include <locale.h>

/* Programs query the locale, change it and set it back: setting the current one is allowed. */
static int check_setlocale(vmh_gated *call)
{
    PyObject **locale = vmh_gated_argument(call, 1, "locale");
    if (locale == NULL || *locale == Py_None)
        return 0;
    int category = call->nargs > 0 && PyLong_CheckExact(call->args[0]) ? PyLong_AsInt(call->args[0]) : -1;
    const char *now = PyErr_Occurred() ? NULL : setlocale(category, NULL);
    PyErr_Clear();
    if (now != NULL && PyUnicode_CheckExact(*locale) && PyUnicode_EqualToUTF8(*locale, now)) {
        call->result = Py_NewRef(*locale);
        return 1;
    }
    vmh_deny("the locale belongs to the whole process", "setlocale");
    return -1;
}

static int check_getsignal(vmh_gated *call)
{
    call->result = Py_NewRef(Py_None); /* CPython's answer for a handler that was not set by Python */
    return 1;
}

#define GATES(G) \
    G(_locale, , setlocale, check_setlocale, 0, NULL) \
    G(_signal, , getsignal, check_getsignal, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_process[] = {GATES(VMH_GATE_ADDRESS) NULL};
