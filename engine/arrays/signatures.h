/* The signatures that inspect.signature() and help() show: SIGNATURE_NAME for each name of ARRAY_FUNCTIONS (methods.h),
 * PARAMETERS_NAME for each of ARRAY_PRIVATE_FUNCTIONS.
 *
 * The former are NumPy's parameters and defaults, with None for NumPy's private "no value"; the arguments that such a
 * function accepts are in its `names`. The latter are all that is known of a private function's parameters: name,
 * default (empty: required), kind (kinds.h), and bounds of an integer. The entry check (kinds.c) and the fuzzer go by
 * them. */
#ifndef ENGINE_SIGNATURES_H
#define ENGINE_SIGNATURES_H

#include "kinds.h"
#include "vme_embedding.h"
#include "vme_fft.h"
#include "vme_random.h"

#define SIGNATURE_REDUCTION "(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True)"
#define SIGNATURE_EXTREME   "(a, axis=None, out=None, keepdims=False, initial=None, where=True)"
#define SIGNATURE_TRUTH     "(a, axis=None, out=None, keepdims=False, *, where=True)"
#define SIGNATURE_PLACE     "(a, axis=None, out=None, *, keepdims=False)"
#define SIGNATURE_SCAN      "(a, axis=None, dtype=None, out=None)"
#define SIGNATURE_ORDER     "(a, axis=-1, kind=None, order=None, *, stable=None, descending=False)"
#define SIGNATURE_BY_SHAPE  "(shape, dtype=None, order='C', *, device=None, like=None)"
#define SIGNATURE_LIKE      "(a, dtype=None, order='K', subok=True, shape=None, *, device=None)"

#define SIGNATURE_sum               SIGNATURE_REDUCTION
#define SIGNATURE_prod              SIGNATURE_REDUCTION
#define SIGNATURE_max               SIGNATURE_EXTREME
#define SIGNATURE_min               SIGNATURE_EXTREME
#define SIGNATURE_all               SIGNATURE_TRUTH
#define SIGNATURE_any               SIGNATURE_TRUTH
#define SIGNATURE_argmax            SIGNATURE_PLACE
#define SIGNATURE_argmin            SIGNATURE_PLACE
#define SIGNATURE_mean              "(a, axis=None, dtype=None, out=None, keepdims=False, *, where=True)"
#define SIGNATURE_cumsum            SIGNATURE_SCAN
#define SIGNATURE_cumprod           SIGNATURE_SCAN
#define SIGNATURE__cummax           SIGNATURE_SCAN
#define SIGNATURE__cummin           SIGNATURE_SCAN
#define SIGNATURE_count_nonzero     "(a, axis=None, *, keepdims=False)"
#define SIGNATURE_array             "(object, dtype=None, *, copy=True, order='K', subok=False, ndmin=0, like=None)"
#define SIGNATURE_asarray           "(a, dtype=None, order=None, *, device=None, copy=None, like=None)"
#define SIGNATURE_zeros             SIGNATURE_BY_SHAPE
#define SIGNATURE_ones              SIGNATURE_BY_SHAPE
#define SIGNATURE_empty             SIGNATURE_BY_SHAPE
#define SIGNATURE_full              "(shape, fill_value, dtype=None, order='C', *, device=None, like=None)"
#define SIGNATURE_zeros_like        SIGNATURE_LIKE
#define SIGNATURE_ones_like         SIGNATURE_LIKE
#define SIGNATURE_empty_like        SIGNATURE_LIKE
#define SIGNATURE_full_like         "(a, fill_value, dtype=None, order='K', subok=True, shape=None, *, device=None)"
#define SIGNATURE_arange            "(start, stop=None, step=1, *, dtype=None, device=None, like=None)"
#define SIGNATURE_frombuffer        "(buffer, dtype=None, count=-1, offset=0, *, like=None)"
#define SIGNATURE_astype            "(x, dtype, /, *, copy=True, device=None)"
#define SIGNATURE_copy              "(a, order='K', subok=False)"
#define SIGNATURE_ascontiguousarray "(a, dtype=None, *, like=None)"
#define SIGNATURE_where             "(condition, x=None, y=None, /)"
#define SIGNATURE_clip              "(a, a_min=None, a_max=None, out=None, *, min=None, max=None)"
#define SIGNATURE_matmul \
    "(x1, x2, /, out=None, *, axes=None, axis=None, casting='same_kind', order='K', dtype=None, subok=True)"
