/* The signatures that inspect.signature() and help() show: SIGNATURE_NAME for each name of ARRAY_FUNCTIONS (methods.h).
 *
 * They are NumPy's parameters and defaults, with None for NumPy's private "no value". The arguments that a function
 * accepts are in its `names`. */
#ifndef ENGINE_SIGNATURES_H
#define ENGINE_SIGNATURES_H

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
#define SIGNATURE_dot               "(a, b, out=None)"
#define SIGNATURE_reshape           "(a, /, shape, order='C', *, copy=None)"
#define SIGNATURE_ravel             "(a, order='C')"
#define SIGNATURE_transpose         "(a, axes=None)"
#define SIGNATURE_swapaxes          "(a, axis1, axis2)"
#define SIGNATURE_squeeze           "(a, axis=None)"
#define SIGNATURE_broadcast_to      "(array, shape, subok=False)"
#define SIGNATURE__as_strided       "(x, shape, strides, offset=0)"
#define SIGNATURE_concatenate       "(arrays, /, axis=0, out=None, *, dtype=None, casting='same_kind')"
#define SIGNATURE__pad              "(a, before, shape, mode, value=None)"
#define SIGNATURE__tile             "(a, shape)"
#define SIGNATURE__roll             "(a, shifts)"
#define SIGNATURE__patches          "(images, windows)"
#define SIGNATURE__patches_sum      "(patches, windows, shape)"
#define SIGNATURE__max_pool         "(images, windows)"
#define SIGNATURE__pool_gradient    "(images, pooled, gradient, windows)"
#define SIGNATURE_take              "(a, indices, axis=None, out=None, mode='raise')"
#define SIGNATURE_nonzero           "(a)"
#define SIGNATURE_sort              SIGNATURE_ORDER
#define SIGNATURE_argsort           SIGNATURE_ORDER
#define SIGNATURE_searchsorted      "(a, v, side='left', sorter=None)"
#define SIGNATURE__partition        "(a, kth, axis, as_indices)"
#define SIGNATURE__scatter_add      "(target, key, values)"
#define SIGNATURE_from_dlpack       "(x, /, *, device=None, copy=None)"
#define SIGNATURE_promote_types     "(type1, type2, /)"
#define SIGNATURE_result_type       "(*arrays_and_dtypes)"
#define SIGNATURE_can_cast          "(from_, to, casting='safe')"
#define SIGNATURE_diagonal          "(a, offset=0, axis1=0, axis2=1)"
#define SIGNATURE_trace             "(a, offset=0, axis1=0, axis2=1, dtype=None, out=None)"
#define SIGNATURE__fmax             SIGNATURE_EXTREME
#define SIGNATURE__fmin             SIGNATURE_EXTREME
#define SIGNATURE__split            "(x)"
#define SIGNATURE__parts            "(x)"
#define SIGNATURE__bincount         "(bins, weights, length)"
#define SIGNATURE__interp           "(x, xp, fp, left, right)"
#define SIGNATURE__reduceat         "(name, rows, starts, ufunc)"
#define SIGNATURE__windows          "(a, v, before, after)"
#define SIGNATURE__bits_packed      "(truths, big)"
#define SIGNATURE__bits_unpacked    "(bytes, count, big)"
#define SIGNATURE__fft              "(kind, n, factor, rows, out)"
#define SIGNATURE__linear           "(op, flags, cutoff, sizes, inputs, outputs)"
#define SIGNATURE__random           "(state, kind, parameters, out)"
#define SIGNATURE__statistics       "()"
#define SIGNATURE__address          "(a)"
#define SIGNATURE__words            "(key, counter, first, count)"
#define SIGNATURE__shortest         "(a)"
#define SIGNATURE__model_names      "()"
#define SIGNATURE__model_open       "(source, threads=0, ftz=False, fixed=True, spend=False, like=None, part=0)"
#define SIGNATURE__model_arrays     "(session, names, inputs)"
#define SIGNATURE__model_backends   "(session)"
#define SIGNATURE__model_ports      "(session)"
#define SIGNATURE__model_run        "(session, inputs, profile=False, out=None)"
#define SIGNATURE__model_steps      "(session, inputs=None)"
#define SIGNATURE__text_numbers     "(numbers, texts)"
#define SIGNATURE__labelled_rows    "(labels, rows)"
#define SIGNATURE__bpe_pieces       "(ids, table, text, unknown, fuse, of_bytes)"
#define SIGNATURE__bpe_table        "(merges)"
#define SIGNATURE__unigram_pieces   "(table, text, unknown, score)"
#define SIGNATURE__unigram_table    "(ids, scores)"
#define SIGNATURE__embedding_bags   "(sets, apart=False)"
#define SIGNATURE__embedding_evict  "(table, step)"
#define SIGNATURE__embedding_lookup "(table, ids)"
#define SIGNATURE__embedding_names  "()"
#define SIGNATURE__embedding_new \
    "(dim, optimizer, defaults, filter_freq=0, bloom_elements=0, bloom_error=0.01, " \
    "no_permission=0, slot_initial=0, steps_to_live=0, l2_weight_threshold=0, quota=0)"
#define SIGNATURE__embedding_open             "(name)"
#define SIGNATURE__embedding_put              "(table, keys, freqs, versions, values, slots)"
#define SIGNATURE__embedding_snapshot         "(tables, incremental)"
#define SIGNATURE__embedding_snapshot_bloom   "(snapshot)"
#define SIGNATURE__embedding_snapshot_end     "(snapshot, saved)"
#define SIGNATURE__embedding_snapshot_read    "(snapshot, room)"
#define SIGNATURE__embedding_snapshot_rows    "(snapshot)"
#define SIGNATURE__embedding_snapshot_waiting "(snapshot, room)"
#define SIGNATURE__embedding_statistics       "(table)"
#define SIGNATURE__embedding_update           "(table, rates, ids, gradients)"
#define SIGNATURE__embedding_update_bags      "(sets, rates)"
#define SIGNATURE__trace                      "(type, function)"

#define SIGNATURE__depthwise          "(images, weights, windows)"
#define SIGNATURE__depthwise_images   "(gradient, weights, windows, shape)"
#define SIGNATURE__depthwise_weights  "(images, gradient, windows)"
#define SIGNATURE__normalize          "(x, weight, bias, eps)"
#define SIGNATURE__normalize_gradient "(x, gradient, mean, variance, weight, eps)"

#endif
