"""Texts (ONNX's strings) in models. They exist only at a model's inputs and outputs: inside, a text is an index into
the model's vocabulary, which holds every text in the model (other texts are -1), and operators on texts look up
indices in tables. docs/model-format.md describes how the file stores them."""

import math

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads

KEEPERS = {  # operators that rearrange texts
    *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Expand"),
    *("Tile", "Gather", "GatherElements", "GatherND", "Where", "ai.onnx.ml.ArrayFeatureExtractor"),
}
READERS_OF_TEXTS = {
    *KEEPERS,
    *("Equal", "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.OneHotEncoder"),
}
_MAX_TABLE = 1 << 16  # elements of a table indexed by integers
_MAX_COMPARED_KEYS = 1 << 14  # maximum number of keys to compare each number with


def vocabulary(model):
    """The texts in the model, with their indices."""
    indices = {}
    _gather(model.graph, indices)
    return indices


def _gather(graph, indices):
    from onnx import AttributeProto, TensorProto, numpy_helper

    def take(tensor):
        if tensor.data_type == TensorProto.STRING:
            for text in numpy_helper.to_array(tensor).reshape(-1):
                indices.setdefault(_text(text), len(indices))

    for tensor in graph.initializer:
        take(tensor)
    for node in graph.node:
        for item in node.attribute:
            if item.type == AttributeProto.GRAPH:
                _gather(item.g, indices)
            elif item.type == AttributeProto.TENSOR:
                take(item.t)
            elif item.type == AttributeProto.STRINGS and item.name != "nodes_modes":
                for text in item.strings:
                    indices.setdefault(text.decode(errors="replace"), len(indices))
            elif item.name in ("default_string", "value_string"):
                indices.setdefault(item.s.decode(errors="replace"), len(indices))


def _text(text):
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def is_text(values):
    """Whether the NumPy array holds texts."""
    return numpy.asarray(values).dtype.kind in "OSUT"


def numbers_of_texts(reader, values):
    """Their indices in the model's vocabulary, as an int64 array of that shape."""
    values = numpy.asarray(values, object)
    return numpy.array([reader.vocabulary.get(_text(text), -1) for text in values.reshape(-1)], "int64").reshape(
        values.shape
    )


# ---- look-ups
def _values(node, side):
    """LabelEncoder's "keys" or "values" as an array, with dtype object for texts."""
    from onnx import numpy_helper

    for kind, dtype in (("strings", object), ("int64s", "int64"), ("floats", "float32")):
        if node.get(f"{side}_{kind}") is not None:
            return numpy.array(node.get(f"{side}_{kind}"), dtype)
    if node.get(f"{side}_tensor") is not None:
        return numpy_helper.to_array(node.get(f"{side}_tensor")).reshape(-1)
    raise Unsupported(f"has no {side}")


def _looked_up(add, x, keys, values, default):
    """For each number in `x` the value of its key, or the default. `keys` is an array of numbers; for texts, of
    vocabulary indices."""
    table = numpy.concatenate([values, numpy.asarray([default], values.dtype)])
    if x in add.network.texts:
        positions = numpy.full(len(add.reader.vocabulary) + 1, len(keys))
        positions[keys[::-1]] = numpy.arange(len(keys))[::-1]  # the first of equal keys
        return add.take(add.constant(table[positions], table.dtype), [x])
    if keys.dtype.kind in "iu" and add.dtype(x).kind in "iu" and int(keys.max()) - int(keys.min()) < _MAX_TABLE:
        first, span = int(keys.min()), int(keys.max()) - int(keys.min()) + 1
        positions = numpy.full(span + 1, len(keys))
        positions[keys[::-1] - first] = numpy.arange(len(keys))[::-1]
        offset = add.do("subtract", add.cast(x, numpy.int64), first)
        inside = add.do("logical_and", add.do("greater_equal", offset, 0), add.do("less", offset, span))
        return add.take(add.constant(table[positions], table.dtype), [add.where(inside, offset, span)])
    if len(keys) > _MAX_COMPARED_KEYS:
        raise Unsupported(f"has {len(keys):,} numeric keys that lie far apart, expected at most {_MAX_COMPARED_KEYS:,}")
    shape = add.shape(x)
    column, last = add.reshape(x, (*shape, 1)), len(shape)
    keys = keys.astype(add.dtype(x))
    equal = add.do("equal", column, keys)
    if keys.dtype.kind == "f" and numpy.isnan(keys).any():
        missing = add.do("logical_and", add.do("isnan", column), add.constant(numpy.isnan(keys), bool))
        equal = add.do("logical_or", equal, missing)
    equal = add.cast(equal, numpy.int32)
    offset = add.where(add.cast(add.reduce("max", equal, [last]), bool), add.reduce("argmax", equal, [last]), len(keys))
    return add.take(add.constant(table, table.dtype), [add.reshape(offset, shape)])