#define SIGNATURE_dot           "(a, b, out=None)"
#define SIGNATURE_reshape       "(a, /, shape, order='C', *, copy=None)"
#define SIGNATURE_ravel         "(a, order='C')"
#define SIGNATURE_transpose     "(a, axes=None)"
#define SIGNATURE_swapaxes      "(a, axis1, axis2)"
#define SIGNATURE_squeeze       "(a, axis=None)"
#define SIGNATURE_broadcast_to  "(array, shape, subok=False)"
#define SIGNATURE_concatenate   "(arrays, /, axis=0, out=None, *, dtype=None, casting='same_kind')"
#define SIGNATURE_take          "(a, indices, axis=None, out=None, mode='raise')"
#define SIGNATURE_nonzero       "(a)"
#define SIGNATURE_sort          SIGNATURE_ORDER
#define SIGNATURE_argsort       SIGNATURE_ORDER
#define SIGNATURE_searchsorted  "(a, v, side='left', sorter=None)"
#define SIGNATURE_from_dlpack   "(x, /, *, device=None, copy=None)"
#define SIGNATURE_promote_types "(type1, type2, /)"
#define SIGNATURE_result_type   "(*arrays_and_dtypes)"
#define SIGNATURE_can_cast      "(from_, to, casting='safe')"
#define SIGNATURE_diagonal      "(a, offset=0, axis1=0, axis2=1)"
#define SIGNATURE_trace         "(a, offset=0, axis1=0, axis2=1, dtype=None, out=None)"
#define SIGNATURE__fmax         SIGNATURE_EXTREME
#define SIGNATURE__fmin         SIGNATURE_EXTREME

/* clang-format off */
#define PARAMETERS__statistics(X)
#define PARAMETERS__kinds(X)
#define PARAMETERS__address(X)     X(a,, KIND_ARRAY)
#define PARAMETERS__alone(X)       X(a,, KIND_ARRAY)
#define PARAMETERS__writes(X)      X(a, =None, KIND_ARRAY | KIND_NONE)
#define PARAMETERS__shortest(X)    X(a,, KIND_ARRAY)
#define PARAMETERS__trace(X)       X(type,, KIND_TYPE) X(function,, KIND_CALLABLE)
#define PARAMETERS__as_strided(X) \
    X(x,, KIND_LIKE) X(shape,, KIND_SIZES) X(strides,, KIND_SIZES) X(offset, =0, KIND_INTEGER)
#define PARAMETERS__pad(X) \
    X(a,, KIND_LIKE) X(before,, KIND_SIZES) X(shape,, KIND_SIZES) X(mode,, KIND_INTEGER, 0, VME_PAD_WRAP) \
    X(value, =None, KIND_NUMBER | KIND_NONE)
#define PARAMETERS__tile(X)        X(a,, KIND_LIKE) X(shape,, KIND_SIZES)
#define PARAMETERS__roll(X)        X(a,, KIND_LIKE) X(shifts,, KIND_SIZES)
#define PARAMETERS__partition(X) \
    X(a,, KIND_LIKE) X(kth,, KIND_SIZES) X(axis,, KIND_INTEGER) X(as_indices,, KIND_TRUTH)
#define PARAMETERS__scatter_add(X) X(target,, KIND_OUT) X(key,, KIND_ANY) X(values,, KIND_ANY)
#define PARAMETERS__split(X)       X(x,, KIND_LIKE)
#define PARAMETERS__parts(X)       X(x,, KIND_LIKE)
#define PARAMETERS__bincount(X)    X(bins,, KIND_ARRAY) X(weights,, KIND_ARRAY | KIND_NONE) X(length,, KIND_INTEGER)
#define PARAMETERS__interp(X) \
    X(x,, KIND_ARRAY) X(xp,, KIND_ARRAY) X(fp,, KIND_ARRAY) X(left,, KIND_REAL | KIND_NONE) \
    X(right,, KIND_REAL | KIND_NONE)
#define PARAMETERS__reduceat(X) \
    X(name,, KIND_TEXT) X(rows,, KIND_ARRAY) X(starts,, KIND_ARRAY) X(ufunc,, KIND_TEXT)
