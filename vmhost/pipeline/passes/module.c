/* `vmhost.pipeline.passes._passes`: the pipeline's per-event loops. Main interpreter only. */
#include "passes.h"

static const char *const field_names[COLUMNS] = {"name", "time_ms", "page", "visit", "key", "id"};

const module_state *passes_state_of(PyTypeObject *type) { return PyType_GetModuleState(type); }

/* ---- columns */

/* 0: text that UTF-8 can encode; -1: not, with an error set. `*text` becomes an exact str. */
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

/* The same for an integer of 64 bits. */
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

/* Turns the error about a field into a ValueError that names the event. Other errors stay as they are. */
static void refuse(const module_state *state, PyObject *event)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)
        && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return;
    PyObject *error = PyErr_GetRaisedException(), *name = passes_get(&state->fields[NAME], event);
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
            PyObject *value = passes_get(&state->fields[field], event);
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

/* ---- the intake's common case */

static bool is_behind(long long time_ms, long long latest_ms, long long behind_ms)
{
    long long oldest_ms;
    return !__builtin_sub_overflow(latest_ms, behind_ms, &oldest_ms) && time_ms < oldest_ms;
}

static PyObject *usual(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    module_state *state = PyModule_GetState(module);
    if (given != 7 || !PyList_CheckExact(args[0]) || !PyDict_CheckExact(args[2]))
        return PyErr_Format(PyExc_TypeError, "usual() takes a list, a number, a dict, and four numbers");
    Py_ssize_t index = PyLong_AsSsize_t(args[1]);
    long long limits[4];
    for (int i = 0; i < 4; i++) {
        limits[i] = PyLong_AsLongLong(args[3 + i]);
        if (limits[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    if (index < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "begin: expected 0 or more");
    long long latest_ms = limits[0], behind_ms = limits[1], ahead_ms = limits[2], due_ms = limits[3];
    bool usual_one = true;
    for (; usual_one && index < PyList_GET_SIZE(args[0]); index += usual_one) {
        PyObject *event = Py_NewRef(PyList_GET_ITEM(args[0], index)), *values[COLUMNS] = {NULL}, *visit = NULL;
        usual_one = false;
        if (Py_TYPE(event) != state->fields[NAME].type)
            goto next;
        for (int field = 0; field < COLUMNS; field++)
            if ((values[field] = passes_get(&state->fields[field], event)) == NULL)
                goto next;
        if (values[ID] != Py_None || !PyLong_CheckExact(values[TIME_MS]) || !PyUnicode_CheckExact(values[VISIT])
            || !PyUnicode_CheckExact(values[NAME]))
            goto next;
        int overflow;
        long long time_ms = PyLong_AsLongLongAndOverflow(values[TIME_MS], &overflow);
        if (overflow != 0
            || (time_ms > latest_ms ? time_ms > ahead_ms || due_ms <= time_ms
                                    : is_behind(time_ms, latest_ms, behind_ms)))
            goto next;
        if (PyUnicode_GET_LENGTH(values[VISIT]) > 0) {
            if (PyUnicode_CompareWithASCIIString(values[NAME], "page_exit") == 0
                || PyDict_GetItemRef(args[2], values[VISIT], &visit) <= 0)
                goto next;
            PyObject *last = PyObject_GetAttr(visit, state->last_ms.name);
            long long last_ms = last == NULL ? -1 : PyLong_AsLongLongAndOverflow(last, &overflow);
            Py_XDECREF(last);
            if (PyErr_Occurred()
                || (time_ms > last_ms && PyObject_SetAttr(visit, state->last_ms.name, values[TIME_MS]) < 0))
                goto next;
        }
        if (time_ms > latest_ms)
            latest_ms = time_ms;
        usual_one = true;
next:
        Py_XDECREF(visit);
        for (int field = 0; field < COLUMNS; field++)
            Py_XDECREF(values[field]);
        Py_DECREF(event);
    }
    return PyErr_Occurred() ? NULL : Py_BuildValue("nL", index, latest_ms);
}

/* ---- the module */

static PyMethodDef passes_methods[] = {
    {"columns", columns, METH_O,
     PyDoc_STR("columns(events) -> (names, times, pages, visits, keys, ids)\n--\n\n"
               "Lists of exact str (ids: or None) and int of 64 bits. ValueError names the first event that has other "
               "values.")},
    {"pack_contents", passes_pack_contents, METH_O,
     PyDoc_STR("pack_contents(events) -> list of bytes, or None\n--\n\n"
               "The contents of each as msgpack; None where some are of other types than msgpack's own, or nested "
               "deeply.")},
    {"usual", (PyCFunction)(void (*)(void))usual, METH_FASTCALL,
     PyDoc_STR("usual(events, begin, visits, latest_ms, behind_ms, ahead_ms, due_ms) -> (index, latest_ms)\n--\n\n"
               "Passes over the events from `begin` on that need no decision of the intake, and notes in `visits`, the "
               "open ones, when they were: events without id, whose time is at most `behind_ms` behind the latest, at "
               "most `ahead_ms`, and before `due_ms`, of no visit or of an open one, but no exits. `index`: of the "
               "first other one.")},
    {NULL, NULL, 0, NULL},
};

/* Where a class keeps attributes in the object itself, as msgspec's Struct and `__slots__` do, finds the offset. */
static int find(attribute *a, PyObject *type, const char *name)
{
    a->name = PyUnicode_InternFromString(name);
    PyObject *found = a->name == NULL ? NULL : PyObject_GetAttr(type, a->name);
    if (found == NULL)
        return -1;
    a->type = (PyTypeObject *)Py_NewRef(type);
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == Py_T_OBJECT_EX && (member->flags & Py_RELATIVE_OFFSET) == 0)
            a->offset = member->offset;
    }
    Py_DECREF(found);
    return 0;
}

static int find_all(module_state *state, PyObject *event, PyObject *stored)
{
    for (int field = 0; field < COLUMNS; field++)
        if (find(&state->fields[field], event, field_names[field]) < 0)
            return -1;
    if (find(&state->contents, event, "contents") < 0)
        return -1;
    state->last_ms.name = PyUnicode_InternFromString("last_ms");
    return state->last_ms.name == NULL || find(&state->event, stored, "event") < 0
                   || find(&state->packed, stored, "packed") < 0 || find(&state->position, stored, "position") < 0
               ? -1
               : 0;
}

static int passes_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    PyObject *events = PyImport_ImportModule("vmhost.pipeline.events"), *list = NULL;
    PyObject *event = events == NULL ? NULL : PyObject_GetAttrString(events, "Event");
    PyObject *stored = event == NULL ? NULL : PyObject_GetAttrString(events, "StoredEvent");
    int rc = stored == NULL || find_all(state, event, stored) < 0 ? -1 : 0;
    if (rc == 0 && (list = PyType_FromModuleAndSpec(module, &passes_event_list_spec, NULL)) != NULL)
        rc = PyModule_AddType(module, (PyTypeObject *)list);
    else
        rc = -1;
    Py_XDECREF(list);
    Py_XDECREF(stored);
    Py_XDECREF(event);
    Py_XDECREF(events);
    return rc;
}

static attribute *attributes(PyObject *module, int *count)
{
    *count = (int)(sizeof(module_state) / sizeof(attribute));
    return PyModule_GetState(module);
}

static int passes_traverse(PyObject *module, visitproc visit, void *arg)
{
    int count;
    attribute *all = attributes(module, &count);
    for (int i = 0; i < count; i++) {
        Py_VISIT(all[i].name);
        Py_VISIT(all[i].type);
    }
    return 0;
}

static int passes_clear(PyObject *module)
{
    int count;
    attribute *all = attributes(module, &count);
    for (int i = 0; i < count; i++) {
        Py_CLEAR(all[i].name);
        Py_CLEAR(all[i].type);
    }
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
