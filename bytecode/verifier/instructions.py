"""Decodes the bytes of a code object to instructions with checked operands and targets.

Reads the code that the interpreter will run (`_co_code_adaptive`), not `co_code`, which hides specialised opcodes and
the contents of inline caches. So a code object is verified before it first runs.
"""

import opcode

from .errors import VerifyError
from .layout import slot_names


class Instructions:
    """The instructions of one code object, by index.

    `start`: code unit of the first prefix; `unit`: of the opcode; `end`: of the next instruction. `target`: index of a
    jump's target, or -1. `index_at`: code unit -> index, for units at which an instruction starts.
    """

    def __init__(self, code, table, where):
        self.code, self.table, self.where = code, table, where
        self.ops, self.operands, self.start, self.unit, self.end = [], [], [], [], []
        self.index_at = {}
        self._decode(code._co_code_adaptive)
        self.target = [-1] * len(self.ops)
        self._check_operands()

    def refuse(self, index, message):
        """Raises the VerifyError for instruction `index`."""
        name = self.table.name_of[self.ops[index]] if index < len(self.ops) else None
        raise VerifyError(self.where, self.code.co_qualname, message, 2 * self.unit[index], name)

    def _refuse_at(self, unit, message):
        raise VerifyError(self.where, self.code.co_qualname, message, 2 * unit)

    def _decode(self, raw):
        caches, extended = self.table.caches, self.table.extended_arg
        if not raw or len(raw) % 2:
            self._refuse_at(0, f"{len(raw)} bytes of bytecode, expected a positive even number")
        total = len(raw) // 2
        if not 0 < self.code.co_stacksize <= 0xFFFF + 8 * len(raw):
            self._refuse_at(0, f"a stack of {self.code.co_stacksize} slots for {len(raw)} bytes of bytecode")
        position = 0
        while position < total:
            start, operand = position, 0
            if raw[2 * position] == extended and not raw[2 * position + 1]:
                # FOR_ITER skips the first code unit of its END_FOR, which must not be a prefix
                self._refuse_at(position, "EXTENDED_ARG extends nothing")
            while raw[2 * position] == extended:
                operand = (operand | raw[2 * position + 1]) << 8
                position += 1
                if position == total or position - start > 3:
                    self._refuse_at(start, "EXTENDED_ARG has no instruction to extend")
            op = raw[2 * position]
            operand |= raw[2 * position + 1]
            count = caches[op]
            if count < 0:
                name = opcode.opname[op]
                special = {number: name for name, number in opcode._specialized_opmap.items()}.get(op)
                if special:
                    self._refuse_at(
                        position,
                        f"{special} is an instruction that the interpreter makes while it runs; "
                        "code is verified before it first runs",
                    )
                self._refuse_at(position, f"opcode {op} ({name}) is not one that the compiler of this Python emits")
            if operand > 0x7FFFFFFF:
                self._refuse_at(position, f"operand {operand} does not fit 31 bits")
            end = position + 1 + count
            if end > total:
                self._refuse_at(position, f"the bytecode ends inside the inline cache of {opcode.opname[op]}")
            if count > 1 and any(raw[2 * position + 4 : 2 * end]):
                self._refuse_at(position, f"the inline cache of {opcode.opname[op]} is not empty")
            self.index_at[start] = len(self.ops)
            self.ops.append(op)
            self.operands.append(operand)
            self.start.append(start)
            self.unit.append(position)
            self.end.append(end)
            position = end

    def _check_operands(self):
        code = self.code
        names, constants = len(code.co_names), len(code.co_consts)
        local_count = len(slot_names(code))
        limits = {
            "name": (names, 0),
            "name>>1": (names, 1),
            "name>>2": (names, 2),
            "constant": (constants, 0),
            "local": (local_count, 0),
        }
        domains = self.table.domain_of
        for index, (op, operand) in enumerate(zip(self.ops, self.operands)):
            domain = domains[op]
            if domain.__class__ is str:
                limit = limits.get(domain)
                if limit is not None:
                    if operand >> limit[1] >= limit[0]:
                        what = domain.partition(">")[0]
                        self.refuse(
                            index, f"operand {operand} means {what} {operand >> limit[1]}, and there are {limit[0]}"
                        )
                elif domain == "none":
                    if operand:
                        self.refuse(index, f"operand {operand}, expected 0")
                elif domain == "forward":
                    self._set_target(index, self.end[index] + operand)
                elif domain == "backward":
                    self._set_target(index, self.end[index] - operand)
                elif domain == "two locals":
                    if operand > 0xFF or operand >> 4 >= local_count or operand & 15 >= local_count:
                        self.refuse(
                            index,
                            f"operand {operand} means locals {operand >> 4} and {operand & 15}, "
                            f"and there are {local_count}",
                        )
                elif domain in ("count", "count>=1"):
                    if operand > code.co_stacksize:
                        self.refuse(index, f"operand {operand}, and the stack has {code.co_stacksize} slots")
                    if not operand and domain == "count>=1":
                        self.refuse(index, "operand 0, expected 1 or more")
                elif domain == "unpack":
                    if (operand & 0xFF) + (operand >> 8) > code.co_stacksize:
                        self.refuse(index, f"operand {operand} unpacks more than the stack's {code.co_stacksize} slots")
                elif domain == "free count":
                    if operand != len(code.co_freevars):
                        self.refuse(index, f"operand {operand}, and there are {len(code.co_freevars)} free variables")
                elif domain.startswith("depth>="):
                    if operand < int(domain[7:]):
                        self.refuse(index, f"operand {operand}, expected {domain[7:]} or more")
            elif domain.__class__ is tuple:
                if not domain[0] <= operand <= domain[1]:
                    self.refuse(index, f"operand {operand} is outside {domain[0]}..{domain[1]}")
            elif operand not in domain:
                self.refuse(index, f"operand {operand} is none of {', '.join(map(str, sorted(domain)))}")

    def _set_target(self, index, unit):
        target = self.index_at.get(unit, -1)
        if target < 0:
            self.refuse(index, f"jumps to offset {2 * unit}, where no instruction starts")
        self.target[index] = target
