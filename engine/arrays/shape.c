/* Views with other shapes, and functions that join and repeat arrays (the engine lowers them to regions). */
#include "methods.h"

#include <ctype.h>

#include <stdlib.h>

array *array_transpose(array *self, const int *order)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    int rank = self->t.rank;
    for (int i = 0; i < rank; i++) {
        int from = order != NULL ? order[i] : rank - 1 - i;
        shape[i] = self->t.shape[from];
        strides[i] = self->t.strides[from];
    }
    return array_view_of(self, self->t.dtype, rank, shape, strides, self->t.data);
}

/* Strides that walk the same elements in the same order in the new shape; false: a copy is needed. Groups dimensions of
 * both shapes with equal products, as NumPy does. */
static bool strides_for_shape(const array *self, int rank, const int64_t *shape, int64_t *strides)
{
    int64_t old_shape[VME_RANK_MAX], old_strides[VME_RANK_MAX];
    int old_rank = 0;
    for (int i = 0; i < self->t.rank; i++)
        if (self->t.shape[i] != 1) {
            old_shape[old_rank] = self->t.shape[i];
            old_strides[old_rank++] = self->t.strides[i];
        }
    int old_begin = 0, old_end = 1, begin = 0, end = 1;
    while (begin < rank && old_begin < old_rank) {
        int64_t product = shape[begin], old_product = old_shape[old_begin];
        while (product != old_product) {
            if (product < old_product)
                product *= shape[end++];
            else
                old_product *= old_shape[old_end++];
        }
        for (int i = old_begin; i < old_end - 1; i++)
            if (old_strides[i] != old_shape[i + 1] * old_strides[i + 1])
                return false;
        strides[end - 1] = old_strides[old_end - 1];
        for (int i = end - 1; i > begin; i--)
            strides[i - 1] = strides[i] * shape[i];
        begin = end++;
        old_begin = old_end++;
    }
    int64_t last = begin > 0 ? strides[begin - 1] : vme_dtype_size((vme_dtype)self->t.dtype);
    for (; begin < rank; begin++) /* the remaining dimensions have size 1 */
        strides[begin] = last;
    return true;
}

array *array_reshape(array *self, int rank, const int64_t *wanted)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX], product = 1;
    int unknown = -1;
    bool fits = rank <= VME_RANK_MAX;
    for (int i = 0; fits && i < rank; i++) {
        shape[i] = wanted[i];
        if (shape[i] < 0) {
            if (unknown >= 0 || shape[i] < -1) {
                PyErr_SetString(PyExc_ValueError, unknown >= 0 ? "can only specify one unknown dimension"
                                                               : "negative dimensions not allowed");
                return NULL;
            }
            unknown = i;
        } else if (__builtin_mul_overflow(product, shape[i], &product))
            fits = false;
    }
    if (fits && unknown >= 0) {
        fits = product != 0 && self->size % product == 0;
        if (fits)
            shape[unknown] = self->size / product;
    } else
        fits = fits && product == self->size;
    if (!fits) {
        PyObject *text = array_shape_text(rank, wanted);
        if (text != NULL)
            PyErr_Format(PyExc_ValueError, "cannot reshape array of size %lld into shape %U", (long long)self->size,
                         text);
        Py_XDECREF(text);
        return NULL;
    }
    if (self->flags & ARRAY_CONTIGUOUS)
        return array_view_of(self, self->t.dtype, rank, shape, NULL, self->t.data);
    if (strides_for_shape(self, rank, shape, strides))
        return array_view_of(self, self->t.dtype, rank, shape, strides, self->t.data);
    array *flat = array_cast(self, self->t.dtype);
    if (flat == NULL)
        return NULL;
    array *result = array_view_of(flat, flat->t.dtype, rank, shape, NULL, flat->t.data);
    Py_DECREF(flat);
    return array_as_owner(result);
}

char array_argument_order(PyObject *value, const array *of, char absent)
{
    if (!array_given(value))
        return absent;
    Py_ssize_t length = 0;
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &length) : NULL;
    char order = text != NULL && length == 1 ? (char)toupper((unsigned char)text[0]) : 0;
    if (order == 'A')
        return array_is_fortran(of) && !(of->flags & ARRAY_CONTIGUOUS) ? 'F' : 'C';
    if (order == 'C' || order == 'F' || order == 'K')
        return order;
    if (!PyErr_Occurred())
        PyErr_Format(PyUnicode_Check(value) ? PyExc_ValueError : PyExc_TypeError,
                     "order must be one of 'C', 'F', 'A', or 'K' (got %R)", value);
    return 0;
}

