"""ONNX models to the engine's model file (docs/model-format.md). Needs the packages `onnx` and `onnx-ir`, which the
extra `models` brings.

parsing.py checks the file and reads weights that lie beside it; cleaning.py takes out of the graph what no output
needs; reading.py goes through the graph once, front to back: what has constant operands only is computed, dropped or
renamed nodes vanish, the rest becomes layers of the engine (network.py). A function for each ONNX operator does that;
readers.py is their table, control_flow.py reads graphs within nodes, structures.py sequences, and activations.py,
tensor_operators.py, image_operators.py and others hold them. passes.py then makes equal layers one (equal.py), fuses
layers (patterns.py), takes out what parts of a concatenation have in common (factoring.py), lets producers write where
their readers want it (placement.py), and leaves out what nothing reads; savings.py counts what that saves, and
writing.py makes the file's bytes. open_sizes.py does all that at several sizes where a model leaves some open. What
stands in the way of a model is an OnnxError (problems.py)."""

import itertools
from typing import NamedTuple

from . import (  # noqa: F401 - readers register themselves
    activations,
    attention,
    chance,
    classic_operators,
    control_flow,
    convolutions,
    counting,
    einsum,
    image_operators,
    index_operators,
    losses,
    normalizations,
    open_sizes,
    optimized,
    quantization,
    recurrence,
    resizing,
    sampling,
    signals,
    structures,
    tensor_operators,
    texts,
    trees,
)
from .parts import parted
from .passes import improve
from .problems import OnnxError
from .readers import READERS
from .reading import read
from .sizes import Unequal
from .writing import write

_MISSING = "models need the packages onnx and onnx-ir; install them: pip install 'vmhost[models]'"

__all__ = ["READERS", "Compiled", "OnnxError", "compile_model", "compiled"]


class Compiled(NamedTuple):
    """The model file's bytes, the Savings (what compiling saved), and the paths of the files beside the model that hold
    its weights; `trainable`: the part that is trained, of engine/onnx/trainable.py."""

    data: bytes
    savings: object
    weight_files: tuple = ()
    trainable: bytes | None = None


def compile_model(data, where, folder=None):
    """The engine's model file for the ONNX model `data` (bytes). OnnxError with all that stands in the way; `where`
    names it.

    `folder` is where the model's file lies: weights in files of their own, as exporters write large models, are read
    from there."""
    return _compiled(data, where, folder, False).data


def compiled(data, where, folder=None):
    """The same, as Compiled."""
    return _compiled(data, where, folder, True)


def _compiled(data, where, folder, counts):
    """The same; unless `counts`, what was saved is not counted, which takes a tenth of the time."""
    try:
        import onnx

        from . import caches
        from .cleaning import cleaned, tell_types
        from .parsing import parse, reason, without_lists
    except ImportError as error:
        raise OnnxError(where, _MISSING) from error
    weights, kept = {}, {}
    model, weight_files = parse(data, where, folder, weights)
    nodes = len(model.graph.node)
    try:
        model = cleaned(model)
    except ImportError as error:  # of onnx-ir, which models with functions need
        raise OnnxError(where, _MISSING) from error
    except Exception as error:  # onnx-ir's own, and numpy's, of no common class
        raise OnnxError(where, f"is no valid ONNX model: {reason(error)}") from error

    tell_types(model)
    caches.mark(model)
    kept["whole nodes"] = without_lists(model)

    def network(opens=None):
        contradiction = None
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception as error:  # it knows less than the reader, who computes constants first, and may be wrong
            contradiction = f"contradicts itself, says ONNX's shape inference: {reason(error)}"
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        built = read(inferred, where, opens, contradiction, weights, kept)
        built.savings.nodes = nodes
        built.savings.idle = not counts or (opens is not None and opens.number > 0)  # the first reading is told
        return parted(built, where)

    found = open_sizes.find(model)
    try:
        networks = network() if not found[0] else ()
    except Unequal:  # of sizes that follow from values: told below
        networks = ()
    if len(networks) == 1:
        improve(*networks)
        return Compiled(b"".join(write(*networks)), networks[0].savings, weight_files)
    parts = open_sizes.compile_open(found, network, where)
    pieces = itertools.chain.from_iterable(write(*part) for part in parts)
    return Compiled(b"".join(pieces), parts[0][0].savings, weight_files)
