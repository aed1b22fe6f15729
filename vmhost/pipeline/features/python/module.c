/* `vmhost.pipeline.features._features`: what one key did (History), and what is to be computed of it (Plan). Main
 * interpreter only, under its GIL. */
#include <Python.h>

#include <math.h>
#include <string.h>

#include "core/operators.h"

typedef struct {
    vmf_item *items; /* owned; in order of time, those of one time in the order in which they came */
    size_t begin, count, room;
    int64_t horizon_ms; /* how long an item is kept, after the latest one */
    size_t most;
} column;

typedef struct {
    PyObject_HEAD
    Py_ssize_t column_count;
    column *columns;
    unsigned long long dropped; /* items that met `most` before their time was over */
} history_object;

enum { BASIC, RATIO, DIFFERENCE, TOTAL, PRODUCT, LARGER, SMALLER, BOTH, KINDS };

typedef struct {
    int kind;
    int left, right;             /* of a derived feature: places of earlier ones. BASIC: column, and operator */
    int64_t window_ms, fresh_ms; /* fresh_ms < 0: any */
    double parameter, fallback;
} step;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, columns; /* columns: a history has at least so many */
    step *steps;
    int64_t offset_ms;
} plan_object;

static PyTypeObject history_type, plan_type;

/* Milliseconds of either sign that a float has exactly: sums of two of them are far from the bounds of 64 bits. */
static int to_time(PyObject *object, int64_t *time_ms)
{
    const long long most = 1LL << 53;
    const long long found = PyLong_AsLongLong(object);
    if (found == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (PyErr_Occurred() || found > most || found < -most) {
        PyErr_Format(PyExc_ValueError, "a time: expected milliseconds of up to 53 bits, got %.100R", object);
        return -1;
    }
    *time_ms = found;
    return 0;
}

/* ---- Plan */

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "offset_ms", NULL};
    PyObject *steps;
    long long offset_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|L:Plan", names, &PyList_Type, &steps, &offset_ms))
        return NULL;
    plan_object *self = (plan_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (offset_ms > 86400000 || offset_ms < -86400000) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_ValueError, "offset_ms: expected a day at most");
    }
    self->offset_ms = offset_ms;
    self->steps = PyMem_Calloc((size_t)PyList_GET_SIZE(steps) + 1, sizeof *self->steps);
    if (self->steps == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(steps); i++) {
        step *each = &self->steps[i];
        PyObject *item = PyList_GET_ITEM(steps, i);
        long long window_ms, fresh_ms;
        if (!PyTuple_Check(item)
            || !PyArg_ParseTuple(item,
                                 "iiiLLdd;a step of a Plan: (kind, left, right, window_ms, fresh_ms, parameter, "
                                 "default)",
                                 &each->kind, &each->left, &each->right, &window_ms, &fresh_ms, &each->parameter,
                                 &each->fallback)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a step of a Plan: expected a tuple");
            Py_DECREF(self);
            return NULL;
        }
        const bool basic = each->kind == BASIC;
        if (each->kind < 0 || each->kind >= KINDS || each->left < 0 || each->right < 0
            || (basic ? (size_t)each->right >= vmf_entry_count || window_ms <= 0 || window_ms > 1LL << 53
                      : each->left >= i || each->right >= i)) {
            PyErr_Format(PyExc_ValueError, "a step of a Plan: number %zd names what is not there", i);
            Py_DECREF(self);
            return NULL;
        }
        each->window_ms = window_ms;
        each->fresh_ms = fresh_ms;
        if (basic && each->left >= self->columns)
            self->columns = each->left + 1;
        self->count = i + 1;
    }
    return (PyObject *)self;
}