/* A view with the dimensions of `of` ordered by descending stride: in C order it is read in memory order. */
static array *as_it_lies(array *of)
{
    int order[VME_RANK_MAX];
    for (int i = 0; i < of->t.rank; i++) { /* insertion sort; stable */
        int at = i;
        for (; at > 0 && llabs(of->t.strides[order[at - 1]]) < llabs(of->t.strides[i]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return array_transpose(of, order);
}

/* order="F": the elements in Fortran order, which is the transposed array in C order */
static array *reshape_in_order(array *self, int rank, const int64_t *shape, PyObject *order, PyObject *copy)
{
    if ((self->flags & ARRAY_SCALAR) && !array_given(copy))
        copy = Py_True; /* a result derived from a scalar must be writable, unlike a view of it */
    char read = array_argument_order(order, self, 'C');
    if (read == 0)
        return NULL;
    if (read == 'K') {
        PyErr_SetString(PyExc_ValueError, "order 'K' is not permitted for reshaping");
        return NULL;
    }
    bool fortran = read == 'F', always = false;
    if (array_given(copy) && array_argument_bool(copy, false, &always) < 0)
        return NULL;
    array *source = self, *turned = NULL, *own = NULL, *result = NULL;
    int64_t reversed[VME_RANK_MAX];
    if (always) {
        own = array_cast(self, self->t.dtype);
        if (own == NULL)
            return NULL;
        source = own;
    }
    if (!fortran) {
        result = array_reshape(source, rank, shape);
    } else {
        turned = array_transpose(source, NULL);
        for (int i = 0; i < rank; i++)
            reversed[i] = shape[rank - 1 - i];
        array *flat = turned == NULL ? NULL : array_reshape(turned, rank, reversed);
        result = flat == NULL ? NULL : array_transpose(flat, NULL);
        Py_XDECREF(flat);
        Py_XDECREF(turned);
    }
    if (result != NULL && array_given(copy) && !always && result->t.buffer != self->t.buffer) {
        PyErr_SetString(PyExc_ValueError, "Unable to avoid creating a copy while reshaping.");
        Py_CLEAR(result);
    }
    Py_XDECREF(own);
    return result;
}

PyObject *array_method_reshape(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"order", "copy", NULL};
    PyObject *values[2];
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (array_arguments("reshape", args + count, 0, keywords, names, 0, 0, values) < 0)
        return NULL;
    if (count == 1) {
        if (array_argument_shape(args[0], &rank, shape) < 0)
            return NULL;
    } else if (count > VME_RANK_MAX) {
        return PyErr_Format(PyExc_ValueError, "maximum supported dimension for an ndarray is currently %d, found %zd",
                            VME_RANK_MAX, count);
    } else {
        rank = (int)count;
        for (int i = 0; i < rank; i++)
            if (array_argument_int(args[i], 0, &shape[i]) < 0)
                return NULL;
    }
    return (PyObject *)reshape_in_order((array *)self, rank, shape, values[0], values[1]);
}

static const char *const reshape_names[] = {"a", "shape", "order", "copy", NULL};
static PyObject *reshape(array_state *state, array *self, PyObject **values)
{
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (array_argument_shape(values[1], &rank, shape) < 0)
        return NULL;
    return (PyObject *)reshape_in_order(self, rank, shape, values[2], values[3]);
}
ARRAY_FUNCTION_OF(reshape, reshape_names, 3, 2, 4, reshape)

static array *in_one_row(array *self, PyObject *order, PyObject *copy)
{
    int64_t shape[1] = {self->size};
    array *lying = array_argument_order(order, self, 'C') == 'K' ? as_it_lies(self) : (array *)Py_NewRef(self);
    if (lying != self)
        order = NULL;
    array *result = lying == NULL || PyErr_Occurred() ? NULL : reshape_in_order(lying, 1, shape, order, copy);
    if (result != NULL && result->t.buffer == self->t.buffer && result->size > 1
        && result->t.strides[0] != vme_dtype_size((vme_dtype)result->t.dtype))
        Py_SETREF(result, reshape_in_order(lying, 1, shape, order,
                                           Py_True)); /* NumPy returns a view only if the elements are in order */
    Py_XDECREF(lying);
    return result;
}

static const char *const ravel_names[] = {"a", "order", NULL};
static PyObject *ravel(array_state *state, array *self, PyObject **values)
{
    return (PyObject *)in_one_row(self, values[1], NULL);
}
ARRAY_BOTH_OF(ravel, ravel_names, 2, 1, 2, ravel)

static PyObject *flatten(array_state *state, array *self, PyObject **values)
{
    return (PyObject *)in_one_row(self, values[1], Py_True);
}
ARRAY_METHOD_OF(flatten, ravel_names, 2, 1, 2, flatten)

static PyObject *transpose_by(array *self, PyObject *axes)
{
    int rank = self->t.rank, order[VME_RANK_MAX];
    uint64_t seen = 0;
    if (!array_given(axes))
        return (PyObject *)array_transpose(self, NULL);
    PyObject *items = PySequence_Tuple(axes); /* a copy, because an item's __index__ could change the list */
    if (items == NULL)
        return NULL;
    int result = 0;
    if (PyTuple_GET_SIZE(items) != rank) {
        PyErr_SetString(PyExc_ValueError, "axes don't match array");
        result = -1;
    }
    for (int i = 0; result == 0 && i < rank; i++) {
        result = array_argument_axis(self->state, PyTuple_GET_ITEM(items, i), rank, &order[i]);
        if (result == 0 && seen >> order[i] & 1) {
            PyErr_SetString(PyExc_ValueError, "repeated axis in transpose");
            result = -1;
        }
        if (result == 0)
            seen |= UINT64_C(1) << order[i];
    }
    Py_DECREF(items);
    return result < 0 ? NULL : (PyObject *)array_transpose(self, order);
}

PyObject *array_method_transpose(PyObject *self, ARRAY_VECTORCALL)
{
    if (count == 1 && !PyLong_Check(args[0]) && (args[0] == Py_None || is_array(args[0]) || PySequence_Check(args[0]))
        && !(is_array(args[0]) && ((array *)args[0])->t.rank == 0))
        return transpose_by((array *)self, args[0]);
    if (count == 0)
        return transpose_by((array *)self, NULL);
    PyObject *axes = PyTuple_New(count);
    for (Py_ssize_t i = 0; axes != NULL && i < count; i++)
        PyTuple_SET_ITEM(axes, i, Py_NewRef(args[i]));
    PyObject *result = axes == NULL ? NULL : transpose_by((array *)self, axes);
    Py_XDECREF(axes);
    return result;
}

static const char *const transpose_names[] = {"a", "axes", NULL};
static PyObject *transpose(array_state *state, array *self, PyObject **values) { return transpose_by(self, values[1]); }
ARRAY_FUNCTION_OF(transpose, transpose_names, 2, 1, 2, transpose)

static const char *const swapaxes_names[] = {"a", "axis1", "axis2", NULL};
static PyObject *swapaxes(array_state *state, array *self, PyObject **values)
{
    int rank = self->t.rank, order[VME_RANK_MAX], first, second;
    if (array_argument_axis(state, values[1], rank, &first) < 0
        || array_argument_axis(state, values[2], rank, &second) < 0)
        return NULL;
    for (int i = 0; i < rank; i++)
        order[i] = i == first ? second : i == second ? first : i;
    return (PyObject *)array_transpose(self, order);
}
ARRAY_BOTH_OF(swapaxes, swapaxes_names, 3, 3, 3, swapaxes)

static const char *const squeeze_names[] = {"a", "axis", NULL};
static PyObject *squeeze(array_state *state, array *self, PyObject **values)
{
    uint64_t axes;
    int rank = 0;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    bool chosen = array_given(values[1]);
    if (array_argument_axes(state, values[1], self->t.rank, &axes) < 0)
        return NULL;
    for (int i = 0; i < self->t.rank; i++) {
        bool out = axes >> i & 1;
        if (out && chosen && self->t.shape[i] != 1)
            return PyErr_Format(PyExc_ValueError,
                                "cannot select an axis to squeeze out which has size not equal to one");
        if (out && self->t.shape[i] == 1)
            continue;
        shape[rank] = self->t.shape[i];
        strides[rank++] = self->t.strides[i];
    }
    return (PyObject *)array_view_of(self, self->t.dtype, rank, shape, strides, self->t.data);
}
ARRAY_BOTH_OF(squeeze, squeeze_names, 2, 1, 2, squeeze)

array *array_broadcast_to(array *self, int rank, const int64_t *shape)
{
    int64_t strides[VME_RANK_MAX];
    int extra = rank - self->t.rank;
    bool fits = extra >= 0;
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0) {
            PyErr_SetString(PyExc_ValueError, "all elements of broadcast shape must be non-negative");
            return NULL;
        }
    for (int i = 0; fits && i < rank; i++) {
        int64_t size = i < extra ? 1 : self->t.shape[i - extra];
        fits = size == shape[i] || size == 1;
        strides[i] = i < extra || (size == 1 && shape[i] != 1) ? 0 : self->t.strides[i - extra];
    }
    if (!fits) {
        PyObject *own = array_shape_text(self->t.rank, self->t.shape), *wanted = array_shape_text(rank, shape);
        if (own != NULL && wanted != NULL) {
            if (extra < 0)
                PyErr_SetString(PyExc_ValueError,
                                "input operand has more dimensions than allowed by the axis remapping");
            else
                PyErr_Format(PyExc_ValueError,
                             "operands could not be broadcast together with remapped shapes [original->remapped]: "
                             "%U  and requested shape %U",
                             own, wanted);
        }
        Py_XDECREF(own);
        Py_XDECREF(wanted);
        return NULL;
    }
    size_t bytes; /* a view of any size is cheap, but its number of elements must be representable */
    if (array_check_status(self->state, vme_shape_bytes((vme_dtype)self->t.dtype, rank, shape, NULL, &bytes)) < 0)
        return NULL;
    array *result = array_view_of(self, self->t.dtype, rank, shape, strides, self->t.data);
    if (result != NULL)
        result->flags |= ARRAY_READ_ONLY;
    return result;
}

static const char *const broadcast_names[] = {"array", "shape", "subok", NULL};
static PyObject *broadcast_to(array_state *state, array *self, PyObject **values)
{
    int64_t shape[VME_RANK_MAX];
    int rank;
    return array_argument_shape(values[1], &rank, shape) < 0 ? NULL : (PyObject *)array_broadcast_to(self, rank, shape);
}
ARRAY_FUNCTION_OF(broadcast_to, broadcast_names, 3, 2, 3, broadcast_to)

/* A view with any strides within the buffer (checked): windows, diagonals. */
static PyObject *as_strided(array_state *state, array *self, PyObject *const *values)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX], offset;
    int rank, stride_rank;
    if (array_argument_shape(values[1], &rank, shape) < 0 || array_argument_shape(values[2], &stride_rank, strides) < 0
        || array_argument_int(values[3], 0, &offset) < 0)
        return NULL;
    if (rank != stride_rank)
        return PyErr_Format(PyExc_ValueError, "strides, if given, must be the same length as shape");
    char *data = array_data_at(self, offset);
    if (data == NULL)
        return NULL;
    const vme_tensor view = {self->t.buffer, data, shape, strides, rank, self->t.dtype};
    if (array_check_status(state, vme_tensor_check(&view)) < 0)
        return NULL;
    return (PyObject *)array_view_of(self, self->t.dtype, rank, shape, strides, data);
}
ARRAY_PRIVATE_OF(_as_strided, as_strided)

