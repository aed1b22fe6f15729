/* Models for Python, used by engine/models.py. A session is a capsule that belongs to the interpreter that opened it.
 *
 * In a VM the host determines which models there are (VME_MODELS_CAPSULE); elsewhere a model is made from its file's
 * bytes. */
#include "kinds.h"
#include "methods.h"

#include "vme_python.h"
#include "vme_search.h"

/* NULL: an error is set, or this interpreter may open any model. */
static const struct vme_python_models *models_here(void)
{
    PyObject *owned = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    PyObject *capsule = owned == NULL ? NULL : PyDict_GetItemString(owned, VME_MODELS_CAPSULE);
    return capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, VME_MODELS_CAPSULE);
}

static int add_name(const char *name, void *list)
{
    PyObject *text = PyUnicode_FromString(name);
    int rc = text == NULL ? -1 : PyList_Append(list, text);
    Py_XDECREF(text);
    return rc;
}

/* _model_names(): the models of this VM's bundle, sorted; None where models are made from bytes */
PyObject *array_function__model_names(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module, (void)args, (void)count, (void)keywords;
    const struct vme_python_models *here = models_here();
    if (here == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *list = PyList_New(0);
    if (list == NULL || here->visit(add_name, list) != 0 || PyList_Sort(list) < 0)
        Py_CLEAR(list);
    return list;
}

static vme_session *session_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, ARRAY_SESSION_CAPSULE); }

static void session_free(PyObject *capsule) { vme_session_free(session_of(capsule)); }

/* _model_open(source, threads, ftz, fixed, spend, like, part): a session for that part of the model with that name, or
 * of the model in these bytes; `fixed`, `spend` and `like` (a session of that model, or None) as in vme_search.h */