static void plan_dealloc(PyObject *object)
{
    PyMem_Free(((plan_object *)object)->steps);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "vmhost.pipeline.features._features.Plan",
    .tp_doc = PyDoc_STR(
        "Plan(steps, offset_ms=0): steps are (kind, left, right, window_ms, fresh_ms, parameter, default); kind "
        "0: operator `right` over column `left`, else of two earlier steps."),
    .tp_basicsize = sizeof(plan_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
};

/* ---- History */

static PyObject *history_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"columns", NULL};
    PyObject *columns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:History", names, &PyTuple_Type, &columns))
        return NULL;
    history_object *self = (history_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->columns = PyMem_Calloc((size_t)PyTuple_GET_SIZE(columns) + 1, sizeof *self->columns);
    if (self->columns == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(columns); i++) {
        long long horizon_ms;
        Py_ssize_t most;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(columns, i), "Ln;a column of a History: (horizon_ms, most)", &horizon_ms,
                              &most)) {
            Py_DECREF(self);
            return NULL;
        }
        if (horizon_ms <= 0 || horizon_ms > 1LL << 53 || most <= 0) {
            Py_DECREF(self);
            return PyErr_Format(PyExc_ValueError, "a column of a History: expected numbers above 0");
        }
        self->columns[i].horizon_ms = horizon_ms;
        self->columns[i].most = (size_t)most;
        self->column_count = i + 1;
    }
    return (PyObject *)self;
}

static void history_dealloc(PyObject *object)
{
    history_object *self = (history_object *)object;
    for (Py_ssize_t i = 0; i < self->column_count; i++)
        PyMem_RawFree(self->columns[i].items);
    PyMem_Free(self->columns);
    Py_TYPE(object)->tp_free(object);
}

/* Room for one more at the end. */
static int make_room(column *of)
{
    if (of->begin + of->count < of->room)
        return 0;
    if (of->begin > of->count) { /* more than half of it is what went */
        memmove(of->items, of->items + of->begin, of->count * sizeof *of->items);
        of->begin = 0;
        return 0;
    }
    size_t room = of->room == 0 ? 8 : of->room * 2;
    vmf_item *items = PyMem_RawRealloc(of->items, room * sizeof *items);
    if (items == NULL)
        return -1;
    of->items = items;
    of->room = room;
    return 0;
}

static PyObject *history_append(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    history_object *self = (history_object *)object;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "append(column, time_ms, value, identity)");
        return NULL;
    }
    const Py_ssize_t number = PyLong_AsSsize_t(args[0]);
    int64_t time_ms;
    if (to_time(args[1], &time_ms) < 0)
        return NULL;
    const double value = PyFloat_AsDouble(args[2]);
    const unsigned long long identity = PyLong_AsUnsignedLongLongMask(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (number < 0 || number >= self->column_count) {
        PyErr_Format(PyExc_IndexError, "there is no column %zd", number);
        return NULL;
    }
    column *of = &self->columns[number];
    if (make_room(of) < 0)
        return PyErr_NoMemory();
    vmf_item *items = of->items + of->begin;
    size_t at = of->count;
    while (at > 0 && items[at - 1].time_ms > time_ms) /* it came late */
        at--;
    memmove(&items[at + 1], &items[at], (of->count - at) * sizeof *items);
    items[at] = (vmf_item){time_ms, value, identity};
    of->count++;
    const int64_t latest = items[of->count - 1].time_ms;
    while (of->count > 0 && latest - of->items[of->begin].time_ms >= of->horizon_ms) {
        of->begin++;
        of->count--;
    }
    while (of->count > of->most) {
        of->begin++;
        of->count--;
        self->dropped++;
    }
    Py_RETURN_NONE;
}

/* How many items are at or before the time. */
static size_t until(const vmf_item *items, size_t count, int64_t time_ms)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (items[middle].time_ms <= time_ms)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static double derived(int kind, double a, double b)
{
    switch (kind) {
    case RATIO: return b == 0 ? NAN : a / b;
    case DIFFERENCE: return a - b;
    case TOTAL: return a + b;
    case PRODUCT: return a * b;
    case LARGER: return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    case SMALLER: return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    default: return a > 0 && b > 0;
    }
}