#define PARAMETERS__windows(X) \
    X(a,, KIND_ARRAY) X(v,, KIND_ARRAY) X(before,, KIND_INTEGER) X(after,, KIND_INTEGER)
#define PARAMETERS__bits_packed(X)   X(truths,, KIND_ARRAY) X(big,, KIND_TRUTH)
#define PARAMETERS__bits_unpacked(X) X(bytes,, KIND_ARRAY) X(count,, KIND_INTEGER) X(big,, KIND_TRUTH)
#define PARAMETERS__fft(X) \
    X(kind,, KIND_INTEGER, 0, VME_FFT_REAL_BACKWARD) X(n,, KIND_INTEGER) X(factor,, KIND_REAL) X(rows,, KIND_ARRAY) \
    X(out,, KIND_OUT)
#define PARAMETERS__linear(X) \
    X(op,, KIND_INTEGER, 0, VME_LINEAR_COUNT - 1) X(flags,, KIND_INTEGER) X(cutoff,, KIND_REAL) \
    X(sizes,, KIND_SIZES) X(inputs,, KIND_ARRAYS) X(outputs,, KIND_ARRAYS)
#define PARAMETERS__random(X) \
    X(state,, KIND_OUT) X(kind,, KIND_INTEGER, 0, VME_RANDOM_KINDS - 1) X(parameters,, KIND_ARRAYS) X(out,, KIND_OUT)
#define PARAMETERS__words(X) \
    X(key,, KIND_NUMBERS) X(counter,, KIND_NUMBERS) X(first,, KIND_NUMBER) X(count,, KIND_INTEGER)

#define PARAMETERS__patches(X)     X(images,, KIND_ARRAY) X(windows,, KIND_SIZES)
#define PARAMETERS__patches_sum(X) X(patches,, KIND_ARRAY) X(windows,, KIND_SIZES) X(shape,, KIND_SIZES)
#define PARAMETERS__max_pool(X)    X(images,, KIND_ARRAY) X(windows,, KIND_SIZES)
#define PARAMETERS__pool_gradient(X) \
    X(images,, KIND_ARRAY) X(pooled,, KIND_ARRAY) X(gradient,, KIND_ARRAY) X(windows,, KIND_SIZES)
#define PARAMETERS__depthwise(X)   X(images,, KIND_ARRAY) X(weights,, KIND_ARRAY) X(windows,, KIND_SIZES)
#define PARAMETERS__depthwise_images(X) \
    X(gradient,, KIND_ARRAY) X(weights,, KIND_ARRAY) X(windows,, KIND_SIZES) X(shape,, KIND_SIZES)
#define PARAMETERS__depthwise_weights(X) \
    X(images,, KIND_ARRAY) X(gradient,, KIND_ARRAY) X(windows,, KIND_SIZES)
#define PARAMETERS__normalize(X) \
    X(x,, KIND_ARRAY) X(weight,, KIND_ARRAY) X(bias,, KIND_ARRAY) X(eps,, KIND_REAL)
#define PARAMETERS__normalize_gradient(X) \
    X(x,, KIND_ARRAY) X(gradient,, KIND_ARRAY) X(mean,, KIND_ARRAY) X(variance,, KIND_ARRAY) X(weight,, KIND_ARRAY) \
    X(eps,, KIND_REAL)

#define PARAMETERS__model_names(X)
#define PARAMETERS__model_open(X) \
    X(source,, KIND_ANY) X(threads, =0, KIND_INTEGER) X(ftz, =False, KIND_TRUTH) X(fixed, =True, KIND_TRUTH) \
    X(spend, =False, KIND_TRUTH) X(like, =None, KIND_SESSION | KIND_NONE) X(part, =0, KIND_INTEGER)
#define PARAMETERS__model_arrays(X)   X(session,, KIND_SESSION) X(names,, KIND_TUPLE) X(inputs,, KIND_ANY)
#define PARAMETERS__model_backends(X) X(session,, KIND_SESSION)
#define PARAMETERS__model_ports(X)    X(session,, KIND_SESSION)
#define PARAMETERS__model_run(X) \
    X(session,, KIND_SESSION) X(inputs,, KIND_ARRAYS) X(profile, =False, KIND_TRUTH) \
    X(out, =None, KIND_ARRAYS | KIND_NONE)
#define PARAMETERS__model_steps(X)    X(session,, KIND_SESSION) X(inputs, =None, KIND_ARRAYS | KIND_NONE)

