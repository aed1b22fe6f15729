/* `vmhost.pipeline.passes._passes`: the pipeline's loops that run for each event. Main interpreter only. */
#include "passes.h"

static const char *const field_names[COLUMNS] = {"name", "time_ms", "page", "visit", "key", "id"};

const module_state *passes_state_of(PyTypeObject *type) { return PyType_GetModuleState(type); }

/* ---- columns */

/* 0: text that UTF-8 has a form of; -1: it has none, with an error set. `*text` becomes an exact str. */
static int check_text(PyObject **text)
{
    if (!PyUnicode_Check(*text)) {
        PyErr_Format(PyExc_TypeError, "got `%T`", *text);
        return -1;
    }
    if (!PyUnicode_CheckExact(*text)) {
        PyObject *exact = PyUnicode_FromObject(*text);
        if (exact == NULL)
            return -1;
        Py_SETREF(*text, exact);
    }
    return PyUnicode_IS_ASCII(*text) || PyUnicode_AsUTF8AndSize(*text, NULL) != NULL ? 0 : -1;
}

/* The same for a whole number of 64 bits. */
static int check_number(PyObject **number)
{
    if (!PyLong_Check(*number)) {
        PyErr_Format(PyExc_TypeError, "got `%T`", *number);
        return -1;
    }
    long long value = PyLong_AsLongLong(*number);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (!PyLong_CheckExact(*number)) {
        PyObject *exact = PyLong_FromLongLong(value);
        if (exact == NULL)
            return -1;
        Py_SETREF(*number, exact);
    }
    return 0;
}

static int check_field(int field, PyObject **value)
{
    if (field == TIME_MS)
        return check_number(value);
    return field == ID && *value == Py_None ? 0 : check_text(value);
}

/* The error that is set says what is wrong with a field: the same as a ValueError that names the event. Other errors
 * go on as they are. */
static void refuse(const module_state *state, PyObject *event)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)
        && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return;
    PyObject *error = PyErr_GetRaisedException(), *name = PyObject_GetAttr(event, state->fields[NAME]);
    if (name != NULL)
        PyErr_Format(PyExc_ValueError,
                     "event %R: expected text in name, page, visit, key and id, and a whole number of 64 bits in "
                     "time_ms: %S",
                     name, error);
    Py_XDECREF(name);
    Py_DECREF(error);
}

static PyObject *columns(PyObject *module, PyObject *events)
{
    const module_state *state = PyModule_GetState(module);
    PyObject *all = PySequence_Tuple(events), *made = all == NULL ? NULL : PyTuple_New(COLUMNS);
    Py_ssize_t count = all == NULL ? 0 : PyTuple_GET_SIZE(all);
    for (int field = 0; made != NULL && field < COLUMNS; field++) {
        PyObject *column = PyList_New(count);
        if (column == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, field, column);
    }
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *event = PyTuple_GET_ITEM(all, i);
        for (int field = 0; made != NULL && field < COLUMNS; field++) {
            PyObject *value = PyObject_GetAttr(event, state->fields[field]);
            if (value == NULL || check_field(field, &value) < 0) {
                Py_XDECREF(value);
                refuse(state, event);
                Py_CLEAR(made);
            } else {
                PyList_SET_ITEM(PyTuple_GET_ITEM(made, field), i, value);
            }
        }
    }
    Py_XDECREF(all);
    return made;
}

/* ---- the module */

static PyMethodDef passes_methods[] = {
    {"columns", columns, METH_O,
     PyDoc_STR("columns(events) -> (names, times, pages, visits, keys, ids)\n--\n\n"
               "Lists of exact str (ids: or None) and int of 64 bits. ValueError names the first event that has other "
               "values.")},
    {NULL, NULL, 0, NULL},
};

static int passes_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    for (int field = 0; field < COLUMNS; field++)
        if ((state->fields[field] = PyUnicode_InternFromString(field_names[field])) == NULL)
            return -1;
    state->event = PyUnicode_InternFromString("event");
    state->packed = PyUnicode_InternFromString("packed");
    state->position = PyUnicode_InternFromString("position");
    if (state->event == NULL || state->packed == NULL || state->position == NULL)
        return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &passes_event_list_spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return rc;
}

static int passes_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    for (int field = 0; field < COLUMNS; field++)
        Py_VISIT(state->fields[field]);
    Py_VISIT(state->event);
    Py_VISIT(state->packed);
    Py_VISIT(state->position);
    return 0;
}

static int passes_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    for (int field = 0; field < COLUMNS; field++)
        Py_CLEAR(state->fields[field]);
    Py_CLEAR(state->event);
    Py_CLEAR(state->packed);
    Py_CLEAR(state->position);
    return 0;
}

static PyModuleDef_Slot passes_slots[] = {
    {Py_mod_exec, passes_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static PyModuleDef passes_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.pipeline.passes._passes",
    .m_doc = PyDoc_STR("The pipeline's loops over events."),
    .m_size = sizeof(module_state),
    .m_methods = passes_methods,
    .m_slots = passes_slots,
    .m_traverse = passes_traverse,
    .m_clear = passes_clear,
};

PyMODINIT_FUNC PyInit__passes(void);
PyMODINIT_FUNC PyInit__passes(void) { return PyModuleDef_Init(&passes_module); }