static PyObject *history_read(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    history_object *self = (history_object *)object;
    if (count != 2 || !Py_IS_TYPE(args[0], &plan_type)) {
        PyErr_SetString(PyExc_TypeError, "read(plan, at_ms)");
        return NULL;
    }
    const plan_object *plan = (plan_object *)args[0];
    int64_t at_ms;
    if (to_time(args[1], &at_ms) < 0)
        return NULL;
    if (plan->columns > self->column_count) {
        PyErr_SetString(PyExc_ValueError, "the plan is of a history with more columns");
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, plan->count * (Py_ssize_t)sizeof(double));
    if (bytes == NULL)
        return NULL;
    double *out = (double *)(void *)PyBytes_AS_STRING(bytes);
    vmf_window window = {0};
    int of = -1;
    bool failed = false;
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const step *each = &plan->steps[i];
        if (each->kind != BASIC) {
            out[i] = derived(each->kind, out[each->left], out[each->right]);
        } else {
            if (each->left != of || each->window_ms != window.span_ms) { /* steps of one window follow each other */
                vmf_window_end(&window);
                const column *from = &self->columns[each->left];
                const vmf_item *items = from->items == NULL ? NULL : from->items + from->begin;
                const size_t end = until(items, from->count, at_ms);
                const size_t begin = until(items, end, at_ms - each->window_ms);
                window = (vmf_window){.items = items == NULL ? NULL : items + begin,
                                      .count = end - begin,
                                      .at_ms = at_ms,
                                      .span_ms = each->window_ms,
                                      .offset_ms = plan->offset_ms};
                of = each->left;
            }
            const bool stale = each->fresh_ms >= 0 && window.count > 0
                               && at_ms - window.items[window.count - 1].time_ms > each->fresh_ms;
            out[i] = stale ? NAN : vmf_entries[each->right].compute(&window, each->parameter);
            failed = failed || window.failed;
        }
        if (isnan(out[i]))
            out[i] = each->fallback;
    }
    vmf_window_end(&window);
    if (failed) {
        Py_DECREF(bytes);
        return PyErr_NoMemory();
    }
    return bytes;
}

static PyObject *history_size(PyObject *object, PyObject *Py_UNUSED(unused))
{
    history_object *self = (history_object *)object;
    size_t bytes = sizeof *self + (size_t)self->column_count * sizeof *self->columns, items = 0;
    for (Py_ssize_t i = 0; i < self->column_count; i++) {
        bytes += self->columns[i].room * sizeof(vmf_item);
        items += self->columns[i].count;
    }
    return Py_BuildValue("(nnK)", (Py_ssize_t)bytes, (Py_ssize_t)items, self->dropped);
}

static PyObject *history_latest(PyObject *object, PyObject *Py_UNUSED(unused))
{
    history_object *self = (history_object *)object;
    int64_t latest = INT64_MIN;
    for (Py_ssize_t i = 0; i < self->column_count; i++) {
        const column *of = &self->columns[i];
        if (of->count > 0 && of->items[of->begin + of->count - 1].time_ms > latest)
            latest = of->items[of->begin + of->count - 1].time_ms;
    }
    return PyLong_FromLongLong(latest);
}

static PyMethodDef history_methods[] = {
    {"append", _PyCFunction_CAST(history_append), METH_FASTCALL,
     PyDoc_STR("append(column, time_ms, value, identity): an event; value NaN: it has none.")},
    {"read", _PyCFunction_CAST(history_read), METH_FASTCALL,
     PyDoc_STR("read(plan, at_ms): the bytes of a float64 for each step, as of that time.")},
    {"latest", history_latest, METH_NOARGS, PyDoc_STR("latest(): the time of the latest item; -2**63: there is none.")},
    {"size", history_size, METH_NOARGS, PyDoc_STR("size(): (bytes, items, items that were dropped before their time)")},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject history_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "vmhost.pipeline.features._features.History",
    .tp_doc = PyDoc_STR("History(columns): what one key did; columns are (horizon_ms, most items)."),
    .tp_basicsize = sizeof(history_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .tp_new = history_new,
    .tp_dealloc = history_dealloc,
    .tp_methods = history_methods,
};

static PyObject *operators(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New((Py_ssize_t)vmf_entry_count);
    for (size_t i = 0; list != NULL && i < vmf_entry_count; i++) {
        PyObject *item =
            Py_BuildValue("(sNs)", vmf_entries[i].name, PyBool_FromLong(vmf_entries[i].wants), vmf_entries[i].says);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyMethodDef module_methods[] = {
    {"operators", operators, METH_NOARGS,
     PyDoc_STR("operators(): (name, whether it wants a parameter, what it is) of each.")},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    return PyModule_AddType(module, &history_type) < 0 || PyModule_AddType(module, &plan_type) < 0 ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static PyModuleDef features_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.pipeline.features._features",
    .m_doc = PyDoc_STR("Features of events: histories of keys, and operators over them."),
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__features(void);
PyMODINIT_FUNC PyInit__features(void) { return PyModuleDef_Init(&features_module); }
