"""Readers of attention and rotary embeddings: ONNX's own, and those that ONNX Runtime's optimizers write
(com.microsoft). Each becomes two products with a softmax between them and one mask added to the scores, the form that
patterns.py fuses. Heads are [batch, heads, length, size] in this file."""

import math

import numpy

from . import sizes
from .caches import SHARED
from .lowering import Lowering
from .readers import Unsupported, reads

_FILTER = -10000.0  # ONNX Runtime's default addend to the scores of masked keys


def _inputs(node, count):
    return (*node.inputs, *[None] * count)[:count]


def _outputs(node, count):
    return (*node.outputs, *[""] * count)[:count]


def _refuse(node, **names):
    """Raises Unsupported if one of these inputs is given. `names` maps their names."""
    for label, name in names.items():
        if name is not None:
            raise Unsupported(f"has {label.replace('_', ' ')}")


def _as_float32(add, name):
    return None if name is None else add.cast(name, numpy.float32)


def _split_heads(add, x, heads):
    """[batch, length, heads * size] as heads."""
    batch, length, width = add.shape(x)
    return add.transpose(add.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _join_heads(add, x):
    batch, heads, length, size = add.shape(x)
    return add.reshape(add.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def _appended(add, past, x):
    """Appends keys or values to the cached ones."""
    return x if past is None else add.joined([past, x], 2)


def _sum(add, *names):
    """The sum of the given names, without those that are None; None if all are."""
    total = None
    for name in names:
        total = name if total is None else total if name is None else add.do("add", total, name)
    return total


def _masked(add, allowed, value):
    """0 where `allowed`, a name or a boolean array, else `value`."""
    if not isinstance(allowed, str):
        return add.constant(numpy.where(allowed, 0.0, value), numpy.float32)
    zero, penalty = (add.constant(number, numpy.float32) for number in (0.0, value))
    return add.where(allowed, zero, penalty)


def _lowest():
    return float(numpy.finfo("float32").min)


def _window(add, rows, keys, offset, left=-1, right=0):
    """Which keys each row may attend to: from `left` before its position to `right` after it (-1: all). A row's
    position is its index plus `offset`, a number or the name of an int64 tensor [batch, 1, 1, 1]."""
    fixed = not any(isinstance(number, str) or sizes.is_open(number) for number in (rows, keys, offset))
    if fixed:
        position, key = numpy.arange(rows)[:, None] + offset, numpy.arange(keys)
        return (left < 0 or key >= position - left) & (right < 0 or key <= position + right)
    position, key = add.reshape(add.arange(rows), (rows, 1)), add.arange(keys)
    if isinstance(offset, str) or sizes.is_open(offset) or offset != 0:
        position = add.do("add", position, offset)
    parts = []
    if right >= 0:
        parts.append(add.do("less_equal", key, position if right == 0 else add.do("add", position, right)))
    if left >= 0:
        parts.append(add.do("greater_equal", key, add.do("subtract", position, left)))
    return parts[0] if len(parts) == 1 else add.do("logical_and", *parts)


def attend(add, q, k, v, scale, mask=None, softcap=0.0):
    """Returns (result, scores, masked scores, weights), in float32. k and v may have fewer heads than q, each shared by
    several of q's."""
    (batch, heads, rows, size), (_, shared, keys, width) = add.shape(q), add.shape(v)
    groups = heads // shared
    grouped = groups > 1
    if grouped:
        q = add.reshape(q, (batch, shared, groups, rows, size))
        k, v = (add.reshape(name, (batch, shared, 1, *add.shape(name)[2:])) for name in (k, v))
        if mask is not None and len(add.shape(mask)) > 2:
            mask_shape = add.shape(mask)
            head_sizes = (shared, groups) if mask_shape[-3] == heads else (1, 1)
            mask = add.reshape(mask, (*mask_shape[:-3], *head_sizes, *mask_shape[-2:]))
    order = (*range(4 + grouped - 2), 3 + grouped, 2 + grouped)
    scores = add.matmul(q, add.transpose(k, order))
    if scale != 1:
        scores = add.do("multiply", scores, scale)
    if softcap:
        scores = add.do("multiply", add.do("tanh", add.do("divide", scores, softcap)), softcap)
    masked = scores if mask is None else add.do("add", scores, mask)
    weights = add.operator("Softmax", masked, axis=-1)
    result = add.matmul(weights, v)
    if grouped:
        result = add.reshape(result, (batch, heads, rows, width))
        scores, masked, weights = (add.reshape(name, (batch, heads, rows, keys)) for name in (scores, masked, weights))
    return result, scores, masked, weights


# ---- rotary embeddings
def rotated(add, x, cosines, sines, interleaved=False, size=0):
    """Rotates the first `size` elements (0: all) of each head, in pairs, by angles [batch or 1, 1, length, size / 2].
    Pairs are neighbours if `interleaved`, else elements of the two halves."""
    batch, heads, length, head_size = add.shape(x)
    size = size or head_size
    half = size // 2
    if interleaved:
        parts = [add.part(x, 3, first, size, 2) for first in range(2)]
    else:
        parts = [add.part(x, 3, first, first + half) for first in (0, half)]
    halves = [
        add.do("subtract", add.do("multiply", parts[0], cosines), add.do("multiply", parts[1], sines)),
        add.do("add", add.do("multiply", parts[0], sines), add.do("multiply", parts[1], cosines)),
    ]
    result = add.empty((batch, heads, length, head_size), add.dtype(x))
    for number, name in enumerate(halves):
        if interleaved:
            add.put(add.part(result, 3, number, size, 2), name)
        else:
            add.put(add.part(result, 3, number * half, number * half + half), name)
    if size < head_size:
        add.put(add.part(result, 3, size, head_size), add.part(x, 3, size, head_size))
    return result


def _angles(add, caches, positions, dtype):
    """The rows of the caches at `positions` [batch, length], int64; the caches themselves if there are none."""
    angles = []
    for cache in caches:
        if positions is not None:
            cache = add.operator("Gather", cache, positions)
        batch, length, half = add.shape(cache)
        angles.append(add.cast(add.reshape(cache, (batch, 1, length, half)), dtype))
    return angles


@reads("RotaryEmbedding", "com.microsoft.RotaryEmbedding")
def rotary_embedding(reader, node):
    add = Lowering(reader, node)
    if node.get("is_packed_batching", 0) or node.get("scale", 1.0) != 1.0:
        raise Unsupported("has scale or is_packed_batching")
    if node.domain == "com.microsoft":
        x, positions, *caches = _inputs(node, 4)
    else:
        x, *caches, positions = _inputs(node, 4)
    rank, size = len(add.shape(x)), node.get("rotary_embedding_dim", 0)
    heads = node.get("num_heads", 0)
    if rank == 3 and not heads:
        heads = add.shape(x)[2] // (size or 2 * add.shape(caches[0])[-1])
    q = x if rank == 4 else _split_heads(add, x, heads)
    batch, _, length, _ = add.shape(q)
    if positions is not None:
        positions = add.cast(positions, numpy.int64)
        if math.prod(add.shape(positions)) == 1 and len(add.shape(positions)) == 1:  # the position of the first row
            positions = add.reshape(add.do("add", add.arange(length), positions), (1, length))
    result = rotated(
        add, q, *_angles(add, caches, positions, add.dtype(x)), interleaved=bool(node.get("interleaved", 0)), size=size
    )
    add.done(result if rank == 4 else _join_heads(add, result))


# ---- ONNX's own
@reads("Attention")
def attention(reader, node):
    """A row that may attend to no key gives 0."""
    add = Lowering(reader, node)
    q, k, v, mask, past_k, past_v, lengths = _inputs(node, 7)
    dtype, rank = add.dtype(q), len(add.shape(q))
    if dtype.name not in ("float32", "float16"):
        raise Unsupported(f"works on {dtype}, expected float32 or float16")
    if rank == 3:
        q = _split_heads(add, q, node.get("q_num_heads"))
        k, v = (_split_heads(add, name, node.get("kv_num_heads")) for name in (k, v))
    k, v = _appended(add, past_k, k), _appended(add, past_v, v)
    rows, keys = add.shape(q)[2], add.shape(k)[2]
    offset = 0 if past_k is None else add.shape(past_k)[2]
    length = None
    if lengths is not None:
        length = add.reshape(add.cast(lengths, numpy.int64), (-1, 1, 1, 1))
        if past_k is None:
            offset = add.do("subtract", length, rows)
    bias = _mask_as_addend(add, mask, keys)
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    if max(left, right) >= 0:
        bias = _sum(add, bias, _masked(add, _window(add, rows, keys, offset, left, right), -math.inf))
    if length is not None:
        bias = _sum(add, bias, _masked(add, add.do("less", add.arange(keys), length), -math.inf))
    scale = node.get("scale") or 1 / math.sqrt(add.shape(q)[3])
    result, *scores = attend(
        add, *(_as_float32(add, name) for name in (q, k, v)), scale, bias, node.get("softcap", 0.0)
    )
    if bias is not None:
        largest = add.reduce("max", bias, [len(add.shape(bias)) - 1])
        all_masked = add.do("equal", largest, -math.inf)
        result = add.where(all_masked, 0, result)
        scores[2] = add.where(all_masked, 0, scores[2])
    result = add.cast(result, dtype)
    y, *presents, scores_output = _outputs(node, 4)
    add.done(_join_heads(add, result) if rank == 3 else result, y)
    for name, output in zip((k, v), presents):
        if output:
            add.done(name, output)
    if scores_output:
        mode = node.get("qk_matmul_output_mode", 0)
        if mode == 1 and node.opset < 25 and not node.get("softcap", 0.0):
            mode = 2 if node.opset < 24 else mode
        add.done(add.cast(scores[{0: 0, 1: 0, 2: 1, 3: 2}[mode]], dtype), scores_output)


def _mask_as_addend(add, mask, keys):
    """The mask as an addend to the scores; keys beyond the mask's width are masked."""
    if mask is None:
        return None
    if add.dtype(mask) == numpy.bool_:
        mask = _masked(add, mask, -math.inf)
    mask, shape = _as_float32(add, mask), add.shape(mask)
    if not sizes.is_open(keys) and not sizes.is_open(shape[-1]) and shape[-1] < keys:
        mask = add.padded(mask, [0] * len(shape), [*[0] * (len(shape) - 1), keys - shape[-1]], -math.inf)
    return mask


# ---- those of ONNX Runtime
def _padding(add, mask, batch, keys, value):
    """A key mask as an addend: lengths [batch] (or ends, then starts, [2 * batch]), or flags [batch, keys] or [batch,
    rows, keys]."""
    if mask is None:
        return None
    shape = add.shape(mask)
    if len(shape) == 1:
        number = add.arange(keys)
        mask = add.cast(mask, numpy.int64)
        has_starts = not sizes.is_open(shape[0]) and not sizes.is_open(batch) and shape[0] == 2 * batch
        ends = add.part(mask, 0, 0, batch) if has_starts else mask
        allowed = add.do("less", number, add.reshape(ends, (-1, 1, 1, 1)))
        if has_starts:
            starts = add.reshape(add.part(mask, 0, batch, 2 * batch), (-1, 1, 1, 1))
            allowed = add.do("logical_and", allowed, add.do("greater_equal", number, starts))
    elif len(shape) in (2, 3):
        rows = shape[1] if len(shape) == 3 else 1
        allowed = add.do("greater", mask, 0) if add.dtype(mask) != numpy.bool_ else mask
        allowed = add.reshape(allowed, (shape[0], 1, rows, shape[-1]))
    else:
        raise Unsupported(f"has a mask of {len(shape)} dimensions")
    return _masked(add, allowed, value)


def _mask(add, node, padding, attention_bias, batch, rows, keys, offset):
    causal = None
    if node.get("unidirectional", 0):
        causal = _masked(add, _window(add, rows, keys, offset), _lowest())
    value = node.get("mask_filter_value", _FILTER)
    padding = _padding(add, padding, batch, keys, value)
    if causal is not None and padding is not None:  # their sum could overflow float32
        padding = add.do("maximum", add.do("add", causal, padding), _lowest())
        causal = None
    return _sum(add, causal, padding, _as_float32(add, attention_bias))


@reads("com.microsoft.Attention")
def packed_attention(reader, node):
    add = Lowering(reader, node)
    x, weights, bias, mask, past, attention_bias, past_length = _inputs(node, 7)
    _refuse(node, past_sequence_length=past_length)
    if node.get("do_rotary", 0):
        raise Unsupported("has do_rotary")
    heads, columns, dtype = node.get("num_heads"), add.shape(weights)[1], add.dtype(x)
    widths = node.get("qkv_hidden_sizes") or [columns // 3] * 3
    projected = add.operator("MatMul", x, weights)
    if bias is not None:
        projected = add.operator("Add", projected, bias)
    begin, parts = 0, []
    for width in widths:
        parts.append(_split_heads(add, add.part(projected, 2, begin, begin + width), heads))
        begin += width
    q, k, v = parts
    offset = 0
    if past is not None:
        offset = add.shape(past)[3]
        shape = add.shape(past)[1:]
        k, v = (
            _appended(add, add.reshape(add.part(past, 0, index, index + 1), shape), name)
            for index, name in enumerate((k, v))
        )
    batch, _, rows, size = add.shape(q)
    mask = _mask(add, node, mask, attention_bias, batch, rows, add.shape(k)[2], offset)
    scale = node.get("scale") or 1 / math.sqrt(size)
    result = attend(add, *(_as_float32(add, name) for name in (q, k, v)), scale, mask)[0]
    y, present = _outputs(node, 2)
    add.done(_join_heads(add, add.cast(result, dtype)), y)
    if present:
        add.done(add.joined([add.reshape(name, (1, *add.shape(name))) for name in (k, v)], 0), present)


def _query_key_value(add, node, query, key, value, bias):
    """The heads of all three, which may be packed together or already split into heads."""
    heads = node.get("num_heads")
    if len(add.shape(query)) == 5:  # [batch, length, heads, 3, size]
        return [_packed_part(add, query, index) for index in range(3)]
    hidden = add.shape(query)[2]
    biases = [None] * 3
    if bias is not None:
        begin = 0
        for index, width in enumerate((hidden, hidden, add.shape(bias)[0] - 2 * hidden)):
            biases[index] = add.part(bias, 0, begin, begin + width)
            begin += width

    def heads_of(name, index):
        if len(add.shape(name)) == 4:
            return name
        return _split_heads(add, name if biases[index] is None else add.do("add", name, biases[index]), heads)

    if key is not None and len(add.shape(key)) == 5:  # [batch, keys, heads, 2, size]
        return [heads_of(query, 0), _packed_part(add, key, 0), _packed_part(add, key, 1)]
    return [
        heads_of(query, 0),
        heads_of(key if key is not None else query, 1),
        heads_of(value if value is not None else query, 2),
    ]


def _packed_part(add, name, index):
    batch, length, heads, _, size = add.shape(name)
    return add.transpose(add.reshape(add.part(name, 3, index, index + 1), (batch, length, heads, size)), (0, 2, 1, 3))


@reads("com.microsoft.MultiHeadAttention")
def multi_head_attention(reader, node):
    add = Lowering(reader, node)
    query, key, value, bias, mask, attention_bias, past_k, past_v, past_length, indirection = _inputs(node, 10)
    _refuse(node, past_sequence_length=past_length, cache_indirection=indirection)
    dtype = add.dtype(query)
    q, k, v = _query_key_value(add, node, query, key, value, bias)
    k, v = _appended(add, past_k, k), _appended(add, past_v, v)
    batch, _, rows, size = add.shape(q)
    offset = 0 if past_k is None else add.shape(past_k)[2]
    mask = _mask(add, node, mask, attention_bias, batch, rows, add.shape(k)[2], offset)
    scale = node.get("scale") or 1 / math.sqrt(size)
    result, scores, *_ = attend(add, *(_as_float32(add, name) for name in (q, k, v)), scale, mask)
    y, present_k, present_v, scores_output = _outputs(node, 4)
    add.done(_join_heads(add, add.cast(result, dtype)), y)
    for name, output in ((k, present_k), (v, present_v), (scores, scores_output)):
        if output:
            add.done(add.cast(name, dtype), output)


@reads("com.microsoft.GroupQueryAttention")
def group_query_attention(reader, node):
    """New keys and values are written to the cache at the position given by seqlens_k; later positions are masked."""
    add = Lowering(reader, node)
    query, key, value, past_k, past_v, lengths, _, *caches, positions, attention_bias, sink = _inputs(node, 12)
    _refuse(node, head_sink=sink)
    for attribute in ("smooth_softmax", "qk_output"):
        if node.get(attribute, 0) > 0:
            raise Unsupported(f"has {attribute}")
    heads, shared, dtype = node.get("num_heads"), node.get("kv_num_heads"), add.dtype(query)
    if key is None:
        size, begin, parts = add.shape(query)[2] // (heads + 2 * shared), 0, []
        for width in (heads * size, shared * size, shared * size):
            parts.append(add.part(query, 2, begin, begin + width))
            begin += width
        query, key, value = parts
    q, k, v = _split_heads(add, query, heads), _split_heads(add, key, shared), _split_heads(add, value, shared)
    batch, _, rows, size = add.shape(q)
    cached = 0  # number of cached keys of each example
    if past_k is not None:
        cached = add.do("subtract", add.reshape(add.cast(lengths, numpy.int64), (batch, 1)), rows - 1)
    if node.get("do_rotary", 0):
        if positions is None:
            positions = add.arange(rows)
            positions = add.reshape(positions, (1, rows)) if past_k is None else add.do("add", cached, positions)
        angles = _angles(add, caches, add.cast(positions, numpy.int64), dtype)
        rotation = {"interleaved": bool(node.get("rotary_interleaved", 0)), "size": 2 * add.shape(caches[0])[1]}
        q, k = rotated(add, q, *angles, **rotation), rotated(add, k, *angles, **rotation)
    if past_k is not None:
        write = _written_in_place if node.get(SHARED, 0) else _extended
        k, v = (write(add, past, name, cached) for past, name in ((past_k, k), (past_v, v)))
        cached = add.reshape(cached, (batch, 1, 1, 1))
    window = node.get("local_window_size", -1)
    allowed = _window(add, rows, add.shape(k)[2], cached, window - 1 if window > 0 else -1)
    mask = _sum(add, _masked(add, allowed, _lowest()), _as_float32(add, attention_bias))
    scale = node.get("scale") or 1 / math.sqrt(size)
    result = attend(add, *(_as_float32(add, name) for name in (q, k, v)), scale, mask, node.get("softcap", 0.0))[0]
    y, *presents = _outputs(node, 3)
    add.done(_join_heads(add, add.cast(result, dtype)), y)
    for name, output in zip((k, v), presents):
        if output:
            add.done(name, output)


def _written_in_place(add, past, x, cached):
    """The cache with `x` written after each example's cached rows. Writing past its capacity is the caller's error."""
    batch, heads, rows, _ = add.shape(x)
    positions = add.do("add", cached, add.arange(rows))
    indices = [add.along(batch, 0, 3), add.along(heads, 1, 3), add.reshape(positions, (batch, 1, rows))]
    return add.scattered(past, x, indices)


def _extended(add, past, x, cached):
    """The cache extended by `x`, placed after each example's cached rows."""
    batch, heads, rows, _ = add.shape(x)
    extended = add.joined([past, x], 2)
    if not sizes.is_open(batch) and batch == 1:
        return extended
    positions = add.reshape(add.do("add", cached, add.arange(rows)), (batch, 1, rows))
    indices = [add.along(batch, 0, 3), add.along(heads, 1, 3), positions]
    return add.reader.add_layer(
        "Scatter",
        add.node,
        [extended, x, *indices],
        add.shape(extended),
        output=add.fresh("scattered"),
        parameters=(0, -1),
    )