/* A read-only view of a diagonal, as the last dimension. */
static const char *const diagonal_names[] = {"a", "offset", "axis1", "axis2", NULL};
array *array_diagonal(array_state *state, array *self, PyObject **values)
{
    int64_t offset, shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    int first = 0, second = 1, rank = 0;
    if (self->t.rank < 2) {
        PyErr_SetString(PyExc_ValueError, "diag requires an array of at least two dimensions");
        return NULL;
    }
    if (array_argument_int(values[1], 0, &offset) < 0
        || (values[2] != NULL && array_argument_axis(state, values[2], self->t.rank, &first) < 0)
        || (values[3] != NULL && array_argument_axis(state, values[3], self->t.rank, &second) < 0))
        return NULL;
    if (first == second) {
        PyErr_SetString(PyExc_ValueError, "axis1 and axis2 cannot be the same");
        return NULL;
    }
    const int64_t rows = self->t.shape[first], columns = self->t.shape[second];
    int64_t left = offset < 0 ? rows + offset : columns - offset, across = offset < 0 ? columns : rows;
    int64_t length = left < across ? left : across;
    length = length < 0 ? 0 : length;
    for (int i = 0; i < self->t.rank; i++)
        if (i != first && i != second) {
            shape[rank] = self->t.shape[i];
            strides[rank++] = self->t.strides[i];
        }
    shape[rank] = length;
    strides[rank++] = self->t.strides[first] + self->t.strides[second];
    char *data = self->t.data;
    if (length > 0)
        data += offset < 0 ? -offset * self->t.strides[first] : offset * self->t.strides[second];
    array *view = array_view_of(self, self->t.dtype, rank, shape, strides, data);
    if (view != NULL)
        view->flags |= ARRAY_READ_ONLY;
    return view;
}
static PyObject *diagonal(array_state *state, array *self, PyObject **values)
{
    return (PyObject *)array_diagonal(state, self, values);
}
ARRAY_BOTH_OF(diagonal, diagonal_names, 4, 1, 4, diagonal)

