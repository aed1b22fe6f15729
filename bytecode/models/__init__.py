"""ONNX models to the engine's model file (docs/model-format.md). Needs the packages `onnx` and `onnx-ir`, which the extra `models` brings.

cleaning.py takes out of the graph what no output needs; reading.py goes through the graph once, front to back: what has constant operands only is computed, dropped or renamed nodes vanish, the rest
becomes layers of the engine, by the readers of operators in image_operators.py and tensor_operators.py. passes.py then makes equal layers one
(equal.py), fuses layers (patterns.py), takes out what parts of a concatenation have in common (factoring.py), lets producers write where their readers want it, and leaves out what nothing reads; savings.py counts what that saves, and
writing.py makes the file's bytes. open_sizes.py does all that at several sizes where a model leaves some open.
"""

from typing import NamedTuple

from ..errors import CompileError, Diagnostic
from . import activations, einsum, image_operators, index_operators, normalizations, resizing, tensor_operators    # noqa: F401 - readers register themselves
from . import open_sizes
from .operators import READERS
from .passes import improve
from .reading import read
from .writing import write

__all__ = ["READERS", "Compiled", "compile_model", "compiled"]


class Compiled(NamedTuple):
    """The model file's bytes, and the Savings: what compiling saved."""

    data: bytes
    savings: object


def compile_model(data, where):
    """The engine's model file for the ONNX model `data` (bytes). CompileError with all that stands in the way; `where` names it."""
    return compiled(data, where).data


def compiled(data, where):
    """The same, as Compiled."""
    try:
        import onnx
        from .cleaning import cleaned
    except ImportError as error:
        raise CompileError([Diagnostic(where, 0, "models need the packages onnx and onnx-ir; install them: pip install 'vmhost[models]'")]) from error
    try:
        model = onnx.load_model_from_string(data)
        onnx.checker.check_model(model)
        nodes = len(model.graph.node)
        model = cleaned(model)
    except Exception as error:      # protobuf's, onnx's C++, numpy's and onnx-ir's own, of no common class
        raise CompileError([Diagnostic(where, 0, f"not an ONNX model: {_reason(error)}")]) from error

    def network(unfolded=frozenset()):
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception as error:
            raise CompileError([Diagnostic(where, 0, f"not an ONNX model: {_reason(error)}")]) from error
        made = read(inferred, where, unfolded)
        made.savings.nodes = nodes
        improve(made)
        return made

    found = open_sizes.find(model)
    if not found:
        made = network()
        return Compiled(write(made), made.savings)
    sizes = open_sizes.compile_open(found, network, where)
    return Compiled(write(sizes.network, sizes), sizes.network.savings)


def _reason(error):
    """The first line of what was wrong at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
