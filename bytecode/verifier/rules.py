"""Effects of single instructions on stack and locals beyond their row in the table.

Each rule is called after its row's effect, with the operand and the popped slots. It changes the state, sends it to
jump targets, or refuses. True ends the run of instructions.
"""

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
    borrow,
)
from .layout import argument_count

_LISTS = LIST | EXCEPTIONS


def constant_slot(value):
    """The slot that loading a constant pushes."""
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


def typed_slots(instructions, names):
    """{slot: kinds it always has} of positional arguments with names that only the compiler can give.

    They have these kinds because `layout` refuses such names for other arguments, `Rules._call` proves what is passed,
    and nobody else can call such code; and only while the slot holds the object itself: a cell of that name, or a
    closure's, can be written by whoever holds it.

    A generic function with only keyword defaults gets them under the name `.defaults`, the compiler's name for its
    first argument. In that case the last function made in it, the generic one, gets no defaults.
    """
    facts, table, code = instructions.table.facts, instructions.table, instructions.code
    typed = {
        index: kinds.NAMES[facts.TYPED_ARGUMENTS[name]]
        for index, name in enumerate(names[: code.co_argcount])
        if name in facts.TYPED_ARGUMENTS
    }
    if code.co_argcount == 1 and names[0] == ".defaults":
        opnames = [table.name_of[op] for op in instructions.ops]
        last = max((index for index, name in enumerate(opnames) if name == "MAKE_FUNCTION"), default=0)
        given = {
            instructions.operands[index]
            for index in range(last + 1, len(opnames))
            if opnames[index] == "SET_FUNCTION_ATTRIBUTE"
        }
        if facts.DEFAULTS not in given:
            typed[0] = kinds.NAMES["dict"]
    return typed


