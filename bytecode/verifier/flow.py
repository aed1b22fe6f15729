"""Abstract interpretation: what lies on the stack and in the locals at every instruction, along all paths.

The state is a stack of slots (`kinds.py`) and, for locals, three bit sets: may be unassigned, may hold an object, may
hold a cell. Straight runs of instructions are followed at once; where paths meet, states are merged and runs repeated
until nothing changes. Every instruction that can raise leads to its handler with the part of the stack that the handler
keeps.
"""

from functools import cache, lru_cache
from types import CodeType

from . import kinds
from .instructions import Instructions
from .kinds import (
    ALIAS,
    BARE_FUNC,
    BOOL,
    CELL,
    CELLS,
    CODE,
    COMPARED,
    DICT,
    EXC,
    EXC_OR_NONE,
    EXCEPTIONS,
    FUNC,
    INTERPOLATION,
    INTERPOLATIONS,
    KINDS,
    LASTI,
    LIST,
    NONE,
    NULL,
    OBJ,
    OBJECTS,
    SET,
    SIZED,
    STR,
    STRINGS,
    Effect,
    borrow,
)
from .layout import argument_count, slot_names

_LISTS = LIST | EXCEPTIONS
_MAX_STEPS_PER_INSTRUCTION = 400  # of merging; the lattice is finite, this bounds time on hostile input


@lru_cache(4096)
def _effect(text, operand):
    effect = Effect(text, operand)
    return tuple(effect.forbidden), tuple(effect.outputs), effect.popped


def _constant_slot(value):
    kind = type(value)
    if kind is bool:
        return BOOL
    if kind is str:
        return STR
    if value is None:
        return NONE
    if kind is CodeType:
        return CODE
    if kind is tuple:
        strings = value and all(type(item) is str for item in value)
        return (STRINGS if strings else SIZED) | kinds.size(len(value))
    return OBJ


def _typed_slots(instructions, names):
    """{slot: kinds it always has} of slots that the compiler alone can name.

    A generic function with keyword defaults alone gets them under the name `.defaults` (the compiler names its first
    argument so): then the last function made in it, the generic one, is given no defaults.
    """
    facts, table, code = instructions.table.facts, instructions.table, instructions.code
    typed = {
        index: kinds.NAMES[facts.TYPED_SLOTS[name]] for index, name in enumerate(names) if name in facts.TYPED_SLOTS
    }
    if code.co_argcount == 1 and names[0] == ".defaults":
        made = [table.name_of[op] for op in instructions.ops]
        last = max((index for index, name in enumerate(made) if name == "MAKE_FUNCTION"), default=0)
        given = {
            instructions.operands[index]
            for index in range(last + 1, len(made))
            if made[index] == "SET_FUNCTION_ATTRIBUTE"
        }
        if facts.DEFAULTS not in given:
            typed[0] = kinds.NAMES["dict"]
    return typed


