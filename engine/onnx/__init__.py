"""Compiles ONNX models to the engine's model file (docs/model-format.md). Needs the packages `onnx` and `onnx-ir`,
which the extra `models` installs.

Stages, in order:

- parsing.py checks the file and reads weights from files beside it.
- cleaning.py removes nodes that no output needs.
- reading.py walks the graph once, front to back: nodes with constant operands are evaluated, dropped or renamed nodes
  disappear, the rest become layers of the engine (network.py). Each ONNX operator has a reader function; readers.py is
  their table. control_flow.py reads nested graphs, structures.py sequences; activations.py, tensor_operators.py,
  image_operators.py and others hold the rest.
- passes.py merges equal layers (equal.py), fuses layers (patterns.py), factors concatenations (factoring.py), lets
  producers write where their readers want the result (placement.py), and removes dead layers; savings.py counts the
  effect.
- writing.py serializes the file.

A model with open sizes is read at several sizes (open_sizes.py). A model that cannot be compiled raises OnnxError
(problems.py)."""

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
from .parts import split_parts
from .passes import improve
from .problems import OnnxError
from .readers import READERS
from .reading import read
from .sizes import Unequal
from .writing import write

_MISSING = "models need the packages onnx and onnx-ir; install them: pip install 'vmhost[models]'"

_REPORT = "this is an error of the compiler: report it with the model"

__all__ = ["READERS", "Compiled", "OnnxError", "compile_model", "compiled"]


class Compiled(NamedTuple):
    """The model file's bytes, the Savings of compiling, and the paths of external weight files; `trainable`: the
    trained part (trainable.py), and `trained` the names of its weights."""

    data: bytes
    savings: object
    weight_files: tuple = ()
    trainable: bytes | None = None
    trained: tuple = ()


def compile_model(data, where, folder=None):
    """The engine's model file for the ONNX model `data` (bytes). OnnxError lists every problem; `where` names the model
    in it.

    External weight files, as exporters write for large models, are read from `folder`, the model's own."""
    return _compiled(data, where, folder, False).data


def compiled(data, where, folder=None):
    """`compile_model`, with the result as Compiled."""
    return _compiled(data, where, folder, True)


def _compiled(data, where, folder, counts):
    """`compiled`. Without `counts`, savings are not counted, which saves a tenth of the time."""
    try:
        import onnx

        from . import caches
        from .cleaning import cleaned, forget_shapes_of_outputs, tell_types
        from .parsing import parse, reason, without_lists
    except ImportError as error:
        raise OnnxError(where, _MISSING) from error
    weights, cache = {}, {}
    model, weight_files = parse(data, where, folder, weights)
    node_count = len(model.graph.node)
    try:
        model = cleaned(model)
    except ImportError as error:  # onnx-ir is missing, which models with functions need
        raise OnnxError(where, _MISSING) from error
    except Exception as error:  # onnx-ir and numpy raise errors of no common class
        raise OnnxError(where, f"is no valid ONNX model: {reason(error)}") from error

    tell_types(model)
    caches.mark(model)
    cache["whole nodes"] = without_lists(model)

    def network(opens=None):
        contradiction = None
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception as error:  # it may be wrong: unlike the reader, it does not evaluate constants first
            forget_shapes_of_outputs(model)
            try:
                inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            except Exception:
                contradiction = f"contradicts itself, says ONNX's shape inference: {reason(error)}"
                inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        built = read(inferred, where, opens, contradiction, weights, cache)
        built.savings.nodes = node_count
        built.savings.idle = not counts or (opens is not None and opens.number > 0)  # report the first reading
        return split_parts(built, where)

    open_dimensions = open_sizes.find(model)
    try:
        networks = network() if not open_dimensions[0] else ()
    except Unequal:  # of sizes that depend on values: reported below
        networks = ()
    if len(networks) == 1:
        improve(*networks)
        parts = [networks]
    else:
        parts = open_sizes.compile_open(open_dimensions, network, where)
    data = b"".join(itertools.chain.from_iterable(write(*part) for part in parts))
    _check_opens(data, where)
    return Compiled(data, parts[0][0].savings, weight_files)


def _check_opens(data, where):
    """OnnxError if the engine refuses the file, where its library is present."""
    try:
        from vmhost.engine.models import opened
    except ImportError:
        return
    try:
        opened(where, data, threads=1, search="fixed")
    except ValueError as error:
        raise OnnxError(where, f"the engine does not open what the compiler made of it: {error}; {_REPORT}") from error
    except MemoryError:  # the machine that runs it may have more
        return
