/* `_core.Profile`: a sampling profile of all VMs of the process. coverage(): the line and branch coverage of calls that
 * record it. */
#include <errno.h>
#include <string.h>

#include "lanes/clock.h"
#include "profile/coverage.h"
#include "python/core.h"
#include "vm/sampler.h"

typedef struct {
    PyObject_HEAD
    vmh_sampler sampler;
    bool ran; /* it runs, or has run */
    bool ended;
} profile_object;

static PyObject *profile_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"hz", NULL};
    double hz = 100;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d:Profile", names, &hz))
        return NULL;
    if (!(hz >= 0.1 && hz <= 10000))
        return PyErr_Format(PyExc_ValueError, "hz: expected 0.1 to 10000 samples a second");
    profile_object *self = (profile_object *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->sampler.interval_ns = (int64_t)(1e9 / hz);
    return (PyObject *)self;
}

static void profile_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    vmh_profile_clear(&((profile_object *)object)->sampler.profile);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *profile_run(PyObject *object, PyObject *Py_UNUSED(unused))
{
    profile_object *self = (profile_object *)object;
    int error;
    if (self->ran) {
        PyErr_SetString(PyExc_RuntimeError, "a Profile runs once");
        return NULL;
    }
    self->ran = true;
    Py_BEGIN_ALLOW_THREADS error = vmh_sampler_run(&self->sampler);
    Py_END_ALLOW_THREADS self->ended = true;
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *profile_stop(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_sampler *sampler = &((profile_object *)object)->sampler;
    atomic_store(&sampler->stop, 1);
    vmh_futex_wake(&sampler->stop, INT_MAX);
    Py_RETURN_NONE;
}

static PyObject *text_of(const char *text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }

static PyObject *functions_of(const vmh_functions *functions)
{
    PyObject *list = PyList_New(functions->count);
    for (int32_t i = 0; list != NULL && i < functions->count; i++) {
        const vmh_function *function = &functions->items[i];
        PyObject *item = Py_BuildValue("(NNi)", text_of(function->file), text_of(function->name), function->first_line);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *nodes_of(const vmh_profile *profile)
{
    PyObject *list = PyList_New(profile->node_count);
    for (int32_t i = 0; list != NULL && i < profile->node_count; i++) {
        const vmh_profile_node *node = &profile->nodes[i];
        PyObject *item = Py_BuildValue("(iiiLLL)", node->parent, node->function, node->line, (long long)node->samples,
                                       (long long)node->wall_ns, (long long)node->cpu_ns);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *profile_take(PyObject *object, PyObject *Py_UNUSED(unused))
{
    profile_object *self = (profile_object *)object;
    const vmh_sampler *sampler = &self->sampler;
    if (!self->ended) {
        PyErr_SetString(PyExc_RuntimeError, "the Profile has not ended");
        return NULL;
    }
    return Py_BuildValue("{s:N,s:N,s:L,s:L,s:L,s:L,s:N}", "functions", functions_of(&sampler->profile.functions),
                         "nodes", nodes_of(&sampler->profile), "span_ns",
                         (long long)(sampler->ended_ns - sampler->began_ns), "looks", (long long)sampler->looks,
                         "cost_ns", (long long)sampler->cost_ns, "unreadable", (long long)sampler->unreadable, "full",
                         PyBool_FromLong(sampler->profile.full));
}

static PyMethodDef profile_methods[] = {
    {"run", profile_run, METH_NOARGS, PyDoc_STR("Samples all VMs until stop(), on this thread, without the GIL.")},
    {"stop", profile_stop, METH_NOARGS, PyDoc_STR("Ends run(), from another thread.")},
    {"take", profile_take, METH_NOARGS,
     PyDoc_STR("After run(): functions: (file, name, first line); nodes: (parent, function, line, samples, wall ns, "
               "CPU ns), parents first; span_ns, looks, cost_ns, unreadable, full.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot profile_slots[] = {
    {Py_tp_new, profile_new},
    {Py_tp_dealloc, profile_dealloc},
    {Py_tp_methods, profile_methods},
    {Py_tp_doc, PyDoc_STR("Profile(hz=100): a sampling profile of all VMs of the process.")},
    {0, NULL},
};

PyType_Spec vmh_profile_spec = {
    .name = "vmhost.isolation._core.Profile",
    .basicsize = sizeof(profile_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = profile_slots,
};

PyObject *vmh_core_coverage(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const vmh_coverage *all = vmh_coverage_lock();
    PyObject *functions = functions_of(&all->functions), *points = PyList_New(all->count);
    for (int32_t i = 0; points != NULL && i < all->count; i++) {
        const vmh_point *point = &all->points[i];
        PyObject *item = Py_BuildValue("(iiii)", point->function, (int)point->kind, point->from, point->to);
        if (item == NULL)
            Py_CLEAR(points);
        else
            PyList_SET_ITEM(points, i, item);
    }
    PyObject *full = PyBool_FromLong(all->full);
    vmh_coverage_unlock();
    return Py_BuildValue("{s:N,s:N,s:N}", "functions", functions, "points", points, "full", full);
}
