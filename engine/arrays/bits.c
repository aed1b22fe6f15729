/* Counting, packing and unpacking bits, and taking floats apart, for engine.numpy._bits and _arithmetic, which checks dtypes and brings the axis to the end. */
#include "methods.h"

#include "vme_bits.h"

/* _bit_count(array): of integers or truths */
PyObject *array_function__bit_count(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    if (count != 1 || keywords != NULL || !is_array(args[0]))
        return PyErr_Format(PyExc_TypeError, "_bit_count(array)");
    array *in = (array *)args[0], *made = array_new(state, VME_UINT8, in->t.rank, in->t.shape, false);
    if (made != NULL && array_check_status(state, ENGINE(made->size, vme_bit_count(state->context, &in->t, &made->t))) < 0)
        Py_CLEAR(made);
    return (PyObject *)made;
}

/* The argument as rows, and an array with rows of `length`. */
static PyObject *rows_made(array_state *state, array *in, int64_t length, bool big, bool unpacks)
{
    int64_t shape[VME_RANK_MOST];
    if (in->t.rank == 0 || !(in->flags & ARRAY_CONTIGUOUS))
        return PyErr_Format(PyExc_ValueError, "bits are packed in contiguous rows");
    memcpy(shape, in->t.shape, sizeof *shape * (size_t)in->t.rank);
    shape[in->t.rank - 1] = length;
    array *made = array_new(state, VME_UINT8, in->t.rank, shape, false);
    if (made != NULL && array_check_status(state, ENGINE(in->size + made->size, unpacks
            ? vme_bits_unpack(state->context, big, &in->t, &made->t) : vme_bits_pack(state->context, big, &in->t, &made->t))) < 0)
        Py_CLEAR(made);
    return (PyObject *)made;
}

/* _bits_packed(truths, big): a C-contiguous bool array, along its last axis */
PyObject *array_function__bits_packed(PyObject *module, ARRAY_VECTORCALL)
{
    if (count != 2 || keywords != NULL || !is_array(args[0]))
        return PyErr_Format(PyExc_TypeError, "_bits_packed(truths, big)");
    array *in = (array *)args[0];
    int big = PyObject_IsTrue(args[1]);
    int64_t length = in->t.rank == 0 ? 0 : (in->t.shape[in->t.rank - 1] + 7) / 8;
    return big < 0 ? NULL : rows_made(array_state_of(module), in, length, big, false);
}

/* _bits_unpacked(bytes, count, big): a C-contiguous uint8 array; rows of `count`, what is behind the last byte zero */
PyObject *array_function__bits_unpacked(PyObject *module, ARRAY_VECTORCALL)
{
    int64_t length;
    if (count != 3 || keywords != NULL || !is_array(args[0]))
        return PyErr_Format(PyExc_TypeError, "_bits_unpacked(bytes, count, big)");
    int big = PyObject_IsTrue(args[2]);
    if (big < 0 || array_argument_int(args[1], 0, &length) < 0)
        return NULL;
    return rows_made(array_state_of(module), (array *)args[0], length, big, true);
}

/* _split(array): (mantissas, exponents) of a C-contiguous array of float32 or float64 */
PyObject *array_function__split(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    if (count != 1 || keywords != NULL || !is_array(args[0]))
        return PyErr_Format(PyExc_TypeError, "_split(array)");
    array *in = (array *)args[0], *mantissas = array_new(state, in->t.dtype, in->t.rank, in->t.shape, false);
    array *exponents = mantissas == NULL ? NULL : array_new(state, VME_INT32, in->t.rank, in->t.shape, false);
    PyObject *both = NULL;
    if (exponents != NULL && array_check_status(state, ENGINE(in->size, vme_split(state->context, &in->t, &mantissas->t, &exponents->t))) == 0)
        both = PyTuple_Pack(2, mantissas, exponents);
    Py_XDECREF(mantissas);
    Py_XDECREF(exponents);
    return both;
}
