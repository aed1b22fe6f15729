/* Reductions and cumulative functions, as methods and as functions. */
#include "methods.h"

static int reduce_cost(int op) { return op == VME_PROD ? 2 : 1; }

/* Makes the output of a reduction: without the reduced dimensions, or with size 1 there. `full` receives the view that
 * the engine writes; its shape and strides are the caller's arrays. */
static array *reduced_new(array *self, uint64_t axes, bool keep, int dtype, array *out, vme_tensor *full,
                          int64_t *shape, int64_t *strides)
{
    int64_t kept[VME_RANK_MAX], step = vme_dtype_size((vme_dtype)dtype);
    int rank = 0;
    for (int i = 0; i < self->t.rank; i++) {
        shape[i] = axes >> i & 1 ? 1 : self->t.shape[i];
        if (keep || !(axes >> i & 1))
            kept[rank++] = shape[i];
    }
    array *result;
    if (out != NULL) {
        if (out->t.rank != rank || memcmp(out->t.shape, kept, (size_t)rank * sizeof *kept) != 0) {
            PyErr_Format(PyExc_ValueError,
                         "output parameter for reduction operation has the wrong number of dimensions or the wrong "
                         "shape: expected %d dimensions, got %d",
                         rank, out->t.rank);
            return NULL;
        }
        result = (array *)Py_NewRef(out);
        for (int i = self->t.rank - 1, from = rank - 1; i >= 0; i--) {
            bool there = keep || !(axes >> i & 1);
            strides[i] = there ? out->t.strides[from] : 0;
            from -= there;
        }
    } else {
        result = rank == 0 ? array_new_scalar(self->state, dtype) : array_new(self->state, dtype, rank, kept, false);
        for (int i = self->t.rank - 1; i >= 0; i--) {
            strides[i] = step;
            step *= shape[i] == 0 ? 1 : shape[i];
        }
    }
    if (result != NULL)
        *full = (vme_tensor){result->t.buffer, result->t.data, shape, strides, self->t.rank, result->t.dtype};
    return result;
}

PyObject *array_reduce(array *self, int op, uint64_t axes, bool keep, int dtype, array *out, PyObject *initial)
{
    array_state *state = self->state;
    vme_dtype loop, result;
    vme_tensor full;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    char element[ARRAY_ELEMENT_BYTES];
    vme_status status = vme_reduce_types((vme_reduce_op)op, (vme_dtype)self->t.dtype, &loop, &result);
    if (status != VME_OK)
        return array_fail(state, status);
    if (dtype >= 0) {
        loop = (vme_dtype)dtype;
        result = (vme_dtype)dtype;
    }
    if (initial != NULL && element_from_python((int)loop, initial, element) < 0)
        return NULL;
    array *created = reduced_new(self, axes, keep, (int)result, out, &full, shape, strides);
    if (created == NULL)
        return NULL;
    status = OPERATOR(
        state->context, vme_reduce_name((vme_reduce_op)op), self->size * reduce_cost(op),
        vme_reduce(state->context, (vme_reduce_op)op, loop, &self->t, axes, initial != NULL ? element : NULL, &full));
    if (status != VME_OK) {
        Py_DECREF(created);
        return array_fail(state, status);
    }
    return out != NULL ? (PyObject *)created : array_as_scalar(created);
}

/* Elements excluded by where= get the operation's neutral value (or `initial`). */
static array *masked(array *self, PyObject *where, int op, PyObject *initial)
{
    PyObject *neutral = NULL;
    if (op == VME_SUM || op == VME_ANY || op == VME_COUNT_NONZERO)
        neutral = PyLong_FromLong(0);
    else if (op == VME_PROD || op == VME_ALL)
        neutral = PyLong_FromLong(1);
    else if (initial != NULL)
        neutral = Py_NewRef(initial);
    else
        PyErr_Format(PyExc_ValueError,
                     "reduction operation '%s' does not have an identity, so to use a where mask one has to specify "
                     "'initial'",
                     op == VME_MAX   ? "maximum"
                     : op == VME_MIN ? "minimum"
                                     : vme_reduce_name((vme_reduce_op)op));
    array *result = NULL, *mask = neutral == NULL ? NULL : array_from_any(self->state, where, VME_BOOL);
    array *value = mask == NULL ? NULL : array_scalar_from(self->state, self->t.dtype, neutral);
    if (value != NULL) {
        const vme_tensor *both[2] = {&self->t, &mask->t};
        int64_t shape[VME_RANK_MAX];
        int rank;
        if (array_check_status(self->state, vme_shape_broadcast(2, both, &rank, shape)) == 0)
            result = array_new(self->state, self->t.dtype, rank, shape, false);
        if (result != NULL
            && array_check_status(self->state,
                                  OPERATOR(self->state->context, "where", self->size,
                                           vme_where(self->state->context, &mask->t, &self->t, &value->t, &result->t)))
                   < 0)
            Py_CLEAR(result);
    }
    Py_XDECREF(neutral);
    Py_XDECREF(mask);
    Py_XDECREF(value);
    return result;
}

