/* Linear algebra for vmhost.engine.numpy.linalg, which checks shapes and makes the outputs; and convolution as a
 * product. */
#include "methods.h"

/* _linear(op, flags, cutoff, (batch, m, n, columns), inputs, outputs): the number of items that failed. Inputs and
 * outputs are C-contiguous arrays or None, as vme_linear takes them. */
PyObject *array_function__linear(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t op, flags, failed = 0, size[4] = {0};
    const vme_tensor *in[2] = {NULL, NULL}, *out[3] = {NULL, NULL, NULL};
    if (PyTuple_GET_SIZE(args[3]) != 4 || PyTuple_GET_SIZE(args[4]) > 2 || PyTuple_GET_SIZE(args[5]) > 3)
        return PyErr_Format(PyExc_ValueError, "_linear(op, flags, cutoff, four sizes, inputs, outputs)");
    if (array_argument_int(args[0], 0, &op) < 0 || array_argument_int(args[1], 0, &flags) < 0)
        return NULL;
    const double cutoff = PyFloat_AS_DOUBLE(args[2]);
    for (int i = 0; i < 4; i++)
        if (array_argument_int(PyTuple_GET_ITEM(args[3], i), 0, &size[i]) < 0)
            return NULL;
    for (int k = 4; k < 6; k++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[k]); i++) {
            PyObject *operand = PyTuple_GET_ITEM(args[k], i);
            if (operand == Py_None)
                continue;
            if (k == 5 && array_require_writable((array *)operand, "output array is read-only") < 0)
                return NULL;
            (k == 4 ? in : out)[i] = &((array *)operand)->t;
        }
    /* a product of sizes that were not checked yet */
    const double work = (double)size[0] * (double)size[1] * (double)size[2] * ((double)size[2] + (double)size[3]) + 100;
    const bool is_long = op > VME_LINEAR_CHOLESKY || !(work < ARRAY_WORK_RELEASE);
    vme_status status = WRITING(state, OPERATOR(state->context, "linear", is_long ? ARRAY_WORK_RELEASE : 0,
                                                vme_linear(state->context, (vme_linear_op)op, (unsigned)flags, cutoff,
                                                           size[0], size[1], size[2], size[3], in, out, &failed)));
    return status == VME_OK ? PyLong_FromLongLong(failed) : array_fail(state, status);
}

/* _windows(a, v, before, after): dot products of `v` with each window of `a`, padded with `before` and `after` zeros:
 * rows of a strided view times a vector. The vectors must not be empty, and `v` not longer than the padded `a`. */
PyObject *array_function__windows(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t before, after;
    if (array_argument_int(args[2], 0, &before) < 0 || array_argument_int(args[3], 0, &after) < 0)
        return NULL;
    array *a = (array *)args[0], *given = (array *)args[1], *padded = NULL, *result = NULL;
    const int64_t n = a->size, m = given->size;
    if (a->t.rank != 1 || given->t.rank != 1 || n == 0 || m == 0 || before < 0 || after < 0 || before > m || after > m
        || n + before + after < m)
        return PyErr_Format(PyExc_ValueError, "_windows() takes vectors, the second one no longer than the first");
    int dtype = (int)vme_dtype_promote((vme_dtype)a->t.dtype, (vme_dtype)given->t.dtype);
    array *v = array_contiguous(given, dtype);
    int64_t length = n + before + after, windows = length - m + 1, step = vme_dtype_size((vme_dtype)dtype);
    padded = v == NULL ? NULL : array_new(state, dtype, 1, &length, true);
    result = padded == NULL ? NULL : array_new(state, dtype, 1, &windows, false);
    if (result != NULL) {
        const vme_tensor middle = {padded->t.buffer, padded->t.data + before * step, &n, &step, 1, dtype};
        const int64_t rows[2] = {windows, m}, steps[2] = {step, step}, column[2] = {m, 1}, columns[2] = {windows, 1};
        const vme_tensor view = {padded->t.buffer, padded->t.data, rows, steps, 2, dtype};
        const vme_tensor factor = {v->t.buffer, v->t.data, column, steps, 2, dtype};
        const vme_tensor out = {result->t.buffer, result->t.data, columns, steps, 2, dtype};
        if (array_check_status(state, vme_copy(state->context, &a->t, &middle)) < 0
            || array_check_status(state, OPERATOR(state->context, "matmul", windows * m,
                                                  vme_matmul(state->context, &view, &factor, &out)))
                   < 0)
            Py_CLEAR(result);
    }
    Py_XDECREF(v);
    Py_XDECREF(padded);
    return (PyObject *)result;
}
