/* Windows over images, and batch normalization, for vmhost.engine.nn, which checks arguments: `windows` is a tuple of
 * eight integers, kernel, stride, dilation and padding, each for height and width. */
#include "methods.h"

#include "vme_images.h"

enum { NUMBER_MAX = 1 << 30 }; /* of `windows`: what the engine takes */

static int windows_from(PyObject *value, vme_windows *windows)
{
    int64_t numbers[VME_RANK_MAX];
    int count;
    if (array_argument_shape(value, &count, numbers) < 0)
        return -1;
    if (count != 8) {
        PyErr_SetString(PyExc_ValueError, "windows: expected eight numbers");
        return -1;
    }
    for (int i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] > NUMBER_MAX) {
            PyErr_Format(PyExc_ValueError, "windows: expected numbers from 0 to %d, got %lld", NUMBER_MAX,
                         (long long)numbers[i]);
            return -1;
        }
    for (int i = 0; i < 2; i++) {
        windows->kernel[i] = numbers[i];
        windows->stride[i] = numbers[2 + i];
        windows->dilation[i] = numbers[4 + i];
        windows->padding[i] = numbers[6 + i];
    }
    return 0;
}

/* Windows along one dimension, at least 1: the engine refuses bad shapes. */
static int64_t windows_along(const vme_windows *windows, int dimension, int64_t size)
{
    const int64_t stride = windows->stride[dimension] < 1 ? 1 : windows->stride[dimension];
    const int64_t covered = (size > NUMBER_MAX ? NUMBER_MAX : size) + 2 * windows->padding[dimension]
                            - windows->dilation[dimension] * (windows->kernel[dimension] - 1) - 1;
    return covered < 0 ? 1 : covered / stride + 1;
}

static array *dense_image(PyObject *value, int rank)
{
    if (((array *)value)->t.rank != rank) {
        PyErr_Format(PyExc_TypeError, "windows over images: expected an array of %d dimensions", rank);
        return NULL;
    }
    return array_contiguous((array *)value, ((array *)value)->t.dtype);
}

