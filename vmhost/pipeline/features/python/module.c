/* `vmhost.pipeline.features._features`: the events of one key (History), and what is computed from them (Plan). Main
 * interpreter only, under its GIL. */
#include "python/features.h"

int vmf_to_time(PyObject *object, int64_t *time_ms)
{
    const long long found = PyLong_AsLongLong(object);
    if (found == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (PyErr_Occurred() || found > VMF_MOST_MS || found < -VMF_MOST_MS) {
        PyErr_Format(PyExc_ValueError, "a time: expected milliseconds of up to 53 bits, got %.100R", object);
        return -1;
    }
    *time_ms = found;
    return 0;
}

/* The cost of an operator: the most expensive of the passes that it shares with others of its window. */
static const char *cost_of(const vmf_entry *entry)
{
    const vmf_item item = {.value = 1, .identity = 1};
    vmf_window window = {.items = &item, .others = &item, .count = 1, .span_ms = 1};
    entry->compute(&window, 1);
    const char *cost = window.crossed || window.paired ? "pairs"
                       : window.sorted                 ? "sort"
                       : window.grouped                ? "groups"
                       : window.summed                 ? "sums"
                                                       : "pass";
    vmf_window_end(&window);
    return entry->cost != NULL ? entry->cost : cost;
}

static PyObject *operators(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < vmf_entry_count + vmf_sketch_entry_count; i++) {
        const vmf_entry *entry = i < vmf_entry_count ? &vmf_entries[i] : NULL;
        const vmf_sketch_entry *sketch = entry == NULL ? &vmf_sketch_entries[i - vmf_entry_count] : NULL;
        PyObject *item =
            entry != NULL ? Py_BuildValue("(sNNss)", entry->name, PyBool_FromLong(entry->wants),
                                          PyBool_FromLong(entry->other), cost_of(entry), entry->says)
                          : Py_BuildValue("(sNNss)", sketch->name, PyBool_FromLong(sketch->wants), PyBool_FromLong(0),
                                          sketch->distinct    ? "distinct sketch"
                                          : sketch->quantiles ? "quantile sketch"
                                                              : "panes",
                                          sketch->says);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *derived(PyObject *Py_UNUSED(module), PyObject *args)
{
    int kind;
    double a, b;
    if (!PyArg_ParseTuple(args, "idd:derived", &kind, &a, &b))
        return NULL;
    if (kind < RATIO || kind > BOTH)
        return PyErr_Format(PyExc_ValueError, "there is no kind %d", kind);
    return PyFloat_FromDouble(vmf_derived(kind, a, b));
}

static PyMethodDef module_methods[] = {
    {"derived", derived, METH_VARARGS, PyDoc_STR("derived(kind, a, b): of two features, as a step of a Plan would.")},
    {"operators", operators, METH_NOARGS,
     PyDoc_STR("operators(): (name, whether it wants a parameter, whether it wants a second field, what it costs, what "
               "it is) of each.")},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    return PyModule_AddType(module, &vmf_history_type) < 0 || PyModule_AddType(module, &vmf_plan_type) < 0
                   || PyModule_AddIntConstant(module, "PANES", VMF_PANES) < 0
               ? -1
               : 0;
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