def _encoded(reader, node, keys, values, default):
    """The node's output by that table; keys, values and default may be texts."""
    add, x = Lowering(reader, node), node.inputs[0]
    texts = is_text(values)
    if is_text(keys) != (x in reader.network.texts):
        raise Unsupported(f"looks up {'texts in numbers' if is_text(keys) else 'numbers in texts'}")
    if is_text(keys):
        keys = numbers_of_texts(reader, keys)
    if texts:
        values, default = numbers_of_texts(reader, values), numbers_of_texts(reader, default)
    result = _looked_up(add, x, numpy.asarray(keys), numpy.asarray(values), default)
    if texts:
        reader.network.texts.add(result)
    add.done(result)


@reads("ai.onnx.ml.LabelEncoder")
def label_encoder(reader, node):
    from onnx import numpy_helper

    if node.get("classes_strings") is not None:  # version 1: texts to indices and back
        texts = numpy.array(node.get("classes_strings"), object)
        indices = numpy.arange(len(texts))
        if node.inputs[0] in reader.network.texts:
            _encoded(reader, node, texts, indices, node.get("default_int64", -1))
        else:
            _encoded(reader, node, indices, texts, node.get("default_string", "_Unused"))
        return
    keys, values = _values(node, "keys"), _values(node, "values")
    if len(keys) != len(values):
        raise Unsupported(f"has {len(keys)} keys and {len(values)} values")
    if node.get("default_tensor") is not None:
        default = numpy_helper.to_array(node.get("default_tensor")).reshape(-1)[0]
    elif is_text(values):
        default = node.get("default_string", "_Unused")
    else:
        default = node.get("default_float", -0.0) if values.dtype.kind == "f" else node.get("default_int64", -1)
    _encoded(reader, node, keys, values, default)


@reads("ai.onnx.ml.CategoryMapper")
def category_mapper(reader, node):
    texts, numbers = numpy.array(node.get("cats_strings"), object), numpy.array(node.get("cats_int64s"), "int64")
    if node.inputs[0] in reader.network.texts:
        _encoded(reader, node, texts, numbers, node.get("default_int64", -1))
    else:
        _encoded(reader, node, numbers, texts, node.get("default_string", "_Unused"))


@reads("ai.onnx.ml.OneHotEncoder")
def one_hot_encoder(reader, node):
    """An unknown category gives a row of zeros, even if `zeros` is 0: a model cannot reject a value."""
    add, x = Lowering(reader, node), node.inputs[0]
    texts = node.get("cats_strings") is not None and len(node.get("cats_strings")) > 0
    if texts != (x in reader.network.texts):
        raise Unsupported(f"has categories that are {'texts, for numbers' if texts else 'numbers, for texts'}")
    categories = numbers_of_texts(reader, node.get("cats_strings")) if texts else numpy.array(node.get("cats_int64s"))
    column = add.reshape(add.cast(x, numpy.int64), (*add.shape(x), 1))
    add.done(add.cast(add.do("equal", column, categories), numpy.float32))


@reads("ai.onnx.ml.ZipMap")
def zip_map(reader, node):
    """The caller gets a dict for each row, keyed by the node's labels in column order."""
    add, x = Lowering(reader, node), node.inputs[0]
    labels = node.get("classlabels_strings") or node.get("classlabels_int64s") or []
    shape = add.shape(x)
    if len(shape) == 1:
        x, shape = add.reshape(x, (1, *shape)), (1, *shape)
    if len(shape) != 2 or shape[1] != len(labels):
        raise Unsupported(f"has {len(labels)} labels for a tensor of shape {shape}")
    result = add.copy(x)
    reader.network.labels[result] = list(labels)
    add.done(result)


@reads("ai.onnx.ml.ArrayFeatureExtractor")
def feature_extractor(reader, node):
    add, (x, indices) = Lowering(reader, node), node.inputs
    shape = add.shape(x)
    if len(shape) == 1:
        x, shape = add.reshape(x, (1, *shape)), (1, *shape)
    flat = add.reshape(add.cast(indices, numpy.int64), (math.prod(add.shape(indices)),))
    add.done(add.take(x, [flat], len(shape) - 1))