class Flow:
    """One code object's abstract interpretation. `run` raises VerifyError or returns the deepest stack seen."""

    def __init__(self, instructions, handlers):
        self.instructions, self.handlers = instructions, handlers
        self.table = instructions.table
        self.facts = self.table.facts
        self.code = code = instructions.code
        self.ops, self.operands, self.targets = instructions.ops, instructions.operands, instructions.target
        self.names = slot_names(code)
        self.constants = [_constant_slot(value) for value in code.co_consts]
        self.borrows = kinds.all_borrows(len(self.names))
        self.free = ((1 << len(code.co_freevars)) - 1) << (len(self.names) - len(code.co_freevars))
        self.typed = _typed_slots(instructions, self.names)
        number = self.table.number
        self.op_resume, self.op_yield, self.op_load_const = (
            number("RESUME"),
            number("YIELD_VALUE"),
            number("LOAD_CONST"),
        )
        self.op_make_function, self.op_set_attribute = number("MAKE_FUNCTION"), number("SET_FUNCTION_ATTRIBUTE")
        self.op_end_for, self.op_copy, self.op_swap = number("END_FOR"), number("COPY"), number("SWAP")
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
        texts, name_of = self.table.effect_of, self.table.name_of
        for op, operand in zip(self.ops, self.operands):
            text = texts[op]
            if text.startswith("see "):
                text = (self.facts.INTRINSIC_1 if name_of[op] == "CALL_INTRINSIC_1" else self.facts.INTRINSIC_2)[
                    operand
                ]
            effects.append(_effect(text, operand if "*" in text else 0))
        return effects

    def refuse(self, message):
        self.instructions.refuse(self.index, message)

    # -- the walk

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
        if (
            self.code.co_stacksize > 2 * self.deepest + 64
        ):  # the compiler asks for at most a few slots more than it uses
            self.index = first
            self.refuse(f"its stack grows to {self.deepest} slots, and it asks for {self.code.co_stacksize}")
        return self.deepest

    def _check_loops(self):
        """Refuses a loop without an instruction at which a stop can land.

        Handlers lie after their ranges and every jump but two leads forward, so only JUMP_BACKWARD_NO_INTERRUPT can
        close such a loop; the compiler uses it in loops that yield and to come back from code that it moved out of the
        way.
        """
        name_of, ops, targets = self.table.name_of, self.ops, self.targets
        starts = [index for index, op in enumerate(ops) if name_of[op] == "JUMP_BACKWARD_NO_INTERRUPT"]
        if not starts:
            return
        ends = {self.table.number(name) for name in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD")}
        stoppable = {self.table.number(name) for name in self.facts.STOPPABLE}
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
                if op not in stoppable:
                    if targets[index] >= 0 and name_of[op] != "END_ASYNC_FOR":
                        work.append((targets[index], False))
                    if op not in ends and name_of[op] != "JUMP_BACKWARD_NO_INTERRUPT":
                        work.append((index + 1, False))
                if self.handler_of[index]:
                    work.append((self.handler_of[index].target, False))

    def _prologue(self):
        """Checks what comes before the first RESUME, sets the state after it, and returns the index of that RESUME."""
        code, ops, names = self.code, self.ops, self.table.name_of
        arguments = argument_count(code, self.facts)
        slots = len(self.names)
        self.objects = (1 << arguments) - 1
        self.unassigned = ((1 << slots) - 1) & ~self.objects
        expected_cells = {self.names.index(name) for name in code.co_cellvars}
        resume = next((index for index, op in enumerate(ops) if op == self.op_resume), None)
        if resume is None:
            self.refuse("it has no RESUME")
        place = 0
        if code.co_freevars:
            if names[ops[0]] != "COPY_FREE_VARS":
                self.refuse("it has free variables and does not begin with COPY_FREE_VARS")
            self._hold_cell(self.free)
            place = 1
        made = set()
        while names[ops[place]] == "MAKE_CELL":
            made.add(self.operands[place])
            self._hold_cell(1 << self.operands[place])
            place += 1
        self.index = place
        if made != expected_cells:
            self.refuse(f"cells are made for slots {sorted(made)}, expected {sorted(expected_cells)}")
        makes_generator = code.co_flags & (self.facts.GENERATOR | self.facts.COROUTINE | self.facts.ASYNC_GENERATOR)
        if makes_generator:
            if [names[op] for op in ops[place : place + 2]] != ["RETURN_GENERATOR", "POP_TOP"]:
                self.refuse(f"flags {code.co_flags:#x} promise a generator, and RETURN_GENERATOR, POP_TOP are not here")
            place += 2
            self.deepest = 1
        while place < resume and names[ops[place]] == "NOP":
            place += 1
        self.index = place
        if place != resume or self.operands[resume] != 0:
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
        """Instructions at which paths may meet, and the handler of every code unit's instruction."""
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
        # a callee that runs in the same C frame raises as if at the code unit before (see opcodes_3_14.INLINES_CALLS)
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
        """The current locals with `stack` arrive at instruction `index`."""
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
        for place, slot in enumerate(stack):
            both = known[place] | slot
            if both != known[place]:
                known[place] = both
                changed = True
        for place, bits in ((1, self.unassigned), (2, self.objects), (3, self.cells)):
            both = state[place] | bits
            if both != state[place]:
                state[place] = both
                changed = True
        if changed and index not in self.pending:
            self.pending.append(index)

    def _raise_to(self, handler, popped, last):
        """The current instruction, which takes `popped` slots, raises; returns what was sent, to spare repeats."""
        depth = handler.depth
        if len(self.stack) - popped < depth:
            self.refuse(f"raises with {len(self.stack) - popped} slots on the stack, and its handler keeps {depth}")
        sent = (handler.target, self.stack[:depth], self.unassigned, self.objects, self.cells)
        if sent != last:
            self._merge(handler.target, sent[1] + ([LASTI, EXC] if handler.lasti else [EXC]))
        return sent

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
        begin, sent, total = index, None, len(ops)
        while True:
            self.index = index
            op = ops[index]
            forbidden, outputs, gone = effects[index]
            taken = len(forbidden)
            base = len(stack) - taken
            if base < 0:
                self.refuse(f"takes {taken} slots, and the stack holds {len(stack)}")
            for place, kinds_forbidden in enumerate(forbidden, base):
                if stack[place] & kinds_forbidden:
                    self.refuse(
                        f"finds {kinds.words(stack[place])} at depth {len(stack) - place}, "
                        f"expected {kinds.words(KINDS & ~kinds_forbidden)}"
                    )
            if free and (self.unassigned | self.objects) & free and self.table.name_of[op] not in self.quiet:
                self.refuse("a free variable's slot may not hold its cell here")
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

    # -- rules: what an instruction does beyond its row. Called after the row's effect; true ends the run.

    def _resume(self, operand, popped):
        if operand == 0:
            if self.index != self.resume:
                self.refuse("RESUME 0 inside the body")
        elif self.ops[self.index - 1] != self.op_yield:
            self.refuse(f"RESUME {operand} does not follow YIELD_VALUE")

    def _prologue_only(self, operand, popped):
        self.refuse("belongs before the first RESUME only")

    def _load_const(self, operand, popped):
        self.stack[-1] = self.constants[operand]

    def _load_name(self, operand, popped):
        if self.code.co_names[operand] == self.facts.SET_BY_NAME:
            self.stack[-1] = SET

    def _load_global(self, operand, popped):
        if operand & 1:
            self.stack.append(NULL)

    # locals

    def _value_of(self, local):
        """The slot that loading `local` pushes, which must be assigned."""
        bit = 1 << local
        if self.unassigned & bit:
            self.refuse(f"local {self.names[local]!r} may be unassigned here")
        if self.typed and local in self.typed and not self.cells & bit:
            return kinds.TUPLE if self.typed[local] & kinds.TUPLE else DICT
        return (OBJ if self.objects & bit else 0) | (CELL if self.cells & bit else 0)

    def _load_fast(self, operand, popped):
        self.stack[-1] = self._value_of(operand)

    def _load_fast_borrow(self, operand, popped):
        self.stack[-1] = self._value_of(operand) | borrow(operand)

    def _load_fast_check(self, operand, popped):
        bit = 1 << operand
        if self.unassigned & bit and not (self.objects | self.cells) & bit:
            self.objects |= bit  # it always raises; what follows is dead, and anything may be assumed
        self.unassigned &= ~bit
        self.stack[-1] = self._value_of(operand)

    def _load_fast_load_fast(self, operand, popped):
        self.stack[-2] = self._value_of(operand >> 4)
        self.stack[-1] = self._value_of(operand & 15)

    def _load_fast_borrow_twice(self, operand, popped):
        self.stack[-2] = self._value_of(operand >> 4) | borrow(operand >> 4)
        self.stack[-1] = self._value_of(operand & 15) | borrow(operand & 15)

    def _release(self, local):
        """The local's own reference is about to go: nothing may still borrow it."""
        bit = borrow(local)
        for slot in self.stack:
            if slot & bit:
                self.refuse(f"local {self.names[local]!r} changes while the stack holds a reference borrowed from it")

    def _load_fast_and_clear(self, operand, popped):
        bit = 1 << operand
        self.stack[-1] = (
            (NULL if self.unassigned & bit else 0)
            | (OBJ if self.objects & bit else 0)
            | (CELL if self.cells & bit else 0)
        )
        self._release(operand)
        self.unassigned |= bit
        self.objects &= ~bit
        self.cells &= ~bit

    def _assign(self, local, value):
        self._release(local)
        if value & self.borrows:
            self.refuse(f"stores a borrowed reference in local {self.names[local]!r}")
        self._check_typed(local, value)
        bit = 1 << local
        self.unassigned = self.unassigned | bit if value & NULL else self.unassigned & ~bit
        self.cells = self.cells | bit if value & CELL else self.cells & ~bit
        self.objects = self.objects | bit if value & KINDS & ~(NULL | CELL) else self.objects & ~bit

    def _store_fast(self, operand, popped):
        self._assign(operand, popped[0])

    def _store_fast_load_fast(self, operand, popped):
        self.stack.pop()
        self._assign(operand >> 4, popped[0])
        self.stack.append(self._value_of(operand & 15))

    def _store_fast_store_fast(self, operand, popped):
        self.stack.append(popped[0])
        self._assign(operand >> 4, popped[1])
        self.stack.pop()
        self._assign(operand & 15, popped[0])

    def _delete_fast(self, operand, popped):
        self._release(operand)
        bit = 1 << operand
        self.unassigned |= bit
        self.objects &= ~bit
        self.cells &= ~bit

    def _make_cell(self, operand, popped):
        # it raises MemoryError alone, and the compiler itself counts on it not to: a handler would find no cell
        self._release(operand)
        self._hold_cell(1 << operand)

    def _deref(self, operand, popped):
        bit = 1 << operand
        if (self.unassigned | self.objects) & bit:
            self.refuse(f"slot of {self.names[operand]!r} may not hold a cell here")

    def _load_deref(self, operand, popped):
        self._deref(operand, popped)
        if operand in self.typed:
            self.stack[-1] = kinds.TUPLE if self.typed[operand] & kinds.TUPLE else DICT
        elif self.names[operand] == self.facts.SET_BY_NAME:
            self.stack[-1] = SET

    def _store_deref(self, operand, popped):
        self._deref(operand, popped)
        self._check_typed(operand, popped[0])

    def _check_typed(self, local, value):
        if self.typed and local in self.typed and value & KINDS & ~self.typed[local]:
            self.refuse(
                f"stores {kinds.words(value)} in {self.names[local]!r}, expected {kinds.words(self.typed[local])}"
            )

    # the stack

    def _reach(self, depth):
        """The place of the slot at `depth` from the top."""
        place = len(self.stack) - depth
        if place < 0:
            self.refuse(f"operand reaches {depth} slots down, and the stack holds {len(self.stack)}")
        return place

    def _copy(self, operand, popped):
        place = self._reach(operand)
        slot = self.stack[place]
        if slot & EXCEPTIONS:  # two names for one list: what is added through one shows in the other
            slot = self.stack[place] = slot & ~EXCEPTIONS | LIST
        self.stack.append(slot)

    def _swap(self, operand, popped):
        place = self._reach(operand)
        self.stack[place], self.stack[-1] = self.stack[-1], self.stack[place]

    # values

    def _compare(self, operand, popped):
        # without the flag the result is an object; the compiler branches on it where it compares small integers
        self.stack[-1] = BOOL if operand & 16 else COMPARED

    def _format_simple(self, operand, popped):
        self.stack[-1] = STR | popped[0] & self.borrows  # a str passes through as it is

    def _pass_borrow(self, operand, popped):
        self.stack[-1] = OBJ | popped[0] & self.borrows

    def _load_attr(self, operand, popped):
        if operand & 1:
            self.stack.append(OBJ | NULL | popped[0] & self.borrows)

    def _load_super_attr(self, operand, popped):
        if operand & 1:
            self.stack.append(OBJ | NULL | popped[2] & self.borrows)

    def _load_special(self, operand, popped):
        self.stack[-1] = OBJ | NULL | popped[0] & self.borrows

    def _build_tuple(self, operand, popped):
        together = 0
        for slot in popped:
            together |= slot
        together &= KINDS
        kind = {CELL: CELLS, STR: STRINGS, INTERPOLATION: INTERPOLATIONS}.get(together, SIZED)
        if operand == 3 and popped[0] & KINDS == STR and not popped[1] & KINDS & ~(kinds.NAMES["tuple"] | NONE):
            kind = ALIAS
        self.stack[-1] = kind | kinds.size(operand)

    def _build_list(self, operand, popped):
        if not operand:
            self.stack[-1] = EXCEPTIONS

    def _build_template(self, operand, popped):
        strings, interpolations = popped
        ok = strings & KINDS == STRINGS and interpolations & KINDS in (INTERPOLATIONS, SIZED)
        counts = kinds.sizes(strings), kinds.sizes(interpolations)
        if (
            not ok
            or counts[0] != [count + 1 for count in counts[1]]
            or len(counts[0]) != 1
            or (interpolations & KINDS == SIZED and counts[1] != [0])
        ):
            self.refuse("expected a tuple of strings and a tuple with one interpolation fewer")

    def _container(self, operand, allowed, what):
        place = self._reach(operand)
        if self.stack[place] & KINDS & ~allowed:
            self.refuse(f"finds {kinds.words(self.stack[place])} {operand} slots down, expected {what}")
        return place

    def _list_append(self, operand, popped):
        place = self._container(operand, _LISTS, "list")
        if popped[0] & KINDS & ~(EXC | EXC_OR_NONE | NONE) and self.stack[place] & EXCEPTIONS:
            self.stack[place] = LIST

    def _list_extend(self, operand, popped):
        self.stack[self._container(operand, _LISTS, "list")] = LIST

    def _into_set(self, operand, popped):
        self._container(operand, SET, "set")

    def _into_dict(self, operand, popped):
        self._container(operand, DICT, "dict")

    def _dict_merge(self, operand, popped):
        self._container(operand, DICT, "dict")
        self._container(operand + 3, OBJECTS, "callable")

    # calls and functions

    def _straight(self, first):
        """Refuses if a path can enter between instruction `first` and this one."""
        for index in range(first + 1, self.index + 1):
            if index in self.leaders:
                self.refuse("a jump leads into a sequence that belongs together")

    def _call_kw(self, operand, popped):
        before = self.index - 1
        if self.ops[before] != self.op_load_const:
            self.refuse("LOAD_CONST with the keywords' names expected before it")
        self._straight(before)
        names = self.code.co_consts[self.operands[before]]
        if (
            type(names) is not tuple
            or len(names) > operand
            or len(set(names)) != len(names)
            or any(type(name) is not str for name in names)
        ):
            self.refuse(f"keyword names {names!r:.80} for {operand} arguments")

    def _function_made(self):
        """(index of its LOAD_CONST, code object) of the function that the instructions up to this one make or adorn."""
        index = self.index
        if self.ops[index] == self.op_swap:
            index -= 1
        while self.ops[index] == self.op_set_attribute:
            index -= 1
        first = index - 1
        if self.ops[index] != self.op_make_function or self.ops[first] != self.op_load_const:
            self.refuse("LOAD_CONST of a code object and MAKE_FUNCTION expected before it")
        self._straight(first)
        return first, self.code.co_consts[self.operands[first]]

    def _make_function(self, operand, popped):
        _, code = self._function_made()
        if code.co_freevars or not self.facts.TYPED_SLOTS.keys().isdisjoint(
            code.co_varnames[: argument_count(code, self.facts)]
        ):
            self.stack[-1] = BARE_FUNC

    def _set_function_attribute(self, operand, popped):
        attribute, function = popped
        first, code = self._function_made()
        facts = self.facts
        self.stack[-1] = function
        kind = attribute & KINDS
        if operand == facts.DEFAULTS:
            ok = not kind & ~kinds.NAMES["tuple"]
        elif operand == facts.KEYWORD_DEFAULTS:
            ok = kind == DICT
        elif operand == facts.ANNOTATIONS:
            counts = kinds.sizes(attribute)
            ok = kind == DICT or not kind & ~kinds.SIZED_TUPLES and not any(count & 1 for count in counts)
        elif operand == facts.CLOSURE:
            ok = kind == CELLS and self._loaded_names(first) == code.co_freevars
            if facts.TYPED_SLOTS.keys().isdisjoint(code.co_varnames[: argument_count(code, facts)]):
                self.stack[-1] = FUNC
        else:
            ok = True
        if not ok:
            self.refuse(f"{kinds.words(attribute)} does not fit function {code.co_qualname}")

    def _loaded_names(self, load_const):
        """The names of the variables whose cells make up the closure tuple built right before instruction
        `load_const`."""
        build = load_const - 1
        name_of, ops = self.table.name_of, self.ops
        if name_of[ops[build]] != "BUILD_TUPLE":
            return None
        self._straight(build)
        missing, names, index = self.operands[build], [], build
        while missing > 0:
            index -= 1
            name, operand = name_of[ops[index]], self.operands[index]
            if name in ("LOAD_FAST", "LOAD_FAST_BORROW"):
                names.append(self.names[operand])
            elif name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
                names += [self.names[operand & 15], self.names[operand >> 4]]
            elif name == "STORE_FAST_LOAD_FAST":
                names.append(self.names[operand & 15])
            else:
                return None
            missing = self.operands[build] - len(names)
        return tuple(reversed(names[: self.operands[build]]))

    def _call(self, operand, popped):
        if popped[0] & BARE_FUNC:
            self.index -= 1
            _, code = self._function_made()
            self.index += 1
            self._straight(self.index - 1)
            wanted = argument_count(code, self.facts)
            given = popped[1:]
            if popped[0] & KINDS != BARE_FUNC or popped[1] & KINDS & ~OBJECTS or len(given) != wanted:
                self.refuse(f"calls {code.co_qualname} with the wrong arguments")
            typed = _typed_slots(Instructions(code, self.table, self.instructions.where), code.co_varnames)
            for place, slot in enumerate(given):
                if slot & KINDS & ~typed.get(place, OBJECTS):
                    self.refuse(
                        f"gives {kinds.words(slot)} for {code.co_varnames[place]!r} of {code.co_qualname}, "
                        f"expected {kinds.words(typed[place])}"
                    )

    # leaving and jumping

    def _return_value(self, operand, popped):
        if self.stack:
            self.refuse(f"{len(self.stack)} slots are left on the stack")
        return True

    def _leave(self, operand, popped):
        return True

    def _reraise(self, operand, popped):
        if operand:
            place = self._reach(operand)
            if self.stack[place] & KINDS != LASTI:
                self.refuse(
                    f"finds {kinds.words(self.stack[place])} {operand} slots below the exception, "
                    "expected the saved instruction offset"
                )
        return True

    def _jump(self, operand, popped):
        self._merge(self.targets[self.index], self.stack)
        return True

    def _branch(self, operand, popped):
        self._merge(self.targets[self.index], self.stack)

    def _branch_on_none(self, none_jumps):
        """After COPY 1 the slot below is the one that was tested: it is None on one way and not on the other."""
        stack = self.stack
        before = self.index - 1
        tested = (
            stack and self.index not in self.leaders and self.ops[before] == self.op_copy and self.operands[before] == 1
        )
        if not tested or not stack[-1] & (EXC_OR_NONE | NONE):
            self._merge(self.targets[self.index], stack)
            return
        slot = stack[-1]
        other = slot & ~(EXC_OR_NONE | NONE) | (EXC if slot & EXC_OR_NONE else 0) or OBJ
        none = slot & ~EXC_OR_NONE | NONE
        stack[-1] = none if none_jumps else other
        self._merge(self.targets[self.index], stack)
        stack[-1] = other if none_jumps else none

    def _branch_none(self, operand, popped):
        self._branch_on_none(True)

    def _branch_not_none(self, operand, popped):
        self._branch_on_none(False)

    def _check_return_offset(self, operand):
        if operand + 2 > self.facts.MAX_RETURN_OFFSET:
            self.refuse(f"jumps {operand} code units, more than fit the frame's return offset")

    def _for_iter(self, operand, popped):
        self._check_return_offset(operand)
        target = self.targets[self.index]
        if self.ops[target] != self.op_end_for or target + 1 == len(self.ops):
            self.refuse("does not lead to END_FOR and an instruction after it")
        self._merge(target, self.stack)
        self._merge(target + 1, self.stack[:-1])  # an exhausted iterator skips END_FOR

    def _send(self, operand, popped):
        self._check_return_offset(operand)
        self._merge(self.targets[self.index], self.stack)

    def _yield_value(self, operand, popped):
        if not self.code.co_flags & (self.facts.GENERATOR | self.facts.COROUTINE | self.facts.ASYNC_GENERATOR):
            self.refuse(f"in code whose flags {self.code.co_flags:#x} say that it is no generator")
        after = self.index + 1
        if after == len(self.ops) or self.ops[after] != self.op_resume or not self.operands[after] & 3:
            self.refuse("RESUME after a yield expected next")
        handler = self.handler_of[self.index]
        if handler:  # throw() finds the value that was sent, None, where the yielded one lay
            self._raise_to(handler, 0, None)
        if operand and (len(self.stack) < 2 or self.stack[-2] & KINDS & ~OBJECTS):
            self.refuse("no iterator below the value")

    def _end_async_for(self, operand, popped):
        # the operand only tells tools where the loop's SEND ends; nothing jumps there
        if self.targets[self.index] >= self.index:
            self.refuse("does not point back into its loop")


@cache
def _rules(table):
    """For each opcode the function that does what its row does not say, or None."""
    return [getattr(Flow, "_" + name) if name else None for name in table.rule_of]


def check_flow(instructions, handlers):
    """Follows all paths of a code object; VerifyError where one could harm the interpreter."""
    Flow(instructions, handlers).run()