/* _patches(images, windows) */
PyObject *array_function__patches(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_windows windows;
    array *images = windows_from(args[1], &windows) < 0 ? NULL : dense_image(args[0], 4);
    if (images == NULL)
        return NULL;
    const int64_t *size = images->t.shape;
    int64_t rows, columns;
    array *result = NULL;
    if (__builtin_mul_overflow(size[1], windows.kernel[0] * windows.kernel[1], &rows)
        || __builtin_mul_overflow(windows_along(&windows, 0, size[2]), windows_along(&windows, 1, size[3]), &columns))
        PyErr_SetString(PyExc_ValueError, "windows: there are too many patches");
    else
        result = array_new(state, images->t.dtype, 3, (int64_t[]){size[0], rows, columns}, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "patches", result->size,
                                              vme_patches(state->context, &windows, &images->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    Py_DECREF(images);
    return (PyObject *)result;
}

/* _patches_sum(patches, windows, shape of the images) */
PyObject *array_function__patches_sum(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_windows windows;
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (windows_from(args[1], &windows) < 0 || array_argument_shape(args[2], &rank, shape) < 0)
        return NULL;
    array *patches = dense_image(args[0], 3);
    if (patches == NULL)
        return NULL;
    array *result = array_new(state, patches->t.dtype, rank, shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "patches_sum", patches->size,
                                              vme_patches_sum(state->context, &windows, &patches->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    Py_DECREF(patches);
    return (PyObject *)result;
}

/* _max_pool(images, windows) */
PyObject *array_function__max_pool(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_windows windows;
    array *images = windows_from(args[1], &windows) < 0 ? NULL : dense_image(args[0], 4);
    if (images == NULL)
        return NULL;
    const int64_t *size = images->t.shape;
    const int64_t shape[4] = {size[0], size[1], windows_along(&windows, 0, size[2]),
                              windows_along(&windows, 1, size[3])};
    array *result = array_new(state, images->t.dtype, 4, shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "max_pool", images->size,
                                              vme_max_pool(state->context, &windows, &images->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    Py_DECREF(images);
    return (PyObject *)result;
}

/* _pool_gradient(images, pooled, gradient, windows) */
PyObject *array_function__pool_gradient(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    vme_windows windows;
    array *of[3] = {NULL, NULL, NULL}, *result = NULL;
    if (windows_from(args[3], &windows) < 0)
        return NULL;
    for (int i = 0; i < 3; i++)
        if ((of[i] = dense_image(args[i], 4)) == NULL)
            goto end;
    result = array_new(state, of[0]->t.dtype, 4, of[0]->t.shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "max_pool_gradient", result->size,
                                              vme_max_pool_gradient(state->context, &windows, &of[0]->t, &of[1]->t,
                                                                    &of[2]->t, &result->t)))
               < 0)
        Py_CLEAR(result);
end:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(of[i]);
    return (PyObject *)result;
}

/* The function's result for two images, or images and weights, of four dimensions, with shape `shape`. */
static PyObject *depthwise(array_state *state, const vme_windows *windows, PyObject *const *args, const int64_t *shape,
                           vme_status (*function)(vme_context *, const vme_windows *, const vme_tensor *,
                                                  const vme_tensor *, const vme_tensor *))
{
    array *first = dense_image(args[0], 4), *second = first == NULL ? NULL : dense_image(args[1], 4), *result = NULL;
    if (second != NULL)
        result = array_new(state, first->t.dtype, 4, shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "depthwise", result->size + first->size + second->size,
                                              function(state->context, windows, &first->t, &second->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return (PyObject *)result;
}

/* The shape of an array of four dimensions, or NULL with an error set. */
static const int64_t *shape_of_image(PyObject *value)
{
    if (((array *)value)->t.rank == 4)
        return ((array *)value)->t.shape;
    PyErr_SetString(PyExc_TypeError, "windows over images: expected an array of 4 dimensions");
    return NULL;
}

/* _depthwise(images, weights, windows) */
PyObject *array_function__depthwise(PyObject *module, ARRAY_VECTORCALL)
{
    vme_windows windows;
    const int64_t *size = windows_from(args[2], &windows) < 0 ? NULL : shape_of_image(args[0]);
    if (size == NULL)
        return NULL;
    const int64_t shape[4] = {size[0], size[1], windows_along(&windows, 0, size[2]),
                              windows_along(&windows, 1, size[3])};
    return depthwise(array_state_of(module), &windows, args, shape, vme_depthwise_forward);
}

/* _depthwise_images(gradient, weights, windows, shape of the images) */
PyObject *array_function__depthwise_images(PyObject *module, ARRAY_VECTORCALL)
{
    vme_windows windows;
    int64_t shape[VME_RANK_MAX];
    int rank;
    if (windows_from(args[2], &windows) < 0 || array_argument_shape(args[3], &rank, shape) < 0)
        return NULL;
    if (rank != 4)
        return PyErr_Format(PyExc_ValueError, "shape: expected four numbers, got %d", rank);
    return depthwise(array_state_of(module), &windows, args, shape, vme_depthwise_images);
}

/* _depthwise_weights(images, gradient, windows) */
PyObject *array_function__depthwise_weights(PyObject *module, ARRAY_VECTORCALL)
{
    vme_windows windows;
    const int64_t *size = windows_from(args[2], &windows) < 0 ? NULL : shape_of_image(args[0]);
    if (size == NULL)
        return NULL;
    if (windows.kernel[0] < 1 || windows.kernel[1] < 1)
        return PyErr_Format(PyExc_ValueError, "windows: expected a kernel of at least 1");
    const int64_t shape[4] = {size[1], 1, windows.kernel[0], windows.kernel[1]};
    return depthwise(array_state_of(module), &windows, args, shape, vme_depthwise_weights);
}

/* ---- batch normalization */
/* `count` arguments as contiguous arrays of their own dtypes: new references in `of`. */
static int dense_arrays(PyObject *const *args, int count, array **of)
{
    for (int i = 0; i < count; i++) {
        of[i] = array_contiguous((array *)args[i], ((array *)args[i])->t.dtype);
        if (of[i] == NULL)
            return -1;
    }
    if (of[0]->t.rank >= 2)
        return 0;
    PyErr_Format(PyExc_ValueError, "expected [examples, channels, ...], got %d dimensions", of[0]->t.rank);
    return -1;
}

/* Three results: one like the array, and two with one element for each of its channels. */
static int three_results(array_state *state, const array *like, array **results)
{
    results[0] = array_new(state, like->t.dtype, like->t.rank, like->t.shape, false);
    for (int i = 1; i < 3 && results[i - 1] != NULL; i++)
        results[i] = array_new(state, like->t.dtype, 1, &like->t.shape[1], false);
    return results[2] == NULL ? -1 : 0;
}

/* Returns a tuple of the results, and steals all references; `rc` below 0: an error is set. */
static PyObject *results_tuple(int rc, array **operands, int count, array **results)
{
    PyObject *tuple = rc < 0 ? NULL : PyTuple_Pack(3, results[0], results[1], results[2]);
    for (int i = 0; i < count; i++)
        Py_XDECREF(operands[i]);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(results[i]);
    return tuple;
}

/* _normalize(x, weight, bias, eps): (normalized, mean, variance) */
PyObject *array_function__normalize(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    array *operands[3] = {NULL}, *results[3] = {NULL};
    const double eps = PyFloat_AS_DOUBLE(args[3]);
    int rc = dense_arrays(args, 3, operands) < 0 ? -1 : three_results(state, operands[0], results);
    if (rc == 0)
        rc = array_check_status(
            state, OPERATOR(state->context, "normalize", operands[0]->size * 4,
                            vme_normalize(state->context, &operands[0]->t, &operands[1]->t, &operands[2]->t, eps,
                                          &results[0]->t, &results[1]->t, &results[2]->t)));
    return results_tuple(rc, operands, 3, results);
}

/* _normalize_gradient(x, gradient, mean, variance, weight, eps): the gradients of (x, weight, bias) */
PyObject *array_function__normalize_gradient(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    array *operands[5] = {NULL}, *results[3] = {NULL};
    const double eps = PyFloat_AS_DOUBLE(args[5]);
    int rc = dense_arrays(args, 5, operands) < 0 ? -1 : three_results(state, operands[0], results);
    if (rc == 0)
        rc = array_check_status(state,
                                OPERATOR(state->context, "normalize_gradient", operands[0]->size * 4,
                                         vme_normalize_gradient(state->context, &operands[0]->t, &operands[1]->t,
                                                                &operands[2]->t, &operands[3]->t, &operands[4]->t, eps,
                                                                &results[0]->t, &results[1]->t, &results[2]->t)));
    return results_tuple(rc, operands, 5, results);
}