/* values: a, axis, dtype, out, keepdims, initial, where */
static PyObject *reduce_by(array *self, int op, PyObject **values)
{
    uint64_t axes;
    bool keep;
    array *out;
    array_state *state = self->state;
    PyObject *initial = array_given(values[5]) ? values[5] : NULL;
    int dtype = array_argument_dtype(state, values[2], -1);
    if ((dtype < 0 && PyErr_Occurred()) || array_argument_axes(state, values[1], self->t.rank, &axes) < 0
        || array_argument_out(values[3], &out) < 0 || array_argument_bool(values[4], false, &keep) < 0)
        return NULL;
    if (out != NULL && dtype < 0 && (op == VME_SUM || op == VME_PROD)) /* as in NumPy, `out` may have any dtype */
        dtype = (int)vme_dtype_promote((vme_dtype)self->t.dtype, (vme_dtype)out->t.dtype);
    if (values[6] == NULL || values[6] == Py_True)
        return array_reduce(self, op, axes, keep, dtype, out, initial);
    array *with = masked(self, values[6], op, initial);
    if (with == NULL)
        return NULL;
    PyObject *result = array_reduce(with, op, axes, keep, dtype, out, initial);
    Py_DECREF(with);
    return result;
}

static const char *const sum_names[] = {"a", "axis", "dtype", "out", "keepdims", "initial", "where", NULL};
static const char *const max_names[] = {"a", "axis", "out", "keepdims", "initial", "where", NULL};
static const char *const all_names[] = {"a", "axis", "out", "keepdims", "where", NULL};

static PyObject *sum(array_state *state, array *self, PyObject **values) { return reduce_by(self, VME_SUM, values); }
static PyObject *prod(array_state *state, array *self, PyObject **values) { return reduce_by(self, VME_PROD, values); }
static PyObject *extreme(array *self, int op, PyObject **values)
{
    PyObject *all[7] = {values[0], values[1], NULL, values[2], values[3], values[4], values[5]};
    return reduce_by(self, op, all);
}
static PyObject *max(array_state *state, array *self, PyObject **values) { return extreme(self, VME_MAX, values); }
static PyObject *min(array_state *state, array *self, PyObject **values) { return extreme(self, VME_MIN, values); }
static PyObject *known_max(array_state *state, array *self, PyObject **values)
{
    return extreme(self, VME_KNOWN_MAX, values);
}
static PyObject *known_min(array_state *state, array *self, PyObject **values)
{
    return extreme(self, VME_KNOWN_MIN, values);
}
static PyObject *truth(array *self, int op, PyObject **values)
{
    PyObject *all[7] = {values[0], values[1], NULL, values[2], values[3], NULL, values[4]};
    return reduce_by(self, op, all);
}
static PyObject *all(array_state *state, array *self, PyObject **values) { return truth(self, VME_ALL, values); }
static PyObject *any(array_state *state, array *self, PyObject **values) { return truth(self, VME_ANY, values); }
ARRAY_BOTH_OF(sum, sum_names, 7, 1, 7, sum)
ARRAY_BOTH_OF(prod, sum_names, 7, 1, 7, prod)
ARRAY_BOTH_OF(max, max_names, 6, 1, 6, max)
ARRAY_BOTH_OF(min, max_names, 6, 1, 6, min)
ARRAY_FUNCTION_OF(_fmax, max_names, 6, 1, 6, known_max)
ARRAY_FUNCTION_OF(_fmin, max_names, 6, 1, 6, known_min)
ARRAY_BOTH_OF(all, all_names, 4, 1, 5, all)
ARRAY_BOTH_OF(any, all_names, 4, 1, 5, any)

