#include "python/features.h"

static const char WANTED[] = "a step of a Plan: (kind, left, right, shape, window_ms, most_ms, fresh_ms, written, "
                             "parameter, default)";

static bool is_time(long long ms) { return ms > 0 && ms <= VMF_MOST_MS; }

static bool names_what_is_there(const vmf_step *each, Py_ssize_t place)
{
    if (each->left < 0 || each->right < 0 || each->written < -1)
        return false;
    switch (each->kind) {
    case BASIC:
        return (size_t)each->right < vmf_entry_count && each->shape.shape >= 0 && each->shape.shape < SHAPES
               && is_time(each->shape.window_ms) && is_time(each->shape.most_ms);
    case SKETCHED: return (size_t)each->right < vmf_sketch_entry_count;
    default: return each->kind > 0 && each->kind < KINDS && each->left < place && each->right < place;
    }
}

static int step_of(vmf_plan *plan, Py_ssize_t place, PyObject *item)
{
    vmf_step *each = &plan->steps[place];
    long long window_ms, most_ms, fresh_ms;
    if (!PyTuple_Check(item)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple", WANTED);
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iiiiLLLidd", &each->kind, &each->left, &each->right, &each->shape.shape, &window_ms,
                          &most_ms, &fresh_ms, &each->written, &each->parameter, &each->fallback))
        return -1;
    each->shape.window_ms = window_ms;
    each->shape.most_ms = most_ms;
    each->fresh_ms = fresh_ms;
    if (!names_what_is_there(each, place)) {
        PyErr_Format(PyExc_ValueError, "%s: number %zd names what is not there", WANTED, place);
        return -1;
    }
    const bool of_column = each->kind == BASIC || each->kind == SKETCHED;
    plan->columns = of_column && each->left >= plan->columns ? each->left + 1 : plan->columns;
    plan->written = each->written >= plan->written ? each->written + 1 : plan->written;
    plan->count = place + 1;
    return 0;
}

static int order_of(vmf_plan *plan, PyObject *order)
{
    plan->asked = PyTuple_GET_SIZE(order);
    plan->order = PyMem_Calloc((size_t)plan->asked + 1, sizeof *plan->order);
    if (plan->order == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < plan->asked; i++) {
        const Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(order, i));
        if (place == -1 && PyErr_Occurred())
            return -1;
        if (place < 0 || place >= plan->count) {
            PyErr_Format(PyExc_ValueError, "order: there is no step %zd", place);
            return -1;
        }
        plan->order[i] = place;
    }
    return 0;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "offset_ms", "order", NULL};
    PyObject *steps, *order = Py_None;
    long long offset_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|LO:Plan", names, &PyTuple_Type, &steps, &offset_ms, &order))
        return NULL;
    if (offset_ms > 86400000 || offset_ms < -86400000)
        return PyErr_Format(PyExc_ValueError, "offset_ms: expected a day at most");
    if (order != Py_None && !PyTuple_Check(order))
        return PyErr_Format(PyExc_TypeError, "order: expected a tuple or None");
    vmf_plan *self = (vmf_plan *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->offset_ms = offset_ms;
    self->steps = PyMem_Calloc((size_t)PyTuple_GET_SIZE(steps) + 1, sizeof *self->steps);
    if (self->steps == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++)
        if (step_of(self, i, PyTuple_GET_ITEM(steps, i)) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    self->asked = self->count;
    if (order != Py_None && order_of(self, order) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void plan_dealloc(PyObject *object)
{
    PyMem_Free(((vmf_plan *)object)->steps);
    PyMem_Free(((vmf_plan *)object)->order);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject vmf_plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "vmhost.pipeline.features._features.Plan",
    .tp_doc =
        PyDoc_STR("Plan(steps, offset_ms=0, order=None): a tuple of (kind, left, right, shape, window_ms, most_ms, "
                  "fresh_ms, written, parameter, default), and the places of the steps that are read; see "
                  "features.h."),
    .tp_basicsize = sizeof(vmf_plan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
};