/* ---- joining */
static int join(array_state *state, array **parts, int parts_count, int axis, array *out)
{
    const vme_tensor **tensors = PyMem_New(const vme_tensor *, parts_count);
    if (tensors == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < parts_count; i++)
        tensors[i] = &parts[i]->t;
    vme_status status = OPERATOR(state->context, "concatenate", out->size,
                                 vme_concatenate(state->context, parts_count, tensors, axis, &out->t));
    PyMem_Free(tensors);
    return array_check_status(state, status);
}

static PyObject *concatenate(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"arrays", "axis", "out", "dtype", "casting", NULL};
    PyObject *values[5];
    array_state *state = array_state_of(module);
    array *out, *result = NULL, *fresh = NULL;
    int dtype, casting, axis = 0;
    if (array_arguments("concatenate", args, count, keywords, names, 3, 1, values) < 0
        || array_argument_out(values[2], &out) < 0 || (casting = dtype_casting(values[4], CAST_SAME_KIND)) < 0)
        return NULL;
    dtype = array_argument_dtype(state, values[3], -1);
    if (dtype < 0 && PyErr_Occurred())
        return NULL;
    if (out != NULL && dtype >= 0)
        return PyErr_Format(PyExc_TypeError, "concatenate() only takes `out` or `dtype` as an argument, but both were "
                                             "provided.");
    PyObject *items = PySequence_Tuple(values[0]); /* a copy, because converting an item to an array could change the
                                                    * list */
    if (items == NULL)
        return NULL;
    Py_ssize_t length = PyTuple_GET_SIZE(items);
    array **parts = PyMem_Calloc((size_t)length + 1, sizeof *parts);
    if (parts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "need at least one array to concatenate");
        goto done;
    }
    bool flat = values[1] == Py_None;
    int weakest = WEAK_NONE; /* Python's numbers are weak; without axis=None they are refused below */
    uint32_t met = 0, met_weak = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        const int weak = is_array(item) ? WEAK_NONE : element_weak(item);
        parts[i] = array_from_any(state, item, -1);
        if (parts[i] == NULL)
            goto done;
        weakest = weak > weakest ? weak : weakest;
        *(weak == WEAK_NONE ? &met : &met_weak) |= UINT32_C(1) << parts[i]->t.dtype;
        if (flat) {
            int64_t shape[1] = {parts[i]->size};
            array *ravelled = array_reshape(parts[i], 1, shape);
            Py_SETREF(parts[i], ravelled);
            if (ravelled == NULL)
                goto done;
        }
    }
    int common = met == 0 ? dtype_promote_all(met_weak) : dtype_for_weak(dtype_promote_all(met), weakest);
    int rank = parts[0]->t.rank;
    if (rank == 0) {
        PyErr_SetString(PyExc_ValueError, "zero-dimensional arrays cannot be concatenated");
        goto done;
    }
    if (values[1] != NULL && !flat && array_argument_axis(state, values[1], rank, &axis) < 0)
        goto done;
    if (dtype < 0)
        dtype = out != NULL ? out->t.dtype : common;
    if (!dtype_can_cast(common, dtype, casting)) {
        PyErr_Format(PyExc_TypeError, "Cannot cast array data from %R to %R according to the rule 'same_kind'",
                     state->dtypes[common], state->dtypes[dtype]);
        goto done;
    }
    int64_t shape[VME_RANK_MAX];
    memcpy(shape, parts[0]->t.shape, (size_t)rank * sizeof *shape);
    shape[axis] = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (parts[i]->t.rank != rank) {
            PyErr_Format(PyExc_ValueError,
                         "all the input arrays must have same number of dimensions, but the array at index 0 has %d "
                         "dimension(s) and the array at index %zd has %d dimension(s)",
                         rank, i, parts[i]->t.rank);
            goto done;
        }
        for (int d = 0; d < rank; d++)
            if (d != axis && parts[i]->t.shape[d] != shape[d]) {
                PyErr_Format(PyExc_ValueError,
                             "all the input array dimensions except for the concatenation axis must match exactly, "
                             "but along dimension %d, the array at index 0 has size %lld and the array at index %zd "
                             "has size %lld",
                             d, (long long)shape[d], i, (long long)parts[i]->t.shape[d]);
                goto done;
            }
        shape[axis] += parts[i]->t.shape[axis];
        if (parts[i]->t.dtype != dtype) {
            array *cast = array_cast(parts[i], dtype);
            Py_SETREF(parts[i], cast);
            if (cast == NULL)
                goto done;
        }
    }
    if (out == NULL) {
        bool reversed = rank > 1; /* as in NumPy, the result has Fortran order if all parts have */
        for (Py_ssize_t i = 0; i < length; i++)
            for (int d = 1; d < rank; d++)
                reversed = reversed && llabs(parts[i]->t.strides[d - 1]) < llabs(parts[i]->t.strides[d]);
        fresh = out = reversed ? array_new_ordered(state, dtype, rank, shape, parts[0]->t.strides, false)
                               : array_new(state, dtype, rank, shape, false);
        if (out == NULL)
            goto done;
    } else if (out->t.rank != rank || memcmp(out->t.shape, shape, (size_t)rank * sizeof *shape) != 0) {
        PyErr_SetString(PyExc_ValueError, "Output array is the wrong shape");
        goto done;
    }
    if (join(state, parts, (int)length, axis, out) == 0)
        result = (array *)Py_NewRef(out);
