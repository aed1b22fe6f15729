/* `engine._array`: the array type and its functions, the same in the host and in every VM. */
#include <Python.h>

#include "vme.h"

static PyModuleDef_Slot slots[] = {
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "engine._array",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__array(void);
PyMODINIT_FUNC PyInit__array(void)
{
    return PyModuleDef_Init(&definition);
}
