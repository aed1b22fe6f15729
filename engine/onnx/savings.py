"""What compiling a model saved: operators that are no steps of their own, and bytes that are not moved for them.

Unmerged, each operator that a node is lowered to reads its operands and writes its result, a rearrangement (transpose,
slice, reshape …) too. What of that does not happen is counted by what did away with it; bytes are those that these
operators would read and write, of a reshape none, which nobody copies. At the sizes of a model that leaves some open,
the numbers are those at `sizes`."""

import contextlib
import math
from dataclasses import dataclass, field

from .network import View, contiguous
from .sizes import reshaped_strides

# What does away with operators: no output needs them; a view is read in their stead (vertical merging), they equal
# others (horizontal merging), they are part of what makes their operand, or their operand is made in its place
# (absorption). Images and plain tensors: copies between their layouts come (below zero), flattening goes.
KINDS = ("unused", "read through", "run once", "fused", "made in place", "layouts")


@dataclass
class Savings:
    """`nodes` of the ONNX graph, of which `needed` are left by the first clean-up (more, if it has functions),
    `computed` of these ahead of time; `operators` that the others are lowered to, of which `steps` are left; `saved`
    has for each of KINDS operators and bytes."""

    nodes: int
    needed: int
    computed: int
    operators: int = 0
    steps: int = 0
    saved: dict = field(default_factory=lambda: dict.fromkeys(KINDS, (0, 0)))
    sizes: dict = field(default_factory=dict)
    idle: bool = False  # nothing is counted
    _moved: int | None = None  # bytes at the end of the last `counting`

    def begin(self, network, views):
        """Counts what was read, before anything is merged. `views` are all that there were."""
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
        """What is done within goes under `kind`; between two of them layers stay as they are."""
        if self.idle:
            yield
            return
        layers, moved = len(network.layers), _moved(network) if self._moved is None else self._moved
        yield
        operators, size = self.saved[kind]
        self._moved = _moved(network)
        self.saved[kind] = (operators + layers - len(network.layers), size + moved - self._moved)
        self.steps = len(network.layers)

    @property
    def bytes(self):
        return sum(size for _, size in self.saved.values())

    def plain(self):
        """In values that JSON has."""
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
        at = f" (at {', '.join(f'{name} = {size}' for name, size in self.sizes.items())})" if self.sizes else ""
        return "; ".join(", ".join(part) for part in (counts, saved) if part) + at


def _bytes(network, name):
    return math.prod(map(int, network.shape(name))) * network.dtype(name).itemsize


def _moved(network):
    """Bytes that all layers read and write."""
    known, total = {}, 0
    for layer in network.layers:
        for name in {*layer.inputs, layer.output}:
            if name:
                size = known.get(name)
                if size is None:
                    size = known[name] = _bytes(network, name)
                total += size
    return total


def _read_through(network, views):
    """Views that something reads, and those that they are views of: each stands for an operator that rearranges what is
    computed."""
    written, found = {layer.output for layer in network.layers}, {}
    for name in (*(name for layer in network.layers for name in layer.inputs), *network.outputs):
        while name in views and name not in found and name not in written:
            if views[name].base not in network.constants:
                found[name] = True
            name = network.sources.get(name)
    return found


def _moves(network, views, name):
    """Whether the view has its elements in another order than what it is a view of, or others."""
    view, source = views[name], network.sources[name]
    if math.prod(network.shape(name)) != math.prod(network.shape(source)):
        return True
    seen = views.get(source) or View(source, 0, contiguous(network.shape(source)))
    strides = reshaped_strides(network.shape(source), seen.strides, network.shape(name))
    return (
        strides is None
        or view.offset != seen.offset
        or any(size > 1 and own != other for size, own, other in zip(network.shape(name), strides, view.strides))
    )