done:
    Py_XDECREF(fresh);
    for (Py_ssize_t i = 0; parts != NULL && i < length; i++)
        Py_XDECREF(parts[i]);
    PyMem_Free(parts);
    Py_DECREF(items);
    return (PyObject *)result;
}

PyObject *array_function_concatenate(PyObject *module, ARRAY_VECTORCALL)
{
    return WRITING(array_state_of(module), concatenate(module, args, count, keywords));
}

/* _pad(a, before, shape, mode number, value): the padding after comes from the shape; the rest of numpy.pad is in
 * Python */
static PyObject *pad(array_state *state, array *self, PyObject *const *values)
{
    int64_t before[VME_RANK_MAX], shape[VME_RANK_MAX], mode;
    char element[ARRAY_ELEMENT_BYTES] = {0};
    int rank, before_rank;
    if (array_argument_shape(values[1], &before_rank, before) < 0 || array_argument_shape(values[2], &rank, shape) < 0
        || array_argument_int(values[3], 0, &mode) < 0
        || (array_given(values[4]) && element_from_python(self->t.dtype, values[4], element) < 0))
        return NULL;
    if (rank != self->t.rank || before_rank != rank)
        return PyErr_Format(PyExc_ValueError, "before and shape must have one size for each dimension");
    array *result = array_new(state, self->t.dtype, rank, shape, false);
    if (result != NULL
        && array_check_status(
               state, OPERATOR(state->context, "pad", result->size,
                               vme_pad(state->context, (vme_pad_mode)mode, &self->t, before, element, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}
ARRAY_PRIVATE_OF(_pad, pad)

static PyObject *tile(array_state *state, array *self, PyObject *const *values)
{
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (array_argument_shape(values[1], &rank, shape) < 0)
        return NULL;
    array *result = array_new(state, self->t.dtype, rank, shape, false);
    if (result != NULL
        && array_check_status(
               state, OPERATOR(state->context, "tile", result->size, vme_tile(state->context, &self->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}
ARRAY_PRIVATE_OF(_tile, tile)

static PyObject *roll(array_state *state, array *self, PyObject *const *values)
{
    int64_t shifts[VME_RANK_MAX];
    int rank;
    if (array_argument_shape(values[1], &rank, shifts) < 0)
        return NULL;
    if (rank != self->t.rank)
        return PyErr_Format(PyExc_ValueError, "shifts must have one number for each dimension");
    array *result = array_new_like(self, self->t.dtype);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "roll", result->size,
                                              vme_roll(state->context, &self->t, shifts, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}
ARRAY_PRIVATE_OF(_roll, roll)
