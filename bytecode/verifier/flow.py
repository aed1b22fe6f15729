"""Abstract interpretation: the contents of stack and locals at every instruction, along all paths.

The state is a stack of slots (`kinds.py`) and, for locals, three bit sets: may be unassigned, may hold an object, may
hold a cell. Straight runs of instructions are followed in one go. Where paths meet, states are merged, and runs are
repeated until nothing changes. Every instruction that can raise leads to its handler with the part of the stack that
the handler keeps.
"""

from functools import cache, lru_cache

from . import kinds
from .kinds import EXC, KINDS, LASTI, Effect, shared
from .layout import argument_count, slot_names
from .rules import Rules, constant_slot, typed_slots

_MAX_STEPS_PER_INSTRUCTION = 400  # until the states settle: the lattice is finite, this bounds time on hostile input
# Slots popped and pushed, over all instructions. One that pops or unpacks many is next to as many pushes or stores.
_MAX_SLOTS_PER_INSTRUCTION, _MAX_SLOTS = 16, 4096


@lru_cache(4096)
def _effect(text, operand):
    effect = Effect(text, operand)
    return tuple(effect.forbidden), tuple(effect.outputs), tuple(effect.kept), effect.popped


class Flow(Rules):
    """The abstract interpretation of one code object. `run` raises VerifyError or returns the maximum stack depth."""

    def __init__(self, instructions, handlers):
        self.instructions, self.handlers = instructions, handlers
        self.table = instructions.table
        self.facts = self.table.facts
        self.code = code = instructions.code
        self.ops, self.operands, self.targets = instructions.ops, instructions.operands, instructions.target
        self.names = slot_names(code)
        self.constants = [constant_slot(value) for value in code.co_consts]
        self.borrows = kinds.all_borrows(len(self.names))
        self.free = ((1 << len(code.co_freevars)) - 1) << (len(self.names) - len(code.co_freevars))
        self.cell_slots = sum(1 << self.names.index(name) for name in code.co_cellvars)
        self.typed = typed_slots(instructions, self.names)
        self.tuple_stored = {}  # index of a STORE_DEREF -> kinds that it last stored
        number = self.table.number
        self.op_resume, self.op_yield, self.op_load_const = (
            number("RESUME"),
            number("YIELD_VALUE"),
            number("LOAD_CONST"),
        )
        self.op_make_function, self.op_set_attribute = number("MAKE_FUNCTION"), number("SET_FUNCTION_ATTRIBUTE")
        self.op_end_for, self.op_copy, self.op_swap = number("END_FOR"), number("COPY"), number("SWAP")
        self.op_list_extend, self.op_send = number("LIST_EXTEND"), number("SEND")
        self.op_jump_back = number("JUMP_BACKWARD_NO_INTERRUPT")
        self.op_binary, self.op_store_fast = number("BINARY_OP"), number("STORE_FAST")
        self.stoppable = {number(name) for name in self.facts.STOPPABLE}
        self.quiet = self.facts.QUIET
        self.rules = _rules(self.table)
        self.effects = self._effects()
        self.states = {}
        self.pending = []
        self.deepest = 0
        self.index = 0
        self.stack, self.unassigned, self.objects, self.cells = [], 0, 0, 0

    def _effects(self):
        effects = []
        slots = _MAX_SLOTS + _MAX_SLOTS_PER_INSTRUCTION * len(self.ops)
        texts, name_of = self.table.effect_of, self.table.name_of
        for op, operand in zip(self.ops, self.operands):
            text = texts[op]
            if text.startswith("see "):
                text = (self.facts.INTRINSIC_1 if name_of[op] == "CALL_INTRINSIC_1" else self.facts.INTRINSIC_2)[
                    operand
                ]
            effect = _effect(text, operand if "*" in text else 0)
            slots -= len(effect[0]) + len(effect[1])
            if slots < 0:
                self.instructions.refuse(len(effects), "its instructions take and push more slots than any could fill")
            effects.append(effect)
        return effects

    def refuse(self, message):
        self.instructions.refuse(self.index, message)

    # -- traversal

    def run(self):
        first = self._prologue()
        self._find_leaders(first)
        self._merge(first, self.stack)
        budget = _MAX_STEPS_PER_INSTRUCTION * len(self.ops)
        while self.pending:
            budget -= self._follow(self.pending.pop())
            if budget < 0:
                self.index = first
                self.refuse("its paths are too entangled to be followed")
        self._check_loops()
        if self.code.co_stacksize < self.deepest:
            self.index = first
            self.refuse(f"its stack grows to {self.deepest} slots, and it has {self.code.co_stacksize}")
        if self.code.co_stacksize > 2 * self.deepest + 64:  # the compiler asks for only a few slots more than it uses
            self.index = first
            self.refuse(f"its stack grows to {self.deepest} slots, and it asks for {self.code.co_stacksize}")
        return self.deepest

    def _check_loops(self):
        """Refuses a loop without an instruction at which a stop can land.

        Handlers follow their ranges and every jump but two leads forward, so only JUMP_BACKWARD_NO_INTERRUPT can close
        such a loop. The compiler uses it in loops that delegate, and to return from code that it moved out of line. A
        loop that delegates, with SEND and YIELD_VALUE 1, stops where its delegate does.
        """
        starts = [index for index, op in enumerate(self.ops) if op == self.op_jump_back]
        if not starts:
            return
        stoppable = set()
        for index, op in enumerate(self.ops):
            if op in self.stoppable or op == self.op_yield and not self.operands[index]:
                stoppable.add(index)
        for delegates in (self.op_send, self.op_yield):
            self._check_paths_back(starts, stoppable | {at for at, op in enumerate(self.ops) if op == delegates})

    def _check_paths_back(self, starts, stoppable):
        """Refuses a loop that contains one of the instructions `starts` and none of `stoppable`."""
        name_of, ops, targets = self.table.name_of, self.ops, self.targets
        ends = {self.table.number(name) for name in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD")}
        done, on_path = set(), set()
        for start in starts:
            work = [(start, False)]
            while work:
                index, leaving = work.pop()
                if leaving:
                    on_path.discard(index)
                    done.add(index)
                    continue
                if index in done:
                    continue
                if index in on_path:
                    self.index = index
                    self.refuse("is in a loop that never looks at the eval breaker")
                on_path.add(index)
                work.append((index, True))
                op = ops[index]
                if index not in stoppable:
                    if targets[index] >= 0 and name_of[op] != "END_ASYNC_FOR":
                        work.append((targets[index], False))
                    falls_through = op not in ends and op != self.op_jump_back
                    if falls_through and index + 1 < len(ops):  # dead code may run off the end
                        work.append((index + 1, False))
                if self.handler_of[index]:
                    work.append((self.handler_of[index].target, False))

    def _prologue(self):
        """Checks the instructions before the first RESUME, sets the state after it, returns the index of that
        RESUME."""
        code, ops, names = self.code, self.ops, self.table.name_of
        arguments = argument_count(code, self.facts)
        slots = len(self.names)
        self.objects = (1 << arguments) - 1
        self.unassigned = ((1 << slots) - 1) & ~self.objects
        expected_cells = {self.names.index(name) for name in code.co_cellvars}
        resume = next((index for index, op in enumerate(ops) if op == self.op_resume), None)
        if resume is None:
            self.refuse("it has no RESUME")
        position = 0
        if code.co_freevars:
            if names[ops[0]] != "COPY_FREE_VARS":
                self.refuse("it has free variables and does not begin with COPY_FREE_VARS")
            self._hold_cell(self.free)
            position = 1
        cells = set()
        while names[ops[position]] == "MAKE_CELL":
            if self.operands[position] in cells:
                self.index = position
                self.refuse("a cell inside a cell")
            cells.add(self.operands[position])
            self._hold_cell(1 << self.operands[position])
            position += 1
        self.index = position
        if cells != expected_cells:
            self.refuse(f"cells are made for slots {sorted(cells)}, expected {sorted(expected_cells)}")
        makes_generator = code.co_flags & (self.facts.GENERATOR | self.facts.COROUTINE | self.facts.ASYNC_GENERATOR)
        if makes_generator:
            if [names[op] for op in ops[position : position + 2]] != ["RETURN_GENERATOR", "POP_TOP"]:
                self.refuse(f"flags {code.co_flags:#x} promise a generator, and RETURN_GENERATOR, POP_TOP are not here")
            position += 2
            self.deepest = 1
        while position < resume and names[ops[position]] == "NOP":
            position += 1
        self.index = position
        if position != resume or self.operands[resume] != 0:
            self.refuse("RESUME 0 expected here")
        if self.handlers and self.handlers[0].first < resume:
            self.refuse("the exception table covers instructions before RESUME")
        self.resume = resume
        return resume

    def _hold_cell(self, bits):
        self.unassigned &= ~bits
        self.objects &= ~bits
        self.cells |= bits

    def _find_leaders(self, first):
        """Finds the instructions at which paths may meet, and the handler of every code unit's instruction."""
        leaders = {first}
        for index, target in enumerate(self.targets):
            if target >= 0:
                if target <= first:
                    self.index = index
                    self.refuse("jumps to before the first instruction of the body")
                leaders.add(target)
                if self.ops[target] == self.op_end_for:
                    leaders.add(target + 1)
        self.handler_of = [None] * len(self.ops)
        for handler in self.handlers:
            if handler.target <= first:
                self.index = handler.first
                self.refuse("its handler is before the first instruction of the body")
            leaders.add(handler.target)
            self.handler_of[handler.first : handler.past] = [handler] * (handler.past - handler.first)
        # A callee in the same C frame raises as if at the code unit before (see opcodes_3_14.INLINES_CALLS).
        inlines = self.table.inlines_calls
        self.callee_handler_of = {}
        start, unit = self.instructions.start, self.instructions.unit
        for index in range(1, len(self.ops)):
            before = self.handler_of[index - 1]
            if (
                before is not self.handler_of[index]
                and before
                and inlines[self.ops[index]]
                and start[index] == unit[index]
            ):
                self.callee_handler_of[index] = before
        self.leaders = leaders

    def _merge(self, index, stack):
        """Merges the current locals and `stack` into the state before instruction `index`."""
        state = self.states.get(index)
        depth = len(stack)
        if depth > self.deepest:
            self.deepest = depth
        if state is None:
            self.states[index] = [list(stack), self.unassigned, self.objects, self.cells]
            self.pending.append(index)
            return
        known = state[0]
        if len(known) != depth:
            self.refuse(
                f"instruction at offset {2 * self.instructions.unit[index]} is reached with {depth} and with "
                f"{len(known)} slots on the stack"
            )
        changed = False
        for position, slot in enumerate(stack):
            both = known[position] | slot
            if both != known[position]:
                known[position] = both
                changed = True
        for position, bits in ((1, self.unassigned), (2, self.objects), (3, self.cells)):
            both = state[position] | bits
            if both != state[position]:
                state[position] = both
                changed = True
        if changed and index not in self.pending:
            self.pending.append(index)

    def _raise_to(self, handler, popped, last):
        """The current instruction, which pops `popped` slots, raises. Returns the state sent, so that the caller can
        skip repeats."""
        depth = handler.depth
        if len(self.stack) - popped < depth:
            self.refuse(f"raises with {len(self.stack) - popped} slots on the stack, and its handler keeps {depth}")
        unassigned = self.unassigned
        self.unassigned |= self.emptied_by(self.index)
        sent = (handler.target, self.stack[:depth], self.unassigned, self.objects, self.cells)
        if sent != last:
            self._merge(handler.target, sent[1] + ([LASTI, EXC] if handler.lasti else [EXC]))
        self.unassigned = unassigned
        return sent

    def emptied_by(self, index):
        """The bit of the local that instruction `index` may leave unset when it raises, or 0.

        An addition specialised for appending to a str in a local takes the str out of the local, and puts nothing back
        when memory runs out. It looks for the store at the code unit after its own.
        """
        instructions = self.instructions
        if self.ops[index] != self.op_binary or self.operands[index] not in self.facts.ADDITIONS:
            return 0
        after = index + 1
        if after == len(self.ops) or self.ops[after] != self.op_store_fast:
            return 0
        return 1 << self.operands[after] if instructions.start[after] == instructions.unit[after] else 0

    def _follow(self, index):
        """Follows the run that begins at leader `index` until it ends or meets another leader; returns its length."""
        stack, self.unassigned, self.objects, self.cells = self.states[index]
        self.stack = stack = list(stack)
        ops, operands, effects, rules, leaders = self.ops, self.operands, self.effects, self.rules, self.leaders
        handler_of, callee_handler_of, raises, free = (
            self.handler_of,
            self.callee_handler_of,
            self.table.raises,
            self.free,
        )
        begin, sent, total, list_extend = index, None, len(ops), self.op_list_extend
        while True:
            self.index = index
            op = ops[index]
            forbidden, outputs, kept, gone = effects[index]
            taken = len(forbidden)
            base = len(stack) - taken
            if base < 0:
                self.refuse(f"takes {taken} slots, and the stack holds {len(stack)}")
            for position, kinds_forbidden in enumerate(forbidden, base):
                if stack[position] & kinds_forbidden:
                    self.refuse(
                        f"finds {kinds.words(stack[position])} at depth {len(stack) - position}, "
                        f"expected {kinds.words(KINDS & ~kinds_forbidden)}"
                    )
            if free and (self.unassigned | self.objects) & free and self.table.name_of[op] not in self.quiet:
                self.refuse("a free variable's slot may not hold its cell here")
            for position in kept:  # methods of objects that stay on the stack ran, and may have kept references
                stack[base + position] = shared(stack[base + position])
            if op == list_extend and base >= operands[index]:  # it may raise after it added something
                stack[base - operands[index]] = shared(stack[base - operands[index]])
            handler = handler_of[index]
            if handler:
                if raises[op]:
                    sent = self._raise_to(handler, gone, sent)
                elif base + taken < handler.depth:  # it can't raise, but a trace function may, before it
                    self.refuse(f"has {base + taken} slots on the stack, and its handler keeps {handler.depth}")
            handler = callee_handler_of.get(index)
            if handler:
                self._raise_to(handler, gone, None)
            popped = stack[base:]
            if taken:
                del stack[base:]
            for output in outputs:
                stack.append(output if output >= 0 else popped[~output])
            rule = rules[op]
            if rule and rule(self, operands[index], popped):
                break
            if len(stack) > self.deepest:
                self.deepest = len(stack)
            index += 1
            if index == total:
                self.refuse("execution runs off the end of the bytecode")
            if index in leaders:
                self._merge(index, stack)
                break
        return index - begin + 1


@cache
def _rules(table):
    """For each opcode, the function for the effects that its row does not give, or None."""
    return [getattr(Rules, "_" + name) if name else None for name in table.rule_of]


def check_flow(instructions, handlers):
    """Follows all paths of a code object; VerifyError if one could harm the interpreter."""
    Flow(instructions, handlers).run()
