"""What compiling a model saves: operators that need no step of their own, and the memory traffic that they would cause.

The baseline runs every operator that a node is lowered to, rearrangements (transpose, slice, reshape …) included: each
reads its operands and writes its result. Removed operators are counted by the kind of optimization, in bytes read and
written; a reshape counts no bytes, since the baseline need not copy for it either. For a model with open sizes the
numbers hold at `sizes`."""

import contextlib
import math
from dataclasses import dataclass, field

from .network import View, contiguous
from .sizes import reshaped_strides

# Why an operator is not a step: no output needs it ("unused"); a view replaces it (vertical merging); it equals another
# one (horizontal merging); it is fused into the producer of its operand, or its operand is written in place
# (absorption); "layouts" are copies between images and plain tensors that were added (negative) or removed.
KINDS = ("unused", "read through", "run once", "fused", "made in place", "layouts")


@dataclass
class Savings:
    """`nodes` of the ONNX graph; `needed`, those left by the first clean-up (more, if functions were inlined);
    `computed`, those evaluated at compile time; `operators` that the rest is lowered to, and the `steps` left of them;
    `saved`, the operators and bytes of each of KINDS."""

    nodes: int
    needed: int
    computed: int
    operators: int = 0
    steps: int = 0
    saved: dict = field(default_factory=lambda: dict.fromkeys(KINDS, (0, 0)))
    sizes: dict = field(default_factory=dict)
    idle: bool = False  # nothing is counted
    _traffic_bytes: int | None = None  # bytes at the end of the last `counting`

    def begin(self, network, views):
        """Counts the network as it was read, before any merging. `views` are all views before dead ones were
        dropped."""
        if self.idle:
            return
        read = _read_through(network, views)
        self.saved["read through"] = (
            len(read),
            sum(2 * _bytes(network, name) for name in read if _moves(network, views, name)),
        )
        self.operators = len(network.layers) + len(read) + self.saved["unused"][0]
        self.steps = len(network.layers)

    @contextlib.contextmanager
    def counting(self, kind, network):
        """Attributes the changes made in this context to `kind`. Between two contexts the layers must not change."""
        if self.idle:
            yield
            return
        layers, traffic = (
            len(network.layers),
            _traffic_bytes(network) if self._traffic_bytes is None else self._traffic_bytes,
        )
        yield
        operators, size = self.saved[kind]
        self._traffic_bytes = _traffic_bytes(network)
        self.saved[kind] = (operators + layers - len(network.layers), size + traffic - self._traffic_bytes)
        self.steps = len(network.layers)

    @property
    def bytes(self):
        return sum(size for _, size in self.saved.values())

    def plain(self):
        """As JSON values."""
        kinds = {kind: {"operators": operators, "bytes": size} for kind, (operators, size) in self.saved.items()}
        return {
            "nodes": self.nodes,
            "needed": self.needed,
            "computed": self.computed,
            "operators": self.operators,
            "steps": self.steps,
            "bytes": self.bytes,
            "saved": kinds,
            "sizes": self.sizes,
        }

    def __str__(self):
        """ "7 nodes, 10 operators, 4 steps; 4 read through (0.5 KiB), 1 run once (0.1 KiB)"."""
        counts = [
            f"{self.nodes} nodes",
            *([f"{self.needed} needed"] * (self.needed != self.nodes)),
            *([f"{self.computed} computed ahead"] * bool(self.computed)),
            f"{self.operators} operators",
            f"{self.steps} steps",
        ]
        saved = [
            f"{operators} {kind} ({size / 1024:.1f} KiB)"
            for kind, (operators, size) in self.saved.items()
            if operators or size
        ]
        suffix = f" (at {', '.join(f'{name} = {size}' for name, size in self.sizes.items())})" if self.sizes else ""
        return "; ".join(", ".join(part) for part in (counts, saved) if part) + suffix


def _bytes(network, name):
    return math.prod(map(int, network.shape(name))) * network.dtype(name).itemsize


def _traffic_bytes(network):
    """Bytes that the layers read and write."""
    sizes, total = {}, 0
    for layer in network.layers:
        for name in {*layer.inputs, layer.output}:
            if name:
                size = sizes.get(name)
                if size is None:
                    size = sizes[name] = _bytes(network, name)
                total += size
    return total


def _read_through(network, views):
    """The views that are read, and the views under them: each replaces an operator that rearranges a computed
    tensor."""
    written, views_read = {layer.output for layer in network.layers}, {}
    for name in (*(name for layer in network.layers for name in layer.inputs), *network.outputs):
        while name in views and name not in views_read and name not in written:
            if views[name].base not in network.constants:
                views_read[name] = True
            name = network.sources.get(name)
    return views_read


def _moves(network, views, name):
    """Whether the view has other elements than its source, or the same in another order."""
    view, source = views[name], network.sources[name]
    if math.prod(network.shape(name)) != math.prod(network.shape(source)):
        return True
    source_view = views.get(source) or View(source, 0, contiguous(network.shape(source)))
    strides = reshaped_strides(network.shape(source), source_view.strides, network.shape(name))
    return (
        strides is None
        or view.offset != source_view.offset
        or any(
            size > 1 and expected != actual
            for size, expected, actual in zip(network.shape(name), strides, view.strides)
        )
    )
