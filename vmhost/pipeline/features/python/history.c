#include <math.h>
#include <string.h>

#include "python/features.h"

/* The events of one stream, field and key: as items, or as a sketch. */
typedef struct {
    vmf_item *items;  /* owned; by time, events of equal time in order of arrival */
    vmf_item *others; /* owned; the same events by another field. NULL: no second field */
    size_t begin, count, room;
    int64_t horizon_ms; /* an item is kept until it is this much older than the latest one */
    size_t most;
    vmf_sketch *sketch; /* owned; NULL: the column has items */
    bool paired;
    int64_t latest_ms; /* time of the latest event; INT64_MIN: none yet */
    uint64_t version;  /* grows with each event */
} column;

typedef struct {
    uint64_t version; /* the column's when it was computed */
    double value;
} written;

typedef struct {
    PyObject_HEAD
    Py_ssize_t column_count, written_count;
    column *columns;
    written *written;
    unsigned long long dropped; /* items dropped at the bound `most`, before their time */
} history;

/* ---- construction */

static int column_of(column *made, PyObject *given)
{
    long long horizon_ms, pane_ms;
    Py_ssize_t most;
    int paired, distinct, quantiles;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a column of a History: expected a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(given,
                          "LnpLpp;a column of a History: (horizon_ms, most, paired, pane_ms, distinct, quantiles)",
                          &horizon_ms, &most, &paired, &pane_ms, &distinct, &quantiles))
        return -1;
    if (horizon_ms <= 0 || horizon_ms > VMF_MOST_MS || most <= 0 || pane_ms < 0 || pane_ms > VMF_MOST_MS / VMF_PANES) {
        PyErr_SetString(PyExc_ValueError, "a column of a History: expected numbers above 0");
        return -1;
    }
    *made = (column){.horizon_ms = horizon_ms, .most = (size_t)most, .paired = paired, .latest_ms = INT64_MIN};
    if (pane_ms > 0) {
        made->sketch = PyMem_Calloc(1, sizeof *made->sketch);
        if (made->sketch == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        made->sketch->pane_ms = pane_ms;
        made->sketch->distinct = distinct;
        made->sketch->quantiles = quantiles;
    }
    return 0;
}