#define PARAMETERS__text_numbers(X)   X(numbers,, KIND_DICT) X(texts,, KIND_ANY)
#define PARAMETERS__labelled_rows(X)  X(labels,, KIND_TUPLE) X(rows,, KIND_LIST)
#define PARAMETERS__bpe_table(X)      X(merges,, KIND_DICT)
#define PARAMETERS__bpe_pieces(X) \
    X(ids,, KIND_DICT) X(table,, KIND_BYTES) X(text,, KIND_ANY) X(unknown,, KIND_INTEGER | KIND_NONE) \
    X(fuse,, KIND_TRUTH) X(of_bytes,, KIND_TUPLE | KIND_NONE)
#define PARAMETERS__unigram_table(X)  X(ids,, KIND_DICT) X(scores,, KIND_LIST)
#define PARAMETERS__unigram_pieces(X) \
    X(table,, KIND_BYTES) X(text,, KIND_TEXT) X(unknown,, KIND_INTEGER | KIND_NONE) X(score,, KIND_REAL)

#define PARAMETERS__embedding_names(X)
#define PARAMETERS__embedding_open(X)       X(name,, KIND_TEXT)
#define PARAMETERS__embedding_new(X) \
    X(dim,, KIND_INTEGER) X(optimizer,, KIND_INTEGER, 0, VME_EMBEDDING_OPTIMIZERS - 1) X(defaults,, KIND_ARRAY) \
    X(filter_freq, =0, KIND_INTEGER) X(bloom_elements, =0, KIND_INTEGER) X(bloom_error, =0.01, KIND_REAL) \
    X(no_permission, =0, KIND_REAL) X(slot_initial, =0, KIND_REAL) X(steps_to_live, =0, KIND_INTEGER) \
    X(l2_weight_threshold, =0, KIND_REAL) X(quota, =0, KIND_INTEGER) X(folder, =None, KIND_PATH | KIND_NONE) \
    X(memory, =0, KIND_INTEGER) X(disk_quota, =0, KIND_INTEGER) \
    X(cache, =0, KIND_INTEGER, 0, VME_EMBEDDING_CACHES - 1)
#define PARAMETERS__embedding_statistics(X) X(table,, KIND_TABLE)
#define PARAMETERS__embedding_lookup(X)     X(table,, KIND_TABLE) X(ids,, KIND_ARRAY)
#define PARAMETERS__embedding_bags(X)       X(sets,, KIND_SETS) X(apart, =False, KIND_TRUTH)
#define PARAMETERS__embedding_update_bags(X) X(sets,, KIND_SETS) X(rates,, KIND_NUMBERS)
#define PARAMETERS__embedding_update(X) \
    X(table,, KIND_TABLE) X(rates,, KIND_NUMBERS) X(ids,, KIND_ARRAY) X(gradients,, KIND_ARRAY)
#define PARAMETERS__embedding_evict(X)      X(table,, KIND_TABLE) X(step,, KIND_INTEGER)
#define PARAMETERS__embedding_put(X) \
    X(table,, KIND_TABLE) X(keys,, KIND_ARRAY | KIND_NONE) X(freqs,, KIND_ARRAY) X(versions,, KIND_ARRAY | KIND_NONE) \
    X(values,, KIND_ARRAY | KIND_NONE) X(slots,, KIND_ARRAY | KIND_NONE)
#define PARAMETERS__embedding_snapshot(X)         X(tables,, KIND_TUPLE) X(incremental,, KIND_TRUTH)
#define PARAMETERS__embedding_snapshot_bloom(X)   X(snapshot,, KIND_SNAPSHOT)
#define PARAMETERS__embedding_snapshot_end(X)     X(snapshot,, KIND_SNAPSHOT) X(saved,, KIND_TRUTH)
#define PARAMETERS__embedding_snapshot_rows(X)    X(snapshot,, KIND_SNAPSHOT)
#define PARAMETERS__embedding_snapshot_read(X) \
    X(snapshot,, KIND_SNAPSHOT) X(room,, KIND_INTEGER, 1, ARRAY_ROOM_MAX)
#define PARAMETERS__embedding_snapshot_waiting(X) \
    X(snapshot,, KIND_SNAPSHOT) X(room,, KIND_INTEGER, 1, ARRAY_ROOM_MAX)
/* clang-format on */

#endif