class Rules:
    """The rules, over the state of `flow.Flow`."""

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
        """The slot that loading `local` pushes; refuses a local that may be unassigned."""
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
            self.objects |= bit  # it always raises; the code after it is dead, so any state is right
        self.unassigned &= ~bit
        self.stack[-1] = self._value_of(operand)

    def _load_fast_load_fast(self, operand, popped):
        self.stack[-2] = self._value_of(operand >> 4)
        self.stack[-1] = self._value_of(operand & 15)

    def _load_fast_borrow_twice(self, operand, popped):
        self.stack[-2] = self._value_of(operand >> 4) | borrow(operand >> 4)
        self.stack[-1] = self._value_of(operand & 15) | borrow(operand & 15)

    def _release(self, local):
        """Checks that nothing borrows the local's reference, which is about to go."""
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
        if self.cells & bit & (self.cell_slots | self.free) and value & KINDS & ~(CELL | NULL):
            self.refuse(f"stores {kinds.words(value)} over the cell of {self.names[local]!r}")
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
        if self.cells & bit & (self.cell_slots | self.free):
            self.refuse(f"deletes the cell of {self.names[operand]!r}")
        self.unassigned |= bit
        self.objects &= ~bit
        self.cells &= ~bit

    def _make_cell(self, operand, popped):
        # It raises only MemoryError, and the compiler itself assumes that it does not: a handler would find no cell.
        self._release(operand)
        # 3.14 puts a free variable's cell into another where a comprehension in a type parameter's bound captures it.
        if not (self.cell_slots & ~self.cells | self.free) >> operand & 1:
            self.refuse(f"makes a cell of {self.names[operand]!r}, which has one or is to have none")
        self._hold_cell(1 << operand)

    def _deref(self, operand, popped):
        bit = 1 << operand
        if (self.unassigned | self.objects) & bit:
            self.refuse(f"slot of {self.names[operand]!r} may not hold a cell here")

    def _load_deref(self, operand, popped):
        self._deref(operand, popped)
        if self.names[operand] == self.facts.SET_BY_NAME:
            self.stack[-1] = SET
        elif self.names[operand] == self.facts.TUPLE_BY_CELL and self._holds_stored_tuple(operand):
            self.stack[-1] = kinds.TUPLE

    def _store_deref(self, operand, popped):
        self._deref(operand, popped)
        if self.names[operand] == self.facts.TUPLE_BY_CELL:
            self.tuple_stored[self.index] = popped[0] & KINDS

    def _holds_stored_tuple(self, local):
        """Does the cell in `local` still hold the tuple that this code put there?

        Whoever holds a cell can write it, so nobody else may hold it yet: it is this code's own, was filled once and
        never read before, and since then the code has only built the closure around it.
        """
        position = self.index - 1
        while self.table.name_of[self.ops[position]] in self.facts.BUILDS_CLOSURE:
            position -= 1
        if self.table.name_of[self.ops[position]] != "STORE_DEREF" or self.operands[position] != local:
            return False
        if (1 << local) & self.free or self.tuple_stored.get(position, 0) & ~kinds.NAMES["tuple"]:
            return False
        make_cell = self.table.number("MAKE_CELL")
        if any(self.ops[index] != make_cell and self._uses_local(index, local) for index in range(position)):
            return False
        if any(0 <= target <= position for target in self.targets[position:]):  # a loop would store again
            return False
        return not any(index in self.leaders for index in range(position + 1, self.index + 1))

    def _uses_local(self, index, local):
        domain, operand = self.table.domain_of[self.ops[index]], self.operands[index]
        if domain == "two locals":
            return local in (operand >> 4, operand & 15)
        return domain == "local" and operand == local

    def _check_typed(self, local, value):
        if self.typed and local in self.typed and value & KINDS & ~self.typed[local]:
            self.refuse(
                f"stores {kinds.words(value)} in {self.names[local]!r}, expected {kinds.words(self.typed[local])}"
            )

    # the stack

    def _reach(self, depth):
        """The index of the slot at `depth` from the top."""
        position = len(self.stack) - depth
        if position < 0:
            self.refuse(f"operand reaches {depth} slots down, and the stack holds {len(self.stack)}")
        return position

    def _copy(self, operand, popped):
        position = self._reach(operand)
        slot = self.stack[position] = kinds.shared(self.stack[position])
        self.stack.append(slot)

    def _swap(self, operand, popped):
        position = self._reach(operand)
        self.stack[position], self.stack[-1] = self.stack[-1], self.stack[position]

    # values

    def _compare(self, operand, popped):
        # without the flag the result is an object; where the compiler branches on it, it compares small integers
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
        position = self._reach(operand)
        if self.stack[position] & KINDS & ~allowed:
            self.refuse(f"finds {kinds.words(self.stack[position])} {operand} slots down, expected {what}")
        return position

    def _list_append(self, operand, popped):
        position = self._container(operand, _LISTS, "list")
        if popped[0] & KINDS & ~(EXC | EXC_OR_NONE | NONE) and self.stack[position] & EXCEPTIONS:
            self.stack[position] = LIST

    def _list_extend(self, operand, popped):
        self.stack[self._container(operand, _LISTS, "list")] = LIST

    def _match_class(self, operand, popped):
        names = popped[2]
        if names & KINDS != STRINGS and (names & KINDS != SIZED or kinds.sizes(names) != [0]):
            self.refuse(f"finds {kinds.words(names)}, expected a tuple of attributes' names")

    def _intrinsic_1(self, operand, popped):
        if operand == self.facts.STOP_ITERATION_ERROR:
            self._generator_only(operand, popped)
        if operand == self.facts.IMPORT_STAR and self.code.co_flags & self.facts.OPTIMIZED:
            self.refuse("import * writes variables by name, and those of a function have slots")

    def _into_set(self, operand, popped):
        self._container(operand, SET, "set")

    def _into_dict(self, operand, popped):
        self._container(operand, DICT, "dict")

    def _dict_merge(self, operand, popped):
        self._container(operand, DICT, "dict")
        self._container(operand + 3, OBJECTS, "callable")

    # calls and functions

    def _straight(self, first):
        """Refuses if a path can enter between instruction `first` and the current one."""
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

    def _made_function(self, index):
        """The function that the instructions up to `index` make and give attributes.

        Returns (index of the LOAD_CONST of its code, the code, the attributes set).
        """
        past = index + 1
        while self.ops[index] == self.op_set_attribute:
            index -= 1
        first = index - 1
        if self.ops[index] != self.op_make_function or self.ops[first] != self.op_load_const:
            self.refuse("LOAD_CONST of a code object and MAKE_FUNCTION expected before it")
        self._straight(first)
        return first, self.code.co_consts[self.operands[first]], self.operands[index + 1 : past]

    def _takes_typed_arguments(self, code):
        return not self.facts.TYPED_ARGUMENTS.keys().isdisjoint(code.co_varnames[: code.co_argcount])

    def _make_function(self, operand, popped):
        _, code, _ = self._made_function(self.index)
        if code.co_freevars or self._takes_typed_arguments(code):
            self.stack[-1] = BARE_FUNC

    def _set_function_attribute(self, operand, popped):
        attribute, function = popped
        first, code, attributes = self._made_function(self.index)
        facts = self.facts
        self.stack[-1] = function
        kind = attribute & KINDS
        if operand in attributes[:-1]:
            self.refuse("gives a function an attribute twice")
        if operand == facts.DEFAULTS:
            ok = not kind & ~kinds.NAMES["tuple"]
        elif operand == facts.KEYWORD_DEFAULTS:
            ok = kind == DICT
        elif operand == facts.ANNOTATIONS:
            counts = kinds.sizes(attribute)
            ok = kind == DICT or not kind & ~kinds.SIZED_TUPLES and not any(count & 1 for count in counts)
        elif operand == facts.CLOSURE:
            # it must be the first attribute, so that the tuple is the one built right before the function
            ok = kind == CELLS and len(attributes) == 1 and self._loaded_names(first) == code.co_freevars
            if not self._takes_typed_arguments(code):
                self.stack[-1] = FUNC
        else:
            ok = True
        if not ok:
            self.refuse(f"{kinds.words(attribute)} does not fit function {code.co_qualname}")

    def _loaded_names(self, load_const):
        """The names of the variables whose cells form the closure tuple built right before instruction `load_const`."""
        build = load_const - 1
        name_of, ops = self.table.name_of, self.ops
        if name_of[ops[build]] != "BUILD_TUPLE":
            return None
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
        self._straight(index)
        return tuple(reversed(names[: self.operands[build]]))

    def _call(self, operand, popped):
        if popped[0] & BARE_FUNC:
            swap = self.index - 1  # moves the function just made below its arguments, which were pushed before
            if self.ops[swap] != self.op_swap or self.operands[swap] != operand + 2:
                self.refuse("SWAP of the function and its arguments expected before it")
            _, code, attributes = self._made_function(swap - 1)
            wanted = argument_count(code, self.facts)
            given = popped[1:]
            ready = not code.co_freevars or self.facts.CLOSURE in attributes
            if popped[0] & KINDS != BARE_FUNC or popped[1] & KINDS & ~OBJECTS or len(given) != wanted or not ready:
                self.refuse(f"calls {code.co_qualname} without its closure or with the wrong arguments")
            typed = typed_slots(Instructions(code, self.table, self.instructions.where), code.co_varnames)
            for index, slot in enumerate(given):
                if slot & KINDS & ~typed.get(index, OBJECTS):
                    self.refuse(
                        f"gives {kinds.words(slot)} for {code.co_varnames[index]!r} of {code.co_qualname}, "
                        f"expected {kinds.words(typed[index])}"
                    )

    # leaving and jumping

    def _return_value(self, operand, popped):
        if self.stack:
            self.refuse(f"{len(self.stack)} slots are left on the stack")
        if self.code.co_flags & self.facts.ASYNC_GENERATOR and popped[0] & KINDS != NONE:
            self.refuse(f"returns {kinds.words(popped[0])} from an asynchronous generator, expected None")
        return True

    def _leave(self, operand, popped):
        return True

    def _reraise(self, operand, popped):
        if operand:
            position = self._reach(operand)
            if self.stack[position] & KINDS != LASTI:
                self.refuse(
                    f"finds {kinds.words(self.stack[position])} {operand} slots below the exception, "
                    "expected the saved instruction offset"
                )
        return True

    def _jump(self, operand, popped):
        self._merge(self.targets[self.index], self.stack)
        return True

    def _branch(self, operand, popped):
        self._merge(self.targets[self.index], self.stack)

    def _branch_on_none(self, none_jumps):
        """After COPY 1, the slot below the tested one is the same object: None on one path and not on the other."""
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

    def _for_iter(self, operand, popped):
        target = self.targets[self.index]
        if self.ops[target] != self.op_end_for or target + 1 == len(self.ops):
            self.refuse("does not lead to END_FOR and an instruction after it")
        self._merge(target, self.stack)
        self._merge(target + 1, self.stack[:-1])  # an exhausted iterator skips END_FOR

    def _send(self, operand, popped):
        width = self.instructions.end[self.index] - self.instructions.unit[self.index]
        if width + operand > self.facts.MAX_RETURN_OFFSET:
            self.refuse(f"jumps {operand} code units, more than fit the frame's return offset")
        self._merge(self.targets[self.index], self.stack)

    def _generator_only(self, operand, popped):
        if not self.code.co_flags & (self.facts.GENERATOR | self.facts.COROUTINE | self.facts.ASYNC_GENERATOR):
            self.refuse(f"in code whose flags {self.code.co_flags:#x} say that it is no generator")

    def _yield_value(self, operand, popped):
        self._generator_only(operand, popped)
        after = self.index + 1
        if (
            after == len(self.ops)
            or self.ops[after] != self.op_resume
            or self.operands[after] & 3 not in self.facts.RESUME_AFTER[operand]
        ):
            self.refuse("RESUME after a yield expected next, of the same sort")
        handler = self.handler_of[self.index]
        if handler:  # throw() enters it with None, the value sent, in place of the yielded one
            self._raise_to(handler, 0, None)
        if operand and (len(self.stack) < 2 or self.stack[-2] & KINDS & ~OBJECTS):
            self.refuse("no iterator below the value")

    def _end_async_for(self, operand, popped):
        # the operand only tells debuggers where the loop's SEND ends; nothing jumps there
        if self.targets[self.index] >= self.index:
            self.refuse("does not point back into its loop")