static PyObject *history_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"columns", "written", NULL};
    PyObject *columns;
    Py_ssize_t places = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|n:History", names, &PyTuple_Type, &columns, &places))
        return NULL;
    if (places < 0 || places > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "written: expected a number of places");
    history *self = (history *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->columns = PyMem_Calloc((size_t)PyTuple_GET_SIZE(columns) + 1, sizeof *self->columns);
    self->written = PyMem_Calloc((size_t)places + 1, sizeof *self->written);
    if (self->columns == NULL || self->written == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->written_count = places;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(columns); i++) {
        if (column_of(&self->columns[i], PyTuple_GET_ITEM(columns, i)) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        self->column_count = i + 1;
    }
    return (PyObject *)self;
}

static void history_dealloc(PyObject *object)
{
    history *self = (history *)object;
    for (Py_ssize_t i = 0; i < self->column_count; i++) {
        PyMem_RawFree(self->columns[i].items);
        PyMem_RawFree(self->columns[i].others);
        if (self->columns[i].sketch != NULL)
            vmf_sketch_clear(self->columns[i].sketch);
        PyMem_Free(self->columns[i].sketch);
    }
    PyMem_Free(self->columns);
    PyMem_Free(self->written);
    Py_TYPE(object)->tp_free(object);
}

/* ---- events */

static int grow(vmf_item **items, size_t room)
{
    vmf_item *grown = PyMem_RawRealloc(*items, room * sizeof *grown);
    if (grown == NULL)
        return -1;
    *items = grown;
    return 0;
}

/* Makes room for one more item at the end. */
static int make_room(column *of)
{
    if (of->begin + of->count < of->room)
        return 0;
    if (of->begin > of->count) { /* more than half of it are dropped items */
        memmove(of->items, of->items + of->begin, of->count * sizeof *of->items);
        if (of->paired)
            memmove(of->others, of->others + of->begin, of->count * sizeof *of->others);
        of->begin = 0;
        return 0;
    }
    const size_t room = of->room == 0 ? 8 : of->room * 2;
    if (grow(&of->items, room) < 0 || (of->paired && grow(&of->others, room) < 0))
        return -1;
    of->room = room;
    return 0;
}

static void insert(vmf_item *items, size_t count, size_t at, vmf_item item)
{
    memmove(&items[at + 1], &items[at], (count - at) * sizeof *items);
    items[at] = item;
}

/* -1: no memory, and nothing has changed. */
static int add(history *self, column *of, vmf_item item, vmf_item other)
{
    if (make_room(of) < 0)
        return -1;
    const vmf_item *items = of->items + of->begin;
    size_t at = of->count;
    while (at > 0 && items[at - 1].time_ms > item.time_ms) /* late event */
        at--;
    insert(of->items + of->begin, of->count, at, item);
    if (of->paired)
        insert(of->others + of->begin, of->count, at, other);
    of->count++;
    const int64_t latest_ms = items[of->count - 1].time_ms;
    while (of->count > 0 && latest_ms - of->items[of->begin].time_ms >= of->horizon_ms) {
        of->begin++;
        of->count--;
    }
    while (of->count > of->most) {
        of->begin++;
        of->count--;
        self->dropped++;
    }
    return 0;
}

static PyObject *history_append(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    history *self = (history *)object;
    if (count != 4 && count != 6) {
        PyErr_SetString(PyExc_TypeError, "append(column, time_ms, value, identity, [other value, other identity])");
        return NULL;
    }
    const Py_ssize_t number = PyLong_AsSsize_t(args[0]);
    vmf_item item, other;
    if (vmf_to_time(args[1], &item.time_ms) < 0)
        return NULL;
    other.time_ms = item.time_ms;
    item.value = PyFloat_AsDouble(args[2]);
    item.identity = PyLong_AsUnsignedLongLongMask(args[3]);
    other.value = count == 6 ? PyFloat_AsDouble(args[4]) : NAN;
    other.identity = count == 6 ? PyLong_AsUnsignedLongLongMask(args[5]) : 0;
    if (PyErr_Occurred())
        return NULL;
    if (number < 0 || number >= self->column_count) {
        PyErr_Format(PyExc_IndexError, "there is no column %zd", number);
        return NULL;
    }
    column *of = &self->columns[number];
    const int64_t latest_ms = item.time_ms > of->latest_ms ? item.time_ms : of->latest_ms;
    if ((of->sketch != NULL ? vmf_sketch_add(of->sketch, &item, latest_ms) : add(self, of, item, other)) < 0)
        return PyErr_NoMemory();
    of->latest_ms = latest_ms;
    of->version++;
    Py_RETURN_NONE;
}

/* ---- windows */

/* The number of items at or before the time. */
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

static int64_t last_multiple(int64_t at_ms, int64_t window_ms, int64_t offset_ms)
{
    const int64_t week_ms = 7 * 86400000LL, monday_ms = 4 * 86400000LL; /* 1970-01-01 was a Thursday */
    const int64_t shift_ms = window_ms % week_ms == 0 ? offset_ms - monday_ms : offset_ms;
    const int64_t local_ms = at_ms + shift_ms, into = local_ms % window_ms;
    return local_ms - (into < 0 ? into + window_ms : into) - shift_ms;
}

static vmf_window window_of(const column *of, const vmf_shape *shape, int64_t at_ms, int64_t offset_ms)
{
    const vmf_item *items = of->items == NULL ? NULL : of->items + of->begin;
    vmf_window w = {.at_ms = at_ms, .span_ms = shape->window_ms, .offset_ms = offset_ms};
    size_t end = until(items, of->count, at_ms), begin = end;
    switch (shape->shape) {
    case SLIDING: begin = until(items, end, at_ms - shape->window_ms); break;
    case TUMBLING: begin = until(items, end, last_multiple(at_ms, shape->window_ms, offset_ms) - 1); break;
    case PREVIOUS:
        w.at_ms = last_multiple(at_ms, shape->window_ms, offset_ms);
        end = until(items, end, w.at_ms - 1);
        begin = until(items, end, w.at_ms - shape->window_ms - 1);
        break;
    default:
        w.span_ms = shape->most_ms;
        if (end > 0 && at_ms - items[end - 1].time_ms < shape->window_ms)
            for (begin = end - 1; begin > 0 && items[begin].time_ms - items[begin - 1].time_ms < shape->window_ms
                                  && at_ms - items[begin - 1].time_ms < shape->most_ms;)
                begin--;
    }
    w.count = end - begin;
    w.items = items == NULL ? NULL : items + begin;
    w.others = of->others == NULL ? NULL : of->others + of->begin + begin;
    return w;
}

/* The time of the last event at or before `at_ms`; `at_ms` where there was none. */
static int64_t last_event(const column *of, int64_t at_ms)
{
    if (of->latest_ms <= at_ms)
        return of->latest_ms == INT64_MIN ? at_ms : of->latest_ms;
    if (of->sketch != NULL)
        return at_ms;
    const vmf_item *items = of->items + of->begin;
    const size_t end = until(items, of->count, at_ms);
    return end == 0 ? at_ms : items[end - 1].time_ms;
}

/* ---- reading */

double vmf_derived(int kind, double a, double b)
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

/* A window that successive steps may share. */
typedef struct {
    vmf_window window;
    const vmf_step *of; /* NULL: none */
    int64_t at_ms;
} shared;

static bool fits(const shared *known, const vmf_step *each, int64_t at_ms)
{
    return known->of != NULL && known->of->left == each->left && known->of->shape.shape == each->shape.shape
           && known->of->shape.window_ms == each->shape.window_ms && known->of->shape.most_ms == each->shape.most_ms
           && known->at_ms == at_ms;
}

static double of_column(history *self, const vmf_plan *plan, const vmf_step *each, int64_t at_ms, shared *known,
                        bool *failed)
{
    const column *of = &self->columns[each->left];
    const bool as_written = each->written >= 0;
    const int64_t last_ms = as_written || each->fresh_ms >= 0 ? last_event(of, at_ms) : at_ms;
    if (each->fresh_ms >= 0 && at_ms - last_ms > each->fresh_ms)
        return NAN;
    written *kept = as_written && at_ms >= of->latest_ms ? &self->written[each->written] : NULL;
    if (kept != NULL && kept->version == of->version && of->version > 0)
        return kept->value;
    const int64_t then_ms = as_written ? last_ms : at_ms;
    double value;
    if (each->kind == SKETCHED) {
        value = of->sketch == NULL
                    ? NAN
                    : vmf_sketch_entries[each->right].compute(of->sketch, then_ms, each->parameter, failed);
    } else {
        if (!fits(known, each, then_ms)) { /* steps of one window are adjacent */
            vmf_window_end(&known->window);
            *known = (shared){window_of(of, &each->shape, then_ms, plan->offset_ms), each, then_ms};
        }
        const bool lacks = vmf_entries[each->right].other && known->window.others == NULL && known->window.count > 0;
        value = lacks ? NAN : vmf_entries[each->right].compute(&known->window, each->parameter);
        *failed = *failed || known->window.failed;
    }
    if (kept != NULL && !*failed)
        *kept = (written){of->version, value};
    return value;
}

static PyObject *history_read(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    history *self = (history *)object;
    if (count != 2 || !Py_IS_TYPE(args[0], &vmf_plan_type)) {
        PyErr_SetString(PyExc_TypeError, "read(plan, at_ms)");
        return NULL;
    }
    const vmf_plan *plan = (vmf_plan *)args[0];
    int64_t at_ms;
    if (vmf_to_time(args[1], &at_ms) < 0)
        return NULL;
    if (plan->columns > self->column_count || plan->written > self->written_count) {
        PyErr_SetString(PyExc_ValueError, "the plan is of a history with more columns");
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, plan->asked * (Py_ssize_t)sizeof(double));
    if (bytes == NULL)
        return NULL;
    double *const asked = (double *)(void *)PyBytes_AS_STRING(bytes);
    double *const out = plan->order == NULL ? asked : PyMem_Malloc(((size_t)plan->count + 1) * sizeof *out);
    if (out == NULL) {
        Py_DECREF(bytes);
        return PyErr_NoMemory();
    }
    shared known = {0};
    bool failed = false;
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const vmf_step *each = &plan->steps[i];
        switch (each->kind) {
        case BASIC:
        case SKETCHED: out[i] = of_column(self, plan, each, at_ms, &known, &failed); break;
        default: out[i] = vmf_derived(each->kind, out[each->left], out[each->right]);
        }
        if (isnan(out[i]))
            out[i] = each->fallback;
    }
    vmf_window_end(&known.window);
    if (plan->order != NULL) {
        for (Py_ssize_t i = 0; i < plan->asked; i++)
            asked[i] = out[plan->order[i]];
        PyMem_Free(out);
    }
    if (failed) {
        Py_DECREF(bytes);
        return PyErr_NoMemory();
    }
    return bytes;
}