PyObject *array_function__model_open(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *source = args[0];
    const bool flush = args[2] == Py_True;
    int64_t threads, part;
    vme_model_options options = {.fixed = args[3] == NULL || args[3] == Py_True, .spend = args[4] == Py_True};
    if (array_argument_int(args[6], 0, &part) < 0 || array_argument_int(args[1], 0, &threads) < 0)
        return NULL;
    if (array_given(args[5]))
        options.like = vme_session_model(session_of(args[5]));
    const struct vme_python_models *here = models_here();
    vme_model *model = NULL;
    vme_session *session = NULL;
    if (here == NULL && PyErr_Occurred())
        return NULL;
    if (here != NULL) {
        const char *name = PyUnicode_Check(source) ? PyUnicode_AsUTF8(source) : NULL;
        if (name == NULL)
            return PyErr_Occurred()
                       ? NULL
                       : PyErr_Format(PyExc_TypeError, "expected a model's name, got %s", Py_TYPE(source)->tp_name);
        Py_ssize_t length;
        model = PyUnicode_AsUTF8AndSize(source, &length) != NULL && strlen(name) == (size_t)length ? here->find(name)
                                                                                                   : NULL;
        if (model == NULL)
            return PyErr_Format(PyExc_LookupError, "this task's bundle has no model %R", source);
        model = part < 0 || part > INT32_MAX ? NULL : vme_model_part(model, (int)part);
        if (model == NULL)
            return PyErr_Format(PyExc_ValueError, "model %R has no part %lld", source, (long long)part);
        vme_model_ref(model);
    } else {
        Py_buffer bytes;
        if (PyObject_GetBuffer(source, &bytes, options.spend ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            return NULL;
        vme_status status = OPERATOR(state->context, "model_prepare", ARRAY_WORK_RELEASE,
                                     vme_model_prepare(state->context, bytes.buf, (size_t)bytes.len, &options, &model));
        PyBuffer_Release(&bytes);
        if (status != VME_OK)
            return array_fail(state, status);
    }
    vme_status status = vme_session_new(state->context, model, &session);
    vme_model_unref(model);
    if (status != VME_OK)
        return array_fail(state, status);
    status = vme_session_options(session,
                                 threads > INT32_MAX ? INT32_MAX
                                 : threads < 0       ? -1
                                                     : (int)threads,
                                 flush ? VME_FLUSH_SUBNORMALS : 0);
    if (status != VME_OK) {
        vme_session_free(session);
        return array_fail(state, status);
    }
    PyObject *capsule = PyCapsule_New(session, ARRAY_SESSION_CAPSULE, session_free);
    if (capsule == NULL)
        vme_session_free(session);
    return capsule;
}

/* A shape as a tuple; open sizes are their names. */
static PyObject *shape_of(int rank, const int64_t *sizes, const char *const *open)
{
    PyObject *shape = PyTuple_New(rank);
    for (int d = 0; shape != NULL && d < rank; d++) {
        PyObject *size = open == NULL || open[d] == NULL
                             ? PyLong_FromLongLong(sizes[d])
                             : PyUnicode_DecodeUTF8(open[d], (Py_ssize_t)strlen(open[d]), "replace");
        if (size == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, d, size);
    }
    return shape;
}

static PyObject *ports_of(array_state *state, const vme_model *model, bool outputs)
{
    int ports = vme_model_count(model, outputs);
    PyObject *result = PyTuple_New(ports);
    for (int i = 0; result != NULL && i < ports; i++) {
        vme_port port;
        vme_model_port(model, outputs, i, &port);
        PyObject *shape = shape_of(port.rank, port.shape, port.open),
                 *name = PyUnicode_DecodeUTF8(port.name, (Py_ssize_t)strlen(port.name), "replace");
        PyObject *item = shape == NULL || name == NULL ? NULL : PyTuple_Pack(3, name, state->dtypes[port.dtype], shape);
        Py_XDECREF(shape);
        Py_XDECREF(name);
        if (item == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, item);
    }
    return result;
}

/* For each output the number of the input that it continues, or None. */
static PyObject *continued_of(const vme_model *model)
{
    const int outputs = vme_model_count(model, true);
    PyObject *result = PyTuple_New(outputs);
    for (int i = 0; result != NULL && i < outputs; i++) {
        const int input = vme_model_continues(model, i);
        PyObject *item = input < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(input);
        if (item == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, item);
    }
    return result;
}

/* _model_ports(session): (inputs, outputs, continued, notes): the first two are tuples of (name, dtype, shape), where
 * an open size is a str; for each output the number of the input that it continues, or None; and the notes of the
 * model's file for its callers, a str */
PyObject *array_function__model_ports(PyObject *module, ARRAY_VECTORCALL)
{
    vme_session *session = session_of(args[0]);
    PyObject *inputs = ports_of(array_state_of(module), vme_session_model(session), false);
    PyObject *outputs = inputs == NULL ? NULL : ports_of(array_state_of(module), vme_session_model(session), true);
    const char *text = vme_model_notes(vme_session_model(session));
    PyObject *notes = outputs == NULL ? NULL : PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *continued = notes == NULL ? NULL : continued_of(vme_session_model(session));
    PyObject *all = continued == NULL ? NULL : PyTuple_Pack(4, inputs, outputs, continued, notes);
    Py_XDECREF(continued);
    Py_XDECREF(inputs);
    Py_XDECREF(outputs);
    Py_XDECREF(notes);
    return all;
}

/* The arrays of the tuple as tensors, one for each input of the session's model, in `tensors`, which has room for
 * `more` further ones and is freed with PyMem_Free. Returns a new reference that keeps their memory alive; NULL: an
 * error is set, and there is nothing to free. */
static PyObject *inputs_of(vme_session *session, PyObject *arrays, int more, const vme_tensor ***tensors)
{
    const int inputs = vme_model_count(vme_session_model(session), false);
    if (!PyTuple_Check(arrays) || PyTuple_GET_SIZE(arrays) != inputs)
        return PyErr_Format(PyExc_TypeError, "expected a tuple of %d arrays", inputs);
    const vme_tensor **result = PyMem_Calloc((size_t)inputs + (size_t)more, sizeof *result);
    PyObject *held = result == NULL ? PyErr_NoMemory() : PyTuple_New(inputs);
    for (int i = 0; held != NULL && i < inputs; i++) {
        PyObject *input = PyTuple_GET_ITEM(arrays, i);
        array *dense = NULL;
        if (!is_array(input))
            PyErr_Format(PyExc_TypeError, "expected arrays, got %s", Py_TYPE(input)->tp_name);
        else
            dense = array_contiguous((array *)input, ((array *)input)->t.dtype);
        if (dense == NULL)
            Py_CLEAR(held);
        else {
            PyTuple_SET_ITEM(held, i, (PyObject *)dense);
            result[i] = &dense->t;
        }
    }
    if (held == NULL)
        PyMem_Free(result);
    else
        *tensors = result;
    return held;
}

/* A size that a call chooses, by its name. */
typedef struct open_size {
    const char *name;
    int64_t size;
} open_size;

enum { OPEN_SIZES_MAX = 64 };

/* Whether the array fits the port, given the open sizes that earlier arrays determined; adds those that it determines.
 */
static bool fits_port(const vme_port *port, const vme_tensor *given, open_size *known, int *count)
{
    if (given->dtype != port->dtype || given->rank != port->rank)
        return false;
    for (int d = 0; d < port->rank; d++) {
        const char *name = port->open == NULL ? NULL : port->open[d];
        int64_t wanted = name == NULL ? port->shape[d] : given->shape[d];
        int i = 0;
        while (name != NULL && i < *count && strcmp(known[i].name, name) != 0)
            i++;
        if (name != NULL && i < *count)
            wanted = known[i].size;
        else if (name != NULL && i == OPEN_SIZES_MAX)
            return false;
        else if (name != NULL)
            known[(*count)++] = (open_size){name, wanted};
        if (given->shape[d] != wanted)
            return false;
    }
    return true;
}

/* _model_arrays(session, names, inputs): a tuple of arrays of what the dict `inputs` has by these names, those of the
 * model's inputs in their order; None where that is not all that it has, or something does not fit:
 * engine/models.py looks for what */
PyObject *array_function__model_arrays(PyObject *module, ARRAY_VECTORCALL)
{
    vme_session *session = session_of(args[0]);
    const vme_model *model = vme_session_model(session);
    const int inputs = vme_model_count(model, false);
    if (!PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) != inputs || !PyDict_CheckExact(args[2])
        || PyDict_GET_SIZE(args[2]) != inputs)
        Py_RETURN_NONE;
    open_size known[OPEN_SIZES_MAX];
    int sizes = 0;
    PyObject *result = PyTuple_New(inputs);
    for (int i = 0; result != NULL && i < inputs; i++) {
        PyObject *item;
        array *input = NULL;
        vme_port port;
        vme_model_port(model, false, i, &port);
        int there = PyDict_GetItemRef(args[2], PyTuple_GET_ITEM(args[1], i), &item);
        if (there == 1 && (is_array(item) || PyObject_CheckBuffer(item))) {
            input = array_from_any(array_state_of(module), item, -1);
            there = input == NULL ? -1 : 1;
        } else if (there == 1)
            there = 0;
        Py_XDECREF(item);
        if (there == 1 && ((input->flags & ARRAY_SCALAR) || !fits_port(&port, &input->t, known, &sizes)))
            there = 0;
        if (there == 1) {
            PyTuple_SET_ITEM(result, i, (PyObject *)input);
            continue;
        }
        Py_XDECREF(input);
        Py_DECREF(result);
        if (there < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    return result;
}

/* The session's model at the sizes of these inputs: a new reference, or NULL with an error set. */
static vme_model *plan_of(array_state *state, vme_session *session, const vme_tensor *const *inputs)
{
    vme_model *plan = NULL;
    vme_port port;
    vme_model_port(vme_session_model(session), false, 0, &port);
    if (array_check_status(state,
                           ENGINE(port.open == NULL ? 0 : ARRAY_WORK_RELEASE, vme_session_plan(session, inputs, &plan)))
        < 0)
        return NULL;
    return plan;
}

/* _model_backends(session): for each candidate backend (name, expected nanoseconds of a run on one core, whether it was
 * chosen) */
PyObject *array_function__model_backends(PyObject *module, ARRAY_VECTORCALL)
{
    (void)module;
    vme_session *session = session_of(args[0]);
    const vme_model *model = vme_session_model(session);
    PyObject *result = PyList_New(0);
    for (int b = 0; result != NULL && b < vme_backend_count(); b++) {
        if (vme_model_total(model, b) == 0)
            continue;
        PyObject *item = Py_BuildValue("(sdO)", vme_backend_name(b), vme_model_total(model, b),
                                       vme_model_backend(model) == b ? Py_True : Py_False);
        if (item == NULL || PyList_Append(result, item) < 0)
            Py_CLEAR(result);
        Py_XDECREF(item);
    }
    PyObject *all = result == NULL ? NULL : PyList_AsTuple(result);
    Py_XDECREF(result);
    return all;
}

/* _model_steps(session, inputs): for each step (name, kind, algorithm, dtype, shape, products, bytes, expected
 * nanoseconds); open sizes are those of these inputs */
PyObject *array_function__model_steps(PyObject *module, ARRAY_VECTORCALL)
{
    vme_session *session = session_of(args[0]);
    vme_model *model = NULL;
    if (args[1] == NULL || args[1] == Py_None)
        model = vme_model_ref(vme_session_model(session));
    else {
        const vme_tensor **tensors;
        PyObject *held = inputs_of(session, args[1], 0, &tensors);
        if (held == NULL)
            return NULL;
        model = plan_of(array_state_of(module), session, tensors);
        PyMem_Free(tensors);
        Py_DECREF(held);
        if (model == NULL)
            return NULL;
    }
    int steps = vme_model_steps(model);
    PyObject *result = PyTuple_New(steps);
    for (int i = 0; result != NULL && i < steps; i++) {
        vme_step step;
        vme_model_step(model, i, &step);
        PyObject *shape = shape_of(step.rank, step.shape, NULL),
                 *name = PyUnicode_DecodeUTF8(step.name, (Py_ssize_t)strlen(step.name), "replace");
        PyObject *item =
            shape == NULL || name == NULL
                ? NULL
                : Py_BuildValue("(OssOOLLd)", name, step.kind, step.algorithm,
                                array_state_of(module)->dtypes[step.dtype], shape, (long long)step.products,
                                (long long)step.bytes, vme_model_expected(model, i));
        Py_XDECREF(shape);
        Py_XDECREF(name);
        if (item == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, item);
    }
    vme_model_unref(model);
    return result;
}

/* Replaces `result` by (result, nanoseconds of each step). */
static PyObject *with_times(PyObject *result, int steps, const uint64_t *ns)
{
    PyObject *times = PyTuple_New(steps), *both = NULL;
    for (int i = 0; times != NULL && i < steps; i++) {
        PyObject *time = PyLong_FromUnsignedLongLong(ns[i]);
        if (time == NULL)
            Py_CLEAR(times);
        else
            PyTuple_SET_ITEM(times, i, time);
    }
    if (times != NULL)
        both = PyTuple_Pack(2, result, times);
    Py_XDECREF(times);
    Py_DECREF(result);
    return both;
}

/* Of a contiguous tensor. */
static uintptr_t bytes_of(const vme_tensor *tensor)
{
    int64_t bytes = vme_dtype_size((vme_dtype)tensor->dtype);
    for (int d = 0; d < tensor->rank; d++)
        bytes *= tensor->shape[d];
    return (uintptr_t)bytes;
}

static bool meet(const vme_tensor *a, const vme_tensor *b)
{
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return first < second + bytes_of(b) && second < first + bytes_of(a);
}

/* The array for output `number`: one of `out`, a tuple, or a new one. A new reference, or NULL with an error set.
 * `tensors` are those of the inputs, followed by the outputs before this one. */
static array *output_of(array_state *state, const vme_model *plan, int number, PyObject *out,
                        const vme_tensor *const *tensors)
{
    vme_port port;
    vme_model_port(plan, true, number, &port);
    if (out == Py_None || PyTuple_GET_ITEM(out, number) == Py_None)
        return array_new(state, port.dtype, port.rank, port.shape, false);
    PyObject *given = PyTuple_GET_ITEM(out, number);
    if (!is_array(given)) {
        PyErr_Format(PyExc_TypeError, "out: expected arrays, got %s", Py_TYPE(given)->tp_name);
        return NULL;
    }
    if (array_require_writable((array *)given, "out: the array is read-only") < 0)
        return NULL;
    const vme_tensor *target = &((array *)given)->t;
    const int inputs = vme_model_count(plan, false), from = vme_model_continues(plan, number);
    for (int i = 0; i < inputs + number; i++)
        if ((i != from || tensors[i]->data != target->data) && meet(target, tensors[i])) {
            vme_port other;
            vme_model_port(plan, i >= inputs, i < inputs ? i : i - inputs, &other);
            PyErr_Format(PyExc_ValueError, "out: the array of '%s' overlaps that of '%s'", port.name, other.name);
            return NULL;
        }
    return (array *)Py_NewRef(given);
}

/* _model_run(session, inputs, profile, out): a tuple of arrays; `inputs` is a tuple of arrays in the model's order;
 * `out` is None or a tuple of arrays to write outputs to, with None for new ones. With `profile` returns a pair of the
 * arrays and the nanoseconds of each step. */
PyObject *array_function__model_run(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *result = NULL;
    uint64_t *ns = NULL;
    const bool profile = args[2] == Py_True;
    vme_session *session = session_of(args[0]);
    const int inputs = vme_model_count(vme_session_model(session), false),
              outputs = vme_model_count(vme_session_model(session), true);
    PyObject *out = args[3] == NULL ? Py_None : args[3];
    if (out != Py_None && (!PyTuple_Check(out) || PyTuple_GET_SIZE(out) != outputs))
        return PyErr_Format(PyExc_TypeError, "out: expected a tuple of %d arrays, or None", outputs);
    const vme_tensor **tensors;
    PyObject *held = inputs_of(session, args[1], outputs, &tensors);
    if (held == NULL)
        return NULL;
    vme_model *plan = plan_of(state, session, tensors);
    if (plan == NULL)
        goto done;
    if (profile) {
        ns = PyMem_Calloc((size_t)vme_model_steps(plan), sizeof *ns);
        if (ns == NULL) {
            PyErr_NoMemory();
            goto done;
        }
    }
    const bool writes = out != Py_None; /* as WRITING, from the check of the arrays on */
    state->writing += writes;
    result = PyTuple_New(outputs);
    for (int i = 0; result != NULL && i < outputs; i++) {
        array *output = output_of(state, plan, i, out, tensors);
        if (output == NULL)
            Py_CLEAR(result);
        else {
            PyTuple_SET_ITEM(result, i, (PyObject *)output);
            tensors[inputs + i] = &output->t;
        }
    }
    if (result != NULL
        && array_check_status(
               state, ENGINE(ARRAY_WORK_RELEASE, profile ? vme_session_profile(session, tensors, tensors + inputs, ns)
                                                         : vme_session_run(session, tensors, tensors + inputs)))
               < 0)
        Py_CLEAR(result);
    state->writing -= writes;
    if (result != NULL && profile)
        result = with_times(result, vme_model_steps(plan), ns);
done:
    if (plan != NULL)
        vme_model_unref(plan);
    PyMem_Free(ns);
    PyMem_Free(tensors);
    Py_DECREF(held);
    return result;
}