/* the sum of a diagonal */
static const char *const trace_names[] = {"a", "offset", "axis1", "axis2", "dtype", "out", NULL};
static PyObject *trace(array_state *state, array *self, PyObject **values)
{
    array *diagonal = array_diagonal(state, self, values);
    PyObject *last = diagonal == NULL ? NULL : PyLong_FromLong(-1);
    PyObject *all_values[7] = {(PyObject *)diagonal, last, values[4], values[5], NULL, NULL, NULL};
    PyObject *result = last == NULL ? NULL : reduce_by(diagonal, VME_SUM, all_values);
    Py_XDECREF(diagonal);
    Py_XDECREF(last);
    return result;
}
ARRAY_BOTH_OF(trace, trace_names, 6, 1, 6, trace)

/* _reduceat(name of a reduction, array, starts, name of its ufunc): numpy's reduceat along the first axis */
PyObject *array_function__reduceat(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    array *self = (array *)args[1], *given = (array *)args[2], *starts = NULL, *created = NULL;
    if (self->t.rank == 0 || given->t.rank != 1 || given->t.dtype != VME_INT64)
        return PyErr_Format(PyExc_ValueError, "_reduceat() takes rows and a vector of int64");
    int op = 0;
    while (op < VME_REDUCE_COUNT && !PyUnicode_EqualToUTF8(args[0], vme_reduce_name((vme_reduce_op)op)))
        op++;
    if (op == VME_REDUCE_COUNT)
        return PyErr_Format(PyExc_ValueError, "_reduceat(): no reduction %R", args[0]);
    vme_dtype loop, result;
    if (array_check_status(state, vme_reduce_types((vme_reduce_op)op, (vme_dtype)self->t.dtype, &loop, &result)) < 0)
        return NULL;
    int64_t in_shape[VME_RANK_MAX], out_shape[VME_RANK_MAX], length = self->t.shape[0];
    memcpy(in_shape, self->t.shape, (size_t)self->t.rank * sizeof *in_shape);
    memcpy(out_shape, self->t.shape, (size_t)self->t.rank * sizeof *out_shape);
    starts = array_cast(given, VME_INT64); /* a copy, which no other thread writes once it was checked */
    if (starts == NULL)
        return NULL;
    const int64_t *at = (const int64_t *)(const void *)starts->t.data;
    for (int64_t i = 0; i < starts->size; i++)
        if (at[i] < 0 || at[i] >= length) {
            PyErr_Format(PyExc_IndexError, "index %lld out-of-bounds in %S.reduceat [0, %lld)", (long long)at[i],
                         args[3], (long long)length);
            goto done;
        }
    out_shape[0] = starts->size;
    created = array_new(state, (int)result, self->t.rank, out_shape, false);
    if (created == NULL)
        goto done;
    out_shape[0] = 1;
    vme_tensor in = self->t, out = created->t;
    in.shape = in_shape;
    out.shape = out_shape;
    for (int64_t i = 0; i < starts->size; i++) {
        const int64_t start = at[i], stop = i + 1 < starts->size ? at[i + 1] : length;
        in_shape[0] = stop > start ? stop - start : 1;
        in.data = self->t.data + start * self->t.strides[0];
        out.data = created->t.data + i * created->t.strides[0];
        if (array_check_status(state, OPERATOR(state->context, vme_reduce_name((vme_reduce_op)op),
                                               self->size / length * in_shape[0],
                                               vme_reduce(state->context, (vme_reduce_op)op, loop, &in, 1, NULL, &out)))
            < 0) {
            Py_CLEAR(created);
            break;
        }
    }
done:
    Py_DECREF(starts);
    return (PyObject *)created;
}

static const char *const count_names[] = {"a", "axis", "keepdims", NULL};
static PyObject *count_nonzero(array_state *state, array *self, PyObject **values)
{
    PyObject *all_values[7] = {values[0], values[1], NULL, NULL, values[2], NULL, NULL};
    return reduce_by(self, VME_COUNT_NONZERO, all_values);
}
ARRAY_FUNCTION_OF(count_nonzero, count_names, 2, 1, 3, count_nonzero)

