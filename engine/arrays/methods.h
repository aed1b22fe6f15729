/* The lists of methods and module functions implemented in C; each is defined in the file of its subject as
 * array_method_NAME or array_function_NAME. */
#ifndef ENGINE_METHODS_H
#define ENGINE_METHODS_H

#include "arrays.h"
#include "vme_window.h"

#define ARRAY_REDUCTIONS(X) X(sum) X(prod) X(max) X(min) X(all) X(any) X(argmax) X(argmin) X(mean) X(cumsum) X(cumprod)

/* Methods implemented in Python: a function of vmhost.engine.numpy with the array as first argument. */
#define ARRAY_DELEGATED(X) X(repeat) X(round) X(var) X(std) X(choose) X(put) X(argpartition)

/* clang-format off */
#define ARRAY_METHODS(X) \
    ARRAY_REDUCTIONS(X) ARRAY_DELEGATED(X) \
    X(astype) X(copy) X(tolist) X(item) X(fill) X(tobytes) X(byteswap) X(view) X(setflags) X(is_integer) \
    X(as_integer_ratio) X(bit_count) X(hex) \
    X(reshape) X(ravel) X(flatten) X(transpose) X(swapaxes) X(squeeze) X(diagonal) X(trace) \
    X(take) X(compress) X(nonzero) X(sort) X(partition) X(argsort) X(searchsorted) X(clip) X(conj) X(conjugate) X(dot) \
    X(__copy__) X(__deepcopy__) X(__reduce_ex__) X(__complex__) X(__round__) X(__trunc__) X(__format__) \
    X(__sizeof__) X(__dlpack__) X(__dlpack_device__) X(to_device) X(__array_namespace__)
/* clang-format on */

/* clang-format off */
#define ARRAY_FUNCTIONS(X) \
    ARRAY_REDUCTIONS(X) X(count_nonzero) X(_fmax) X(_fmin) X(_cummax) X(_cummin) X(array) X(asarray) X(zeros) X(ones) \
    X(empty) X(full) X(zeros_like) X(ones_like) X(empty_like) X(full_like) X(arange) X(frombuffer) X(astype) X(copy) \
    X(ascontiguousarray) X(where) X(clip) X(matmul) X(dot) X(reshape) X(ravel) X(transpose) X(swapaxes) X(squeeze) \
    X(broadcast_to) X(diagonal) X(trace) X(concatenate) X(take) X(nonzero) X(sort) X(argsort) X(searchsorted) \
    X(from_dlpack) X(promote_types) X(result_type) X(can_cast)

/* Those of engine/ alone, whose arguments are checked at the entry: they get a value, or NULL, for each parameter. */
#define ARRAY_PRIVATE_FUNCTIONS(X) \
    X(_as_strided) X(_pad) X(_tile) X(_roll) X(_partition) X(_scatter_add) X(_bincount) X(_interp) X(_reduceat) \
    X(_windows) X(_bits_packed) X(_bits_unpacked) X(_split) X(_parts) X(_fft) X(_linear) X(_random) X(_statistics) \
    X(_kinds) X(_address) X(_alone) X(_writes) X(_words) X(_shortest) X(_model_backends) X(_model_names) \
    X(_model_arrays) X(_model_open) X(_model_ports) X(_model_run) X(_model_steps) X(_text_numbers) X(_labelled_rows) \
    X(_trace) X(_patches) X(_patches_sum) X(_max_pool) X(_depthwise) X(_depthwise_images) X(_depthwise_weights) \
    X(_normalize) X(_normalize_gradient) X(_pool_gradient) X(_bpe_pieces) X(_bpe_table) X(_unigram_pieces) \
    X(_unigram_table) X(_embedding_bags) X(_embedding_evict) X(_embedding_lookup) X(_embedding_names) \
    X(_embedding_new) X(_embedding_open) X(_embedding_put) X(_embedding_snapshot) X(_embedding_snapshot_bloom) \
    X(_embedding_snapshot_end) X(_embedding_snapshot_read) X(_embedding_snapshot_rows) \
    X(_embedding_snapshot_waiting) X(_embedding_statistics) X(_embedding_update) X(_embedding_update_bags)
/* clang-format on */

#define DECLARE_METHOD(name)   PyObject *array_method_##name(PyObject *self, ARRAY_VECTORCALL);
#define DECLARE_FUNCTION(name) PyObject *array_function_##name(PyObject *module, ARRAY_VECTORCALL);
ARRAY_METHODS(DECLARE_METHOD)
ARRAY_FUNCTIONS(DECLARE_FUNCTION)
ARRAY_PRIVATE_FUNCTIONS(DECLARE_FUNCTION)

/* Defines a method and the function of the same name: `body(state, self, values)`, where values[0] is the array;
 * `names` ends with NULL and starts with the function's name of its first argument. */
#define ARRAY_METHOD_OF(name, names, positional, required, room, body) \
    PyObject *array_method_##name(PyObject *self, ARRAY_VECTORCALL) \
    { \
        PyObject *values[room]; \
        values[0] = self; \
        if (array_arguments(#name, args, count, keywords, (names) + 1, (positional) - 1, (required) - 1, values + 1) \
            < 0) \
            return NULL; \
        return WRITING(((array *)self)->state, body(((array *)self)->state, (array *)self, values)); \
    }
#define ARRAY_FUNCTION_OF(name, names, positional, required, room, body) \
    PyObject *array_function_##name(PyObject *module, ARRAY_VECTORCALL) \
    { \
        PyObject *values[room]; \
        array_state *state = array_state_of(module); \
        if (array_arguments(#name, args, count, keywords, names, positional, required, values) < 0) \
            return NULL; \
        array *first = array_from_any(state, values[0], -1); \
        if (first == NULL) \
            return NULL; \
        PyObject *result = WRITING(state, body(state, first, values)); \
        Py_DECREF(first); \
        return result; \
    }
/* A private function whose first parameter is KIND_LIKE: `body(state, self, values)`. */
#define ARRAY_PRIVATE_OF(name, body) \
    PyObject *array_function_##name(PyObject *module, ARRAY_VECTORCALL) \
    { \
        return body(array_state_of(module), (array *)args[0], args); \
    }
#define ARRAY_BOTH_OF(name, names, positional, required, room, body) \
    ARRAY_METHOD_OF(name, names, positional, required, room, body) \
    ARRAY_FUNCTION_OF(name, names, positional, required, room, body)

#endif
