"""Random chains of rearrangements and operators: the engine loads all files that the compiler writes, and computes the
same as ONNX's reference."""

import math
import random

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.test_tensor_models import agrees

SEED, GRAPHS, LENGTH = 20261123, 160, 6


class Chain:
    """Nodes one after the other, each on the result of the one before; `names` are earlier results of the same
    chain."""

    def __init__(self, seed):
        self.random, self.nodes, self.constants = random.Random(seed), [], {}
        self.shape = tuple(self.random.choice([1, 2, 3, 4, 6, 8]) for _ in range(self.random.choice([2, 3, 4, 4])))
        self.inputs = {"x": networks.values(self.shape, seed)}
        self.name, self.earlier = "x", []

    def add(self, op, shape, *others, **attributes):
        """`others` are names, or arrays, which become constants."""
        inputs = [self.name]
        for other in others:
            if not isinstance(other, str):
                self.constants[f"c{len(self.constants)}"] = numpy.asarray(other)
                other = f"c{len(self.constants) - 1}"
            inputs.append(other)
        self.earlier.append((self.name, self.shape))
        self.name, self.shape = f"n{len(self.nodes)}", tuple(int(size) for size in shape)
        self.nodes.append(helper.make_node(op, inputs, [self.name], **attributes))

    @property
    def rank(self):
        return len(self.shape)

    def values(self, *shape):
        return networks.values(shape, self.random.randrange(1000))

    # ---- rearrangements
    def transpose(self):
        order = self.random.sample(range(self.rank), self.rank)
        self.add("Transpose", [self.shape[d] for d in order], perm=order)

    def slice(self):
        axis = self.random.randrange(self.rank)
        size, step = self.shape[axis], self.random.choice([1, 2, -1, -2])
        start, stop = (self.random.randrange(size), 1 << 31) if step > 0 else (size - 1, -1 << 31)
        shape = list(self.shape)
        shape[axis] = len(range(size)[start:None:step])
        self.add("Slice", shape, [start], [stop], [axis], [step])

    def reshape(self):
        count, shape = math.prod(self.shape), []
        while count > 1 and len(shape) < 3:
            shape.append(self.random.choice([n for n in range(1, count + 1) if count % n == 0]))
            count //= shape[-1]
        self.add("Reshape", [*shape, count], numpy.array([*shape, count]))

    def unsqueeze(self):
        if self.rank < 5:
            axis = self.random.randrange(self.rank + 1)
            self.add("Unsqueeze", [*self.shape[:axis], 1, *self.shape[axis:]], [axis])

    def expand(self):
        if math.prod(self.shape) < 2000 and self.rank < 5:
            self.add(
                "Expand",
                [2, *(3 if size == 1 else size for size in self.shape)],
                numpy.array([2, *(3 if n == 1 else n for n in self.shape)]),
            )

    def concatenate(self):
        others = [name for name, shape in self.earlier if shape == self.shape]
        axis = self.random.randrange(self.rank)
        if others and math.prod(self.shape) < 2000:
            self.add(
                "Concat",
                [size * (1 + (d == axis)) for d, size in enumerate(self.shape)],
                self.random.choice(others),
                axis=axis,
            )

    # ---- operators
    def softmax(self):
        self.add(self.random.choice(["Softmax", "LogSoftmax"]), self.shape, axis=self.random.choice([-1, -1, 0]))

    def normalize(self):
        size = self.shape[-1]
        self.add("LayerNormalization", self.shape, self.values(size), self.values(size), axis=-1, epsilon=0.1)

    def activate(self):
        op, attributes = self.random.choice(
            [
                ("Relu", {}),
                ("Sigmoid", {}),
                ("Gelu", {}),
                ("Gelu", {"approximate": "tanh"}),
                ("Tanh", {}),
                ("LeakyRelu", {}),
                ("HardSwish", {}),
                ("Mish", {}),
            ]
        )
        self.add(op, self.shape, **attributes)

    def clip(self):
        self.add("Clip", self.shape, numpy.float32(-0.5), numpy.float32(0.7))

    def arithmetic(self):
        others = [name for name, shape in self.earlier if shape == self.shape]
        other = self.random.choice([*others, self.values(*self.shape), self.values(self.shape[-1])])
        self.add(self.random.choice(["Add", "Mul", "Sub"]), self.shape, other)

    def product(self):
        if self.rank >= 2:
            self.add("MatMul", [*self.shape[:-1], 5], self.values(self.shape[-1], 5))

    def gemm(self):
        if self.rank == 2:
            self.add("Gemm", [self.shape[0], 4], self.values(4, self.shape[1]), self.values(4), transB=1)

    def square(self):
        """Scores of rows among each other, as attention has them."""
        if self.rank >= 2 and self.shape[-2] < 32:
            rows, own = self.name, self.shape
            order = [*range(self.rank - 2), self.rank - 1, self.rank - 2]
            self.add("Transpose", [own[d] for d in order], perm=order)
            self.nodes[-1], columns = helper.make_node("Transpose", [rows], [self.name], perm=order), self.name
            self.name, self.shape = rows, own
            self.add("MatMul", [*own[:-1], own[-2]], columns)
            self.add("Softmax", self.shape, axis=-1)
            self.add("MatMul", own, rows)

    def convolve(self):
        if self.rank == 4 and self.shape[1] <= 16:
            self.add(
                "Conv",
                [self.shape[0], 4, *self.shape[2:]],
                self.values(4, self.shape[1], 3, 3),
                self.values(4),
                pads=[1] * 4,
            )

    def pool(self):
        if self.rank == 4:
            self.add(self.random.choice(["MaxPool", "AveragePool"]), self.shape, kernel_shape=[3, 3], pads=[1] * 4)

    def pixel(self):
        if self.rank == 4:
            self.add("GlobalAveragePool", [*self.shape[:2], 1, 1])

    def reduce(self):
        if self.rank > 1:
            axis = self.random.randrange(self.rank)
            self.add(
                self.random.choice(["ReduceMean", "ReduceMax", "ReduceSum"]),
                [1 if d == axis else size for d, size in enumerate(self.shape)],
                [axis],
            )

    def accumulate(self):
        self.add("CumSum", self.shape, numpy.int64(self.random.randrange(self.rank)))

    def batch_normalize(self):
        if self.rank >= 2:
            size = self.shape[1]
            self.add(
                "BatchNormalization",
                self.shape,
                self.values(size),
                self.values(size),
                self.values(size),
                abs(self.values(size)) + 0.5,
            )

    def gather(self):
        axis = self.random.randrange(self.rank)
        chosen = [self.random.randrange(self.shape[axis]) for _ in range(3)]
        self.add(
            "Gather", [3 if d == axis else size for d, size in enumerate(self.shape)], numpy.array(chosen), axis=axis
        )

    def pad(self):
        self.add("Pad", [size + 1 for size in self.shape], numpy.array([0] * self.rank + [1] * self.rank))