/* axis None: the index in the flat array */
static const char *const arg_names[] = {"a", "axis", "out", "keepdims", NULL};
static PyObject *arg_extreme(array *self, int op, PyObject **values)
{
    bool keep;
    array *out, *over = (array *)Py_NewRef(self);
    uint64_t axes = 1;
    if (array_argument_bool(values[3], false, &keep) < 0 || array_argument_out(values[2], &out) < 0)
        goto failed;
    int axis;
    const bool flat = !array_given(values[1]) || self->t.rank == 0;
    if (array_given(values[1]) && array_argument_axis_of_one(self->state, values[1], self->t.rank, &axis) < 0)
        goto failed;
    if (flat) {
        int64_t size[1] = {self->size};
        Py_SETREF(over, array_reshape(self, 1, size));
        if (over == NULL)
            return NULL;
    } else {
        axes = UINT64_C(1) << axis;
    }
    array *into = out; /* the index in the flat array is written to the one element of `out` */
    if (flat && keep && out != NULL) {
        if (out->t.rank != self->t.rank || out->size != 1) {
            PyErr_Format(PyExc_ValueError,
                         "output parameter for reduction operation has the wrong number of dimensions or the wrong "
                         "shape: expected %d dimensions of size 1, got %d",
                         self->t.rank, out->t.rank);
            goto failed;
        }
        into = array_view_of(out, out->t.dtype, 0, NULL, NULL, out->t.data);
        if (into == NULL)
            goto failed;
    }
    PyObject *result = array_reduce(over, op, axes, keep && !flat, -1, into, NULL);
    Py_DECREF(over);
    if (into != out) {
        Py_DECREF(into);
        if (result != NULL)
            Py_SETREF(result, Py_NewRef(out));
    } else if (result != NULL && keep && !array_given(values[1])) {
        int64_t ones[VME_RANK_MAX];
        for (int i = 0; i < self->t.rank; i++)
            ones[i] = 1;
        Py_SETREF(result, (PyObject *)array_reshape((array *)result, self->t.rank, ones));
    }
    return result;
failed:
    Py_DECREF(over);
    return NULL;
}
static PyObject *argmax(array_state *state, array *self, PyObject **values)
{
    return arg_extreme(self, VME_ARGMAX, values);
}
static PyObject *argmin(array_state *state, array *self, PyObject **values)
{
    return arg_extreme(self, VME_ARGMIN, values);
}
ARRAY_BOTH_OF(argmax, arg_names, 3, 1, 4, argmax)
ARRAY_BOTH_OF(argmin, arg_names, 3, 1, 4, argmin)

/* mean: sums integers in float64, float16 in float32 */
static const char *const mean_names[] = {"a", "axis", "dtype", "out", "keepdims", "where", NULL};
static PyObject *mean(array_state *state, array *self, PyObject **values)
{
    uint64_t axes;
    bool keep;
    array *out, *with = (array *)Py_NewRef(self);
    PyObject *total = NULL, *number = NULL, *result = NULL;
    int dtype = array_argument_dtype(state, values[2], -1), loop, final;
    if ((dtype < 0 && PyErr_Occurred()) || array_argument_axes(state, values[1], self->t.rank, &axes) < 0
        || array_argument_out(values[3], &out) < 0 || array_argument_bool(values[4], false, &keep) < 0)
        goto done;
    final = dtype >= 0 ? dtype : self->t.dtype < VME_FLOAT16 ? VME_FLOAT64 : self->t.dtype;
    loop = dtype >= 0 ? dtype : final == VME_FLOAT16 ? VME_FLOAT32 : final;
    int64_t items = 1;
    for (int i = 0; i < self->t.rank; i++)
        items *= axes >> i & 1 ? self->t.shape[i] : 1;
    if (values[5] != NULL && values[5] != Py_True) {
        Py_SETREF(with, masked(self, values[5], VME_SUM, NULL));
        array *mask = with == NULL ? NULL : array_from_any(state, values[5], VME_BOOL);
        array *wide = mask == NULL ? NULL : array_broadcast_to(mask, with->t.rank, with->t.shape);
        number = wide == NULL ? NULL : array_reduce(wide, VME_COUNT_NONZERO, axes, keep, -1, NULL, NULL);
        Py_XDECREF(mask);
        Py_XDECREF(wide);
    } else
        number = PyFloat_FromDouble((double)items);
    if (number == NULL)
        goto done;
    total = array_reduce(with, VME_SUM, axes, keep, loop, NULL, NULL);
    if (total == NULL)
        goto done;
    if (out != NULL && !dtype_can_cast(((array *)total)->t.dtype, out->t.dtype, CAST_SAME_KIND)) {
        /* as in NumPy: the sum is cast to the output's dtype, then divided and cast again */
        Py_SETREF(total, (PyObject *)array_cast((array *)total, out->t.dtype));
        PyObject *quotient = total == NULL ? NULL : array_binary(state, VME_DIVIDE, total, number, NULL, -1);
        if (quotient != NULL && array_assign(out, (array *)quotient) == 0)
            result = Py_NewRef(out);
        Py_XDECREF(quotient);
        goto done;
    }
    result = array_binary(state, VME_DIVIDE, total, number, out, -1);
    if (result != NULL && out == NULL && ((array *)result)->t.dtype != final)
        Py_SETREF(result, array_as_scalar(array_cast((array *)result, final)));
done:
    Py_XDECREF(with);
    Py_XDECREF(total);
    Py_XDECREF(number);
    return result;
}
ARRAY_BOTH_OF(mean, mean_names, 6, 1, 6, mean)

