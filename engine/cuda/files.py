"""Reading a model file (docs/model-format.md) at given open sizes, for runners other than the CPU engine. The CPU
engine has already read the same bytes and refused damaged ones."""

import math
import struct
from dataclasses import dataclass

import numpy

from vmhost.engine.onnx.network import DTYPES
from vmhost.engine.onnx.writing import OPS

_RANK, _PARAMETERS, _ABSENT = 8, 24, 0xFFFFFFFF
COMPUTED, CONSTANT, VIEW = range(3)
_NAMES = {number: name for name, number in OPS.items()}


@dataclass
class Tensor:
    """`base`, `offset`, `strides` (elements): of a view; `data_offset`, `size`: of a constant's bytes in `weights`."""

    name: str
    dtype: str
    shape: tuple
    kind: int
    base: int
    offset: int
    strides: tuple
    data_offset: int
    size: int


@dataclass
class Node:
    """`inputs` are numbers of tensors, or None."""

    name: str
    op: str
    inputs: tuple
    output: int
    parameters: tuple


class ModelFile:
    """The records of a file. `at(sizes)`: its tensors, for open sizes by name."""

    def __init__(self, data):
        data = memoryview(data)
        (_, _, _, _, tensors, nodes, inputs, outputs, operands, opens, names, weights, varyings, terms, notes_at,
         notes_size, quotients, needs, guards) = struct.unpack_from("<8s2IQ6I2Q7I", data)  # fmt: skip
        at = 128

        def section(count, size):
            nonlocal at
            begin, at = at, at + count * size
            return [data[begin + i * size : begin + (i + 1) * size] for i in range(count)]

        tensor_records, node_records = section(tensors, 192), section(nodes, 128)
        numbers = struct.unpack(f"<{inputs + outputs + operands}I", b"".join(section(inputs + outputs + operands, 4)))
        open_records, varying_records = section(opens, 16), section(varyings, 24)
        term_records, quotient_records = section(terms, 16), section(quotients, 16)
        need_records, self.guards = section(needs, 24), len(section(guards, 16))
        text = bytes(data[at : at + names])
        self.notes = text[notes_at : notes_at + notes_size]
        at += names
        at += -at % 64
        self.weights = data[at : at + weights]
        self.inputs, self.outputs = numbers[:inputs], numbers[inputs : inputs + outputs]
        operand_list = numbers[inputs + outputs :]
        self.nodes, self._tensors = [], []
        for record in tensor_records:
            (name_at, name_size, dtype, rank, *rest) = struct.unpack(f"<4I{_RANK}q2Q2Iq{_RANK}q16x", record)
            shape, (data_offset, size, kind, base, offset), strides = (
                rest[:_RANK],
                rest[_RANK : _RANK + 5],
                rest[_RANK + 5 :],
            )
            name = text[name_at : name_at + name_size].decode()
            self._tensors.append(
                Tensor(
                    name,
                    DTYPES[dtype],
                    tuple(shape[:rank]),
                    kind,
                    base,
                    offset,
                    tuple(strides[:rank]),
                    data_offset,
                    size,
                )
            )
        for record in node_records:
            name_at, name_size, op, first, input_count, _, *parameters = struct.unpack(f"<6I{_PARAMETERS}i8x", record)
            operands = operand_list[first : first + input_count + 1]
            self.nodes.append(
                Node(
                    text[name_at : name_at + name_size].decode(),
                    _NAMES.get(op, str(op)),
                    tuple(None if one == _ABSENT else one for one in operands[:-1]),
                    operands[-1],
                    tuple(parameters),
                )
            )
        needed = [struct.unpack("<6I", record)[:5] for record in need_records]
        self._needs = [(first, count, text[at : at + size].decode(), least) for first, count, at, size, least in needed]
        self.opens = []
        for record in open_records:
            name_at, name_size, *_ = struct.unpack("<4I", record)
            self.opens.append(text[name_at : name_at + name_size].decode())
        self._varyings = [struct.unpack("<6I", record)[:4] for record in varying_records]
        self._terms = [struct.unpack("<q8B", record) for record in term_records]
        self._quotients = [struct.unpack("<4I", record) for record in quotient_records]

    def at(self, sizes):
        """The tensors at these open sizes. ValueError: the network does not work at them."""
        variables = [1, *(sizes[name] for name in self.opens)]

        def total(first, count):
            return sum(
                factor * math.prod(variables[one] for one in group)
                for factor, *group in self._terms[first : first + count]
            )

        for over_at, overs, under_at, unders in self._quotients:
            variables.append(total(over_at, overs) // total(under_at, unders))
        for first, count, text, is_minimum in self._needs:
            number = total(first, count)
            if number < 0 or (number and not is_minimum):
                raise ValueError(f"at {', '.join(f'{name} = {size}' for name, size in sizes.items())}: {text}")
        tensors = [Tensor(**vars(one)) for one in self._tensors]
        for number, field, first, count in self._varyings:
            tensor, value = tensors[number], total(first, count)
            if field < _RANK:
                tensor.shape = (*tensor.shape[:field], value, *tensor.shape[field + 1 :])
            elif field == _RANK:
                tensor.offset = value
            else:
                dimension = field - _RANK - 1
                tensor.strides = (*tensor.strides[:dimension], value, *tensor.strides[dimension + 1 :])
        return tensors

    def data_offset_of(self, number):
        """Offset of a constant's bytes in the weights."""
        return self._tensors[number].data_offset

    def constant(self, tensor):
        """A constant's elements."""
        data = self.weights[tensor.data_offset : tensor.data_offset + tensor.size]
        return numpy.frombuffer(data, tensor.dtype).reshape(tensor.shape)