REARRANGEMENTS = ("transpose", "transpose", "slice", "slice", "reshape", "unsqueeze", "expand", "concatenate")
OPERATORS = (
    "softmax",
    "softmax",
    "normalize",
    "normalize",
    "activate",
    "clip",
    "arithmetic",
    "product",
    "gemm",
    "square",
    "convolve",
    "pool",
    "pixel",
    "reduce",
    "accumulate",
    "batch_normalize",
    "gather",
    "pad",
)


@pytest.mark.parametrize("part", range(8))
def test_what_the_compiler_writes_the_engine_loads_and_computes(part):
    for seed in range(SEED + part, SEED + GRAPHS, 8):
        chain = Chain(seed)
        for _ in range(LENGTH):
            getattr(chain, chain.random.choice(chain.random.choice([REARRANGEMENTS, OPERATORS])))()
            if math.prod(chain.shape) > 20_000:
                break
        if not chain.nodes:
            continue
        outputs = [chain.name]
        if chain.random.random() < 0.3:
            outputs.append(chain.random.choice(chain.nodes).output[0])
        try:
            agrees(chain.nodes, chain.inputs, chain.constants, dict.fromkeys(outputs), tolerance=1e-4, opset=20)
        except BaseException as error:
            error.add_note(
                f"seed {seed}: {[(node.op_type, list(node.input), list(node.output)) for node in chain.nodes]} of"
                f" {chain.inputs['x'].shape}"
            )
            raise
