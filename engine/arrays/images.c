/* Windows over images for vmhost.engine.nn, which checks what it is given: `windows` is a tuple of eight whole numbers,
 * kernel, stride, dilation and padding, each of height and width. */
#include "methods.h"

#include "vme_images.h"

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
    for (int i = 0; i < 2; i++) {
        windows->kernel[i] = numbers[i];
        windows->stride[i] = numbers[2 + i];
        windows->dilation[i] = numbers[4 + i];
        windows->padding[i] = numbers[6 + i];
    }
    return 0;
}

/* Windows along one dimension; at least 1, so that shapes are the engine's to refuse. */
static int64_t windows_along(const vme_windows *windows, int dimension, int64_t size)
{
    const int64_t stride = windows->stride[dimension] < 1 ? 1 : windows->stride[dimension];
    const int64_t covered =
        size + 2 * windows->padding[dimension] - windows->dilation[dimension] * (windows->kernel[dimension] - 1) - 1;
    return covered < 0 ? 1 : covered / stride + 1;
}

static array *dense_image(PyObject *value, int rank)
{
    if (!is_array(value) || ((array *)value)->t.rank != rank) {
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
    if (count != 2 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "_patches(images, windows)");
    array *images = windows_from(args[1], &windows) < 0 ? NULL : dense_image(args[0], 4);
    if (images == NULL)
        return NULL;
    const int64_t *size = images->t.shape;
    const int64_t shape[3] = {size[0], size[1] * windows.kernel[0] * windows.kernel[1],
                              windows_along(&windows, 0, size[2]) * windows_along(&windows, 1, size[3])};
    array *result = array_new(state, images->t.dtype, 3, shape, false);
    if (result != NULL
        && array_check_status(state,
                              ENGINE(result->size, vme_patches(state->context, &windows, &images->t, &result->t)))
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
    if (count != 3 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "_patches_sum(patches, windows, shape)");
    if (windows_from(args[1], &windows) < 0 || array_argument_shape(args[2], &rank, shape) < 0)
        return NULL;
    array *patches = dense_image(args[0], 3);
    if (patches == NULL)
        return NULL;
    array *result = array_new(state, patches->t.dtype, rank, shape, false);
    if (result != NULL
        && array_check_status(state,
                              ENGINE(patches->size, vme_patches_sum(state->context, &windows, &patches->t, &result->t)))
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
    if (count != 2 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "_max_pool(images, windows)");
    array *images = windows_from(args[1], &windows) < 0 ? NULL : dense_image(args[0], 4);
    if (images == NULL)
        return NULL;
    const int64_t *size = images->t.shape;
    const int64_t shape[4] = {size[0], size[1], windows_along(&windows, 0, size[2]),
                              windows_along(&windows, 1, size[3])};
    array *result = array_new(state, images->t.dtype, 4, shape, false);
    if (result != NULL
        && array_check_status(state,
                              ENGINE(images->size, vme_max_pool(state->context, &windows, &images->t, &result->t)))
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
    if (count != 4 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "_pool_gradient(images, pooled, gradient, windows)");
    if (windows_from(args[3], &windows) < 0)
        return NULL;
    for (int i = 0; i < 3; i++)
        if ((of[i] = dense_image(args[i], 4)) == NULL)
            goto end;
    result = array_new(state, of[0]->t.dtype, 4, of[0]->t.shape, false);
    if (result != NULL
        && array_check_status(state, ENGINE(result->size, vme_max_pool_gradient(state->context, &windows, &of[0]->t,
                                                                                &of[1]->t, &of[2]->t, &result->t)))
               < 0)
        Py_CLEAR(result);
end:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(of[i]);
    return (PyObject *)result;
}