static PyObject *history_window(PyObject *object, PyObject *args)
{
    history *self = (history *)object;
    Py_ssize_t number;
    int shape, as_written;
    long long window_ms, most_ms, offset_ms;
    PyObject *at;
    int64_t at_ms;
    if (!PyArg_ParseTuple(args, "niLLpOL:window", &number, &shape, &window_ms, &most_ms, &as_written, &at, &offset_ms)
        || vmf_to_time(at, &at_ms) < 0)
        return NULL;
    if (number < 0 || number >= self->column_count || shape < 0 || shape >= SHAPES || window_ms <= 0
        || window_ms > VMF_MOST_MS || most_ms <= 0 || most_ms > VMF_MOST_MS || offset_ms > 86400000
        || offset_ms < -86400000)
        return PyErr_Format(PyExc_ValueError, "window(): it names what is not there");
    const column *of = &self->columns[number];
    if (as_written)
        at_ms = last_event(of, at_ms);
    const vmf_window w = window_of(of, &(vmf_shape){shape, window_ms, most_ms}, at_ms, offset_ms);
    PyObject *bytes[3] = {NULL};
    const Py_ssize_t size = (Py_ssize_t)(w.count * sizeof(double));
    for (int i = 0; i < (w.others == NULL ? 2 : 3); i++) {
        bytes[i] = PyBytes_FromStringAndSize(NULL, size);
        if (bytes[i] == NULL)
            goto failed;
        char *to = PyBytes_AS_STRING(bytes[i]);
        for (size_t n = 0; n < w.count; n++)
            memcpy(to + n * sizeof(double),
                   i == 0   ? (const void *)&w.items[n].time_ms
                   : i == 1 ? (const void *)&w.items[n].value
                            : (const void *)&w.others[n].value,
                   sizeof(double));
    }
    if (bytes[2] == NULL)
        bytes[2] = Py_NewRef(Py_None);
    return Py_BuildValue("(LNNN)", (long long)w.at_ms, bytes[0], bytes[1], bytes[2]);
failed:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(bytes[i]);
    return NULL;
}