/* Whether elements may share memory: a running result must not be read back from there. False if each dimension steps
 * over all that the dimensions of smaller strides reach, which holds for all views that indexing makes. */
static bool overlaps_itself(const array *of)
{
    uint64_t seen = 0;
    int64_t reach = vme_dtype_size((vme_dtype)of->t.dtype);
    for (int n = 0; n < of->t.rank; n++) {
        int next = -1;
        int64_t smallest = 0;
        for (int i = 0; i < of->t.rank; i++) {
            int64_t stride = of->t.strides[i] < 0 ? -of->t.strides[i] : of->t.strides[i];
            if (!(seen >> i & 1) && (next < 0 || stride < smallest)) {
                next = i;
                smallest = stride;
            }
        }
        seen |= UINT64_C(1) << next;
        if (of->t.shape[next] > 1 && smallest < reach)
            return true;
        if (of->t.shape[next] > 1)
            reach += smallest * (of->t.shape[next] - 1);
    }
    return false;
}

static const char *const scan_names[] = {"a", "axis", "dtype", "out", NULL};
static PyObject *scan(array *self, int op, PyObject **values)
{
    array_state *state = self->state;
    array *out, *over = (array *)Py_NewRef(self), *created = NULL;
    int axis = 0, dtype = array_argument_dtype(state, values[2], -1);
    vme_dtype loop, result;
    if ((dtype < 0 && PyErr_Occurred()) || array_argument_out(values[3], &out) < 0)
        goto done;
    if (array_given(values[1]) && array_argument_axis_of_one(state, values[1], self->t.rank, &axis) < 0)
        goto done;
    if (!array_given(values[1]) || self->t.rank == 0) {
        int64_t flat[1] = {self->size};
        Py_SETREF(over, array_reshape(self, 1, flat));
        if (over == NULL)
            goto done;
    }
    if (array_check_status(state, vme_scan_types((vme_scan_op)op, (vme_dtype)self->t.dtype, &loop, &result)) < 0)
        goto done;
    if (dtype < 0 && out != NULL)
        dtype = out->t.dtype;
    if (dtype >= 0)
        loop = result = (vme_dtype)dtype;
    if (out != NULL
        && (out->t.rank != over->t.rank
            || memcmp(out->t.shape, over->t.shape, (size_t)out->t.rank * sizeof(int64_t)) != 0))
        PyErr_SetString(PyExc_ValueError, "provided out is the wrong size for the accumulation.");
    else
        created = out != NULL && !overlaps_itself(out)
                      ? (array *)Py_NewRef(out)
                      : array_new(state, (int)result, over->t.rank, over->t.shape, false);
    if (created != NULL
        && array_check_status(state,
                              OPERATOR(state->context, vme_scan_name((vme_scan_op)op), over->size * 2,
                                       vme_scan(state->context, (vme_scan_op)op, loop, &over->t, axis, &created->t)))
               < 0)
        Py_CLEAR(created);
    if (created != NULL && out != NULL && created != out) {
        int assigned = array_assign(out, created);
        Py_SETREF(created, assigned < 0 ? NULL : (array *)Py_NewRef(out));
    }
done:
    Py_XDECREF(over);
    return (PyObject *)created;
}
static PyObject *cumsum(array_state *state, array *self, PyObject **values) { return scan(self, VME_CUMSUM, values); }
static PyObject *cumprod(array_state *state, array *self, PyObject **values) { return scan(self, VME_CUMPROD, values); }
static PyObject *cummax(array_state *state, array *self, PyObject **values) { return scan(self, VME_CUMMAX, values); }
static PyObject *cummin(array_state *state, array *self, PyObject **values) { return scan(self, VME_CUMMIN, values); }
ARRAY_FUNCTION_OF(_cummax, scan_names, 4, 1, 4, cummax)
ARRAY_FUNCTION_OF(_cummin, scan_names, 4, 1, 4, cummin)
ARRAY_BOTH_OF(cumsum, scan_names, 4, 1, 4, cumsum)
ARRAY_BOTH_OF(cumprod, scan_names, 4, 1, 4, cumprod)
