/* Packing and unpacking bits, and splitting floats, for vmhost.engine.numpy._bits and _arithmetic, which check dtypes
 * and move the axis to the end. */
#include "methods.h"

#include "vme_bits.h"

/* The argument as rows, packed or unpacked to an array with rows of `length`. */
static PyObject *result_rows(array_state *state, array *in, int64_t length, bool big, bool unpacks)
{
    int64_t shape[VME_RANK_MAX];
    if (in->t.rank == 0 || !(in->flags & ARRAY_CONTIGUOUS))
        return PyErr_Format(PyExc_ValueError, "bits are packed in contiguous rows");
    memcpy(shape, in->t.shape, sizeof *shape * (size_t)in->t.rank);
    shape[in->t.rank - 1] = length;
    array *result = array_new(state, VME_UINT8, in->t.rank, shape, false);
    if (result != NULL
        && array_check_status(state,
                              OPERATOR(state->context, unpacks ? "bits_unpack" : "bits_pack", in->size + result->size,
                                       unpacks ? vme_bits_unpack(state->context, big, &in->t, &result->t)
                                               : vme_bits_pack(state->context, big, &in->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}

/* _bits_packed(truths, big): a C-contiguous bool array, along its last axis */
PyObject *array_function__bits_packed(PyObject *module, ARRAY_VECTORCALL)
{
    array *in = (array *)args[0];
    int64_t length = in->t.rank == 0 ? 0 : vme_bits_bytes(in->t.shape[in->t.rank - 1]);
    return result_rows(array_state_of(module), in, length, args[1] == Py_True, false);
}

/* _bits_unpacked(bytes, count, big): a C-contiguous uint8 array; rows of `count`, zero beyond the last byte */
PyObject *array_function__bits_unpacked(PyObject *module, ARRAY_VECTORCALL)
{
    int64_t length;
    if (array_argument_int(args[1], 0, &length) < 0)
        return NULL;
    return result_rows(array_state_of(module), (array *)args[0], length, args[2] == Py_True, true);
}

/* numpy.frexp and modf of any real array: a pair of arrays, or of scalars. float16 is computed in float32. */
static PyObject *taken_apart(array_state *state, const char *name, array *given, bool parts)
{
    array *in = NULL, *result[2] = {NULL, NULL};
    PyObject *both = NULL;
    int dtype = given->t.dtype, bytes = vme_dtype_size((vme_dtype)dtype);
    if (dtype < VME_FLOAT16)
        dtype = bytes == 1 ? VME_FLOAT16 : bytes == 2 ? VME_FLOAT32 : VME_FLOAT64;
    if (dtype >= VME_COMPLEX64) {
        PyErr_Format(PyExc_TypeError,
                     "ufunc '%s' not supported for the input types, and the inputs could not be safely coerced to any "
                     "supported types according to the casting rule ''safe''",
                     name);
        goto done;
    }
    in = array_contiguous(given, dtype == VME_FLOAT16 ? VME_FLOAT32 : dtype);
    result[0] = in == NULL ? NULL : array_new(state, in->t.dtype, in->t.rank, in->t.shape, false);
    result[1] =
        result[0] == NULL ? NULL : array_new(state, parts ? in->t.dtype : VME_INT32, in->t.rank, in->t.shape, false);
    if (result[1] == NULL
        || array_check_status(state, OPERATOR(state->context, "split", in->size,
                                              vme_split(state->context, &in->t, &result[0]->t, &result[1]->t)))
               < 0)
        goto done;
    for (int i = 0; dtype == VME_FLOAT16 && i < 1 + parts; i++) {
        Py_SETREF(result[i], array_cast(result[i], dtype));
        if (result[i] == NULL)
            goto done;
    }
    PyObject *first = array_as_scalar(result[0]), *second = array_as_scalar(result[1]);
    result[0] = result[1] = NULL;
    if (first != NULL && second != NULL)
        both = PyTuple_Pack(2, first, second);
    Py_XDECREF(first);
    Py_XDECREF(second);
done:
    Py_XDECREF(in);
    Py_XDECREF(result[0]);
    Py_XDECREF(result[1]);
    return both;
}

/* _split(x): (mantissas, exponents) */
PyObject *array_function__split(PyObject *module, ARRAY_VECTORCALL)
{
    return taken_apart(array_state_of(module), "frexp", (array *)args[0], false);
}

/* _parts(x): (fractional parts, integer parts) */
PyObject *array_function__parts(PyObject *module, ARRAY_VECTORCALL)
{
    return taken_apart(array_state_of(module), "modf", (array *)args[0], true);
}