static PyObject *history_size(PyObject *object, PyObject *Py_UNUSED(unused))
{
    history *self = (history *)object;
    size_t bytes = sizeof *self + (size_t)self->column_count * sizeof *self->columns
                   + (size_t)self->written_count * sizeof *self->written;
    size_t items = 0;
    for (Py_ssize_t i = 0; i < self->column_count; i++) {
        const column *of = &self->columns[i];
        bytes += of->room * sizeof(vmf_item) * (of->paired ? 2 : 1);
        bytes += of->sketch == NULL ? 0 : vmf_sketch_bytes(of->sketch);
        items += of->count;
    }
    return Py_BuildValue("(nnK)", (Py_ssize_t)bytes, (Py_ssize_t)items, self->dropped);
}

static PyObject *history_version(PyObject *object, PyObject *column_number)
{
    history *self = (history *)object;
    const Py_ssize_t number = PyLong_AsSsize_t(column_number);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (number < 0 || number >= self->column_count)
        return PyErr_Format(PyExc_IndexError, "there is no column %zd", number);
    return PyLong_FromUnsignedLongLong(self->columns[number].version);
}

static PyObject *history_latest(PyObject *object, PyObject *Py_UNUSED(unused))
{
    history *self = (history *)object;
    int64_t latest_ms = INT64_MIN;
    for (Py_ssize_t i = 0; i < self->column_count; i++)
        if (self->columns[i].latest_ms > latest_ms)
            latest_ms = self->columns[i].latest_ms;
    return PyLong_FromLongLong(latest_ms);
}

static PyMethodDef history_methods[] = {
    {"append", _PyCFunction_CAST(history_append), METH_FASTCALL,
     PyDoc_STR("append(column, time_ms, value, identity, [other value, other identity]): an event; a value NaN: it has "
               "none.")},
    {"read", _PyCFunction_CAST(history_read), METH_FASTCALL,
     PyDoc_STR("read(plan, at_ms): the bytes of a float64 for each step, or for those of the plan's order, as of that "
               "time.")},
    {"window", history_window, METH_VARARGS,
     PyDoc_STR("window(column, shape, window_ms, most_ms, written, at_ms, offset_ms): (its time, bytes of int64 times, "
               "of float64 values, of the others' values or None)")},
    {"latest", history_latest, METH_NOARGS,
     PyDoc_STR("latest(): the time of the latest event; -2**63: there is none.")},
    {"version", history_version, METH_O, PyDoc_STR("version(column): how many events it was given.")},
    {"size", history_size, METH_NOARGS, PyDoc_STR("size(): (bytes, items, items that were dropped before their time)")},
    {NULL, NULL, 0, NULL},
};

PyTypeObject vmf_history_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "vmhost.pipeline.features._features.History",
    .tp_doc = PyDoc_STR("History(columns, written=0): what one key did. Columns are (horizon_ms, most items, whether "
                        "events have a second field, the length in ms of a sketch's panes or 0, whether it counts "
                        "different values, whether it has quantiles)."),
    .tp_basicsize = sizeof(history),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .tp_new = history_new,
    .tp_dealloc = history_dealloc,
    .tp_methods = history_methods,
};
