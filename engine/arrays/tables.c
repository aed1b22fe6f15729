/* Counting into tables and interpolation, for vmhost.engine.numpy, which checks dtypes. */
#include "methods.h"

#include "vme_tables.h"

/* The maximum of a non-empty int64 vector, compared as unsigned: negative numbers are above all others. */
static int largest(array *of, uint64_t *value)
{
    static const int64_t one = 1, step = sizeof(int64_t);
    const vme_tensor number = {NULL, (char *)value, &one, &step, 1, VME_UINT64};
    vme_tensor plain = of->t;
    plain.dtype = VME_UINT64;
    return array_check_status(of->state,
                              OPERATOR(of->state->context, "max", of->size,
                                       vme_reduce(of->state->context, VME_MAX, VME_UINT64, &plain, 1, NULL, &number)));
}

/* _bincount(bins, weights or None, minimum length): contiguous vectors of int64 and float64, of equal length */
PyObject *array_function__bincount(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    int64_t length;
    uint64_t max = 0;
    const bool weighted = args[1] != Py_None;
    array *indices = (array *)args[0];
    if (array_argument_int(args[2], 0, &length) < 0)
        return NULL;
    if (indices->t.rank != 1 || indices->t.dtype != VME_INT64)
        return PyErr_Format(PyExc_ValueError, "_bincount(): expected bins as a vector of int64");
    if (indices->size > 0 && largest(indices, &max) < 0)
        return NULL;
    if (max > INT64_MAX)
        return PyErr_Format(PyExc_ValueError, "'list' argument must have no negative elements");
    if (max == INT64_MAX)
        return PyErr_Format(PyExc_ValueError, "Maximum allowed dimension exceeded");
    if (indices->size > 0 && (int64_t)max + 1 > length)
        length = (int64_t)max + 1;
    array *result = array_new(state, weighted ? VME_FLOAT64 : VME_INT64, 1, &length, true);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "count", indices->size * 2,
                                              vme_count(state->context, &indices->t,
                                                        weighted ? &((array *)args[1])->t : NULL, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}

/* _interp(x, xp, fp, left, right): contiguous float64; left and right None: the ends of fp */
PyObject *array_function__interp(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    double ends[2];
    array *x = (array *)args[0], *xp = (array *)args[1], *fp = (array *)args[2];
    if (fp->t.rank != 1 || fp->size == 0 || fp->t.dtype != VME_FLOAT64 || !(fp->flags & ARRAY_CONTIGUOUS))
        return PyErr_Format(PyExc_ValueError, "_interp(): values are a vector of float64");
    for (int i = 0; i < 2; i++)
        ends[i] =
            args[3 + i] == Py_None ? ((const double *)fp->t.data)[i * (fp->size - 1)] : PyFloat_AS_DOUBLE(args[3 + i]);
    array *result = array_new(state, VME_FLOAT64, x->t.rank, x->t.shape, false);
    if (result != NULL
        && array_check_status(
               state, OPERATOR(state->context, "interpolate", result->size * 16,
                               vme_interpolate(state->context, &x->t, &xp->t, &fp->t, ends[0], ends[1], &result->t)))
               < 0)
        Py_CLEAR(result);
    return array_as_scalar(result);
}
