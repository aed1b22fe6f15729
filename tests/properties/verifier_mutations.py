"""Does any code object that the verifier accepts crash the interpreter? Mutates code objects, and runs what is accepted.

    python -m tests.properties.verifier_mutations --count 100000 [--seed N] [--jobs 2] [--only INDEX]

Every mutant follows from the seed and its index, so one can be made again alone (`--only`). A worker process mutates and
verifies; an accepted mutant runs in a child forked for it, in an empty folder, without builtins that reach the machine,
under limits of memory, CPU time and file size, with allocator checks on (PYTHONMALLOC=debug: freed memory is overwritten,
so a dangling reference shows). A child that ends by a signal other than those of its limits is a crash; the mutant is
written to `tests/crashers/` and the exit status is 1. Specimens are the small programs in `specimens/` and some modules of
the standard library that touch nothing but their arguments.
"""

import argparse
import base64
import builtins
import gc
import inspect
import json
import marshal
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

from bytecode.verifier import VerifyError, load, verify

ROOT = Path(__file__).resolve().parents[2]
SPECIMENS = Path(__file__).with_name("specimens")
CRASHERS = ROOT / "tests" / "crashers"
LIBRARY = ("heapq", "bisect", "colorsys", "textwrap", "graphlib", "reprlib", "json.decoder", "json.scanner", "html", "string",
           "copy", "keyword", "types", "_weakrefset", "statistics", "fractions", "shlex", "operator")
LIBRARY_SHARE = 0.06  # of all mutants: these modules are large, and verifying them takes most of the time
DEFAULT_SEED = 20261121

REJECTED, RAN, STUCK, UNREADABLE = "rejected", "ran", "stuck", "unreadable"
_STUCK_STATUS = 77
_ALARM_S, _GIVE_UP_S = 0.25, 1.5
_LIMIT_SIGNALS = {signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM}


# -- mutating

def code_objects(code):
    """(path, code object) of `code` and all within; a path is the places in co_consts that lead there."""
    found = [((), code)]
    for path, one in found:
        for place, constant in enumerate(one.co_consts):
            if type(constant) is types.CodeType:
                found.append((path + (place,), constant))
    return found


def replaced(code, path, new):
    """`code` with the code object at `path` exchanged for `new`."""
    if not path:
        return new
    constants = list(code.co_consts)
    constants[path[0]] = replaced(constants[path[0]], path[1:], new)
    return code.replace(co_consts=tuple(constants))


class Layout:
    """Where the instructions of a code object are: (first byte of opcode, opcode, bytes up to the next instruction)."""

    def __init__(self, code):
        import dis
        self.found = []
        offset, data = 0, code.co_code
        while offset < len(data):
            op = data[offset]
            width = 2 + 2 * dis._inline_cache_entries.get(dis.opname[op], 0)
            self.found.append((offset, op, width))
            offset += width

    def pick(self, chance, names=None):
        import dis
        fitting = [each for each in self.found if names is None or dis.opname[each[1]] in names]
        return chance.choice(fitting) if fitting else None


def _op(name):
    import dis
    return dis.opmap[name]


def _near(chance, value):
    return chance.choice((value - 1, value + 1, value ^ 1, value + 2, 0, chance.randrange(256), value ^ 1 << chance.randrange(8))) & 0xFF


def flip_code_bit(code, chance):
    data = bytearray(code.co_code)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return {"co_code": bytes(data)}


def change_operand(code, chance):
    data = bytearray(code.co_code)
    offset, _, _ = Layout(code).pick(chance)
    data[offset + 1] = _near(chance, data[offset + 1])
    return {"co_code": bytes(data)}


def change_opcode(code, chance):
    import dis
    data = bytearray(code.co_code)
    offset, op, width = Layout(code).pick(chance)
    alike = [number for number in dis.opmap.values()
             if number < 255 and 2 + 2 * dis._inline_cache_entries.get(dis.opname[number], 0) == width]
    data[offset] = chance.choice(alike)
    return {"co_code": bytes(data)}


_FAMILIES = (("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST", "MAKE_CELL",
              "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF"),
             ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
             ("LIST_APPEND", "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "MAP_ADD", "DICT_MERGE"),
             ("BUILD_LIST", "BUILD_TUPLE", "BUILD_SET", "BUILD_STRING", "BUILD_MAP", "BUILD_SLICE"),
             ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
             ("UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT", "GET_ITER", "GET_YIELD_FROM_ITER", "GET_AITER", "FORMAT_SIMPLE", "NOP",
              "GET_LEN", "MATCH_MAPPING", "MATCH_SEQUENCE", "GET_ANEXT", "CONVERT_VALUE", "CALL_INTRINSIC_1"),
             ("POP_TOP", "END_FOR", "POP_ITER", "POP_EXCEPT", "RETURN_VALUE", "PUSH_NULL", "NOT_TAKEN", "END_SEND", "PUSH_EXC_INFO"),
             ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"), ("FOR_ITER", "SEND"), ("CALL", "CALL_KW"),
             ("COPY", "SWAP"), ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL", "LOAD_NAME"),
             ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST_BORROW", "LOAD_COMMON_CONSTANT", "PUSH_NULL"),
             ("BINARY_SLICE", "STORE_SLICE"), ("IS_OP", "DELETE_SUBSCR", "FORMAT_WITH_SPEC", "CALL_INTRINSIC_2", "CHECK_EXC_MATCH",
                                               "CHECK_EG_MATCH", "BUILD_TEMPLATE"))


def change_within_family(code, chance):
    family = chance.choice(_FAMILIES)
    picked = Layout(code).pick(chance, family)
    if not picked:
        return change_operand(code, chance)
    data = bytearray(code.co_code)
    data[picked[0]] = _op(chance.choice(family))
    return {"co_code": bytes(data)}


def change_local(code, chance):
    """Another local for an instruction that names one: the definite-assignment and borrowing rules."""
    layout = Layout(code)
    picked = layout.pick(chance, _FAMILIES[0]) if chance.random() < 0.6 else layout.pick(chance, _FAMILIES[1])
    if not picked:
        return change_operand(code, chance)
    count = max(1, code.co_nlocals + len(code.co_cellvars) + len(code.co_freevars))
    data = bytearray(code.co_code)
    place = picked[0] + 1
    data[place] = chance.randrange(count) if picked[2] == 2 and chance.random() < 0.7 else chance.randrange(min(count, 16)) << 4 | data[place] & 15
    return {"co_code": bytes(data)}


def swap_operands(code, chance):
    layout = Layout(code)
    first = layout.pick(chance)
    import dis
    second = layout.pick(chance, {dis.opname[first[1]]} if chance.random() < 0.7 else None)
    data = bytearray(code.co_code)
    a, b = first[0] + 1, second[0] + 1
    data[a], data[b] = data[b], data[a]
    return {"co_code": bytes(data)}


def blank_instruction(code, chance):
    """NOPs in place of an instruction: nothing moves, only its effect is missing."""
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    data[offset:offset + width] = bytes((_op("NOP"), 0)) * (width // 2)
    return {"co_code": bytes(data)}


def remove_instruction(code, chance):
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    del data[offset:offset + width]
    return {"co_code": bytes(data)}


def duplicate_instruction(code, chance):
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    data[offset:offset] = data[offset:offset + width]
    return {"co_code": bytes(data)}


def overwrite_instruction(code, chance):
    """One instruction copied over another of the same width."""
    layout = Layout(code)
    source = layout.pick(chance)
    fitting = [each for each in layout.found if each[2] == source[2]]
    target = chance.choice(fitting)
    data = bytearray(code.co_code)
    data[target[0]:target[0] + target[2]] = data[source[0]:source[0] + source[2]]
    return {"co_code": bytes(data)}


def swap_neighbours(code, chance):
    layout = Layout(code)
    place = chance.randrange(len(layout.found))
    if place + 1 == len(layout.found):
        return change_operand(code, chance)
    (a, _, first), (b, _, second) = layout.found[place:place + 2]
    data = bytearray(code.co_code)
    data[a:b + second] = data[b:b + second] + data[a:a + first]
    return {"co_code": bytes(data)}


def change_constants(code, chance):
    constants = list(code.co_consts)
    if not constants:
        return change_operand(code, chance)
    place = chance.randrange(len(constants))
    how = chance.randrange(4)
    if how == 0:
        other = chance.randrange(len(constants))
        constants[place], constants[other] = constants[other], constants[place]
    elif how == 1:
        constants[place] = chance.choice((None, 0, -1, 2 ** 70, 1.5, "text", b"x", (), (1, 2), ("a",), ("b", "c"), True, ...,
                                          frozenset({1}), 3j, slice(1, 2, None)))
    elif how == 2:
        constants[place] = chance.choice(([], {}, object(), int, ("a", [1]), bytearray(b"x")))
    else:
        constants.pop(place)
    return {"co_consts": tuple(constants)}


def change_names(code, chance):
    names = list(code.co_names)
    if not names:
        return change_operand(code, chance)
    place, other = chance.randrange(len(names)), chance.randrange(len(names))
    how = chance.randrange(3)
    if how == 0:
        names[place], names[other] = names[other], names[place]
    elif how == 1:
        names[place] = chance.choice(("append", "x", "__class__", "range", "__dict__", "f", "len", "__conditional_annotations__"))
    else:
        names.pop(place)
    return {"co_names": tuple(names)}


def change_variables(code, chance):
    field = chance.choice(("co_varnames", "co_cellvars", "co_freevars"))
    names = list(getattr(code, field))
    how = chance.randrange(4)
    if how == 0 and names:
        place, other = chance.randrange(len(names)), chance.randrange(len(names))
        names[place], names[other] = names[other], names[place]
    elif how == 1 and names:
        names[chance.randrange(len(names))] = chance.choice(("x", "other", ".0", ".defaults", ".type_params", "__class__", "self"))
    elif how == 2 and names:
        names.pop(chance.randrange(len(names)))
    else:
        names.insert(chance.randrange(len(names) + 1), "added")
    changes = {field: tuple(names)}
    if field == "co_varnames":
        changes["co_nlocals"] = len(names)
    return changes


def change_counts(code, chance):
    field = chance.choice(("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals"))
    return {field: max(0, getattr(code, field) + chance.choice((-1, 1, 2)))}


def change_flags(code, chance):
    return {"co_flags": code.co_flags ^ 1 << chance.randrange(28)}


def change_stack_size(code, chance):
    return {"co_stacksize": max(0, code.co_stacksize + chance.choice((-2, -1, 1, 5, 100, 10 ** 4, 10 ** 8)))}


def change_exception_table(code, chance):
    table = bytearray(code.co_exceptiontable)
    if not table:
        table = bytearray((0x80 | chance.randrange(8), chance.randrange(1, 8), chance.randrange(min(64, len(code.co_code) // 2)),
                           chance.randrange(6)))
        return {"co_exceptiontable": bytes(table)}
    how = chance.randrange(4)
    place = chance.randrange(len(table))
    if how == 0:
        table[place] ^= 1 << chance.randrange(8)
    elif how == 1:
        table[place] = table[place] & 0xC0 | (table[place] + chance.choice((-1, 1, 2, -2))) & 0x3F
    elif how == 2:
        del table[place:]
    else:
        heads = [i for i, byte in enumerate(table) if byte & 0x80] + [len(table)]
        entry = chance.randrange(len(heads) - 1)
        if chance.random() < 0.5:
            del table[heads[entry]:heads[entry + 1]]
        else:
            table[heads[entry]:heads[entry]] = table[heads[entry]:heads[entry + 1]]
    return {"co_exceptiontable": bytes(table)}


def change_line_table(code, chance):
    table = bytearray(code.co_linetable)
    place = chance.randrange(len(table))
    if chance.random() < 0.7:
        table[place] ^= 1 << chance.randrange(8)
    else:
        del table[place:]
    return {"co_linetable": bytes(table)}


MUTATIONS = (
    (flip_code_bit, 10), (change_operand, 12), (change_opcode, 8), (change_within_family, 16), (change_local, 14), (swap_operands, 8),
    (blank_instruction, 7), (remove_instruction, 3), (duplicate_instruction, 2), (overwrite_instruction, 8), (swap_neighbours, 5),
    (change_constants, 6), (change_names, 4), (change_variables, 5), (change_counts, 4), (change_flags, 4), (change_stack_size, 3),
    (change_exception_table, 10), (change_line_table, 3),
)
_KINDS, _WEIGHTS = zip(*MUTATIONS)
_FIELDS = ("co_code", "co_consts", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_argcount", "co_posonlyargcount",
           "co_kwonlyargcount", "co_nlocals", "co_flags", "co_stacksize", "co_exceptiontable", "co_linetable")


def load_specimens():
    """[(name, code of the module)]: the small ones, then those of the library."""
    small = [(path.stem, compile(path.read_bytes(), f"specimens/{path.name}", "exec", dont_inherit=True, optimize=level))
             for path in sorted(SPECIMENS.glob("*.py")) for level in (0, 2)]
    library = []
    for name in LIBRARY:
        path = Path(os.__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
        if not path.exists():
            path = path.with_suffix("") / "__init__.py"
        library.append((name, compile(path.read_bytes(), f"library/{name}", "exec", dont_inherit=True, optimize=0)))
    return small, library


def mutant(specimens, seed, index):
    """(name, [what was done], module code or marshalled bytes); None in the last place where a field can't be changed so."""
    chance = random.Random(f"{seed}:{index}")
    small, library = specimens
    name, module = chance.choice(library) if chance.random() < LIBRARY_SHARE else chance.choice(small)
    if chance.random() < 0.05:  # damage to the marshalled form, as in a bundle that was signed after it
        data = bytearray(marshal.dumps(module))
        if chance.random() < 0.3:  # another reference: to itself, to what is not there yet, to another kind of object
            places = [place for place in range(len(data) - 5) if data[place] == ord("r") and data[place + 3:place + 5] == b"\0\0"]
            data[chance.choice(places) + 1] = chance.randrange(64) if chance.random() < 0.7 else chance.randrange(4)
            return name, ["change_marshalled_reference"], bytes(data)
        for _ in range(chance.choice((1, 1, 2))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return name, ["flip_marshalled_bit"], bytes(data)
    places = code_objects(module)
    path, code = chance.choice(places[1:] if len(places) > 1 and chance.random() < 0.9 else places)
    # A draft, not a code object, between two mutations: reading co_code of one that ends inside an inline cache writes
    # past its buffer (CPython 3.14.8), and here that would be this process's memory.
    draft = types.SimpleNamespace(**{field: getattr(code, field) for field in _FIELDS})
    done, changes = [], {}
    for _ in range(chance.choices((1, 2, 3), (7, 2, 1))[0]):
        kind = chance.choices(_KINDS, _WEIGHTS)[0]
        done.append(kind.__name__)
        try:
            changes |= kind(draft, chance)
        except (IndexError, ValueError):
            return name, done, None  # an earlier mutation left nothing to change
        vars(draft).update(changes)
    try:
        return name, done, replaced(module, path, code.replace(**changes))
    except (ValueError, TypeError, SystemError, OverflowError):
        return name, done, None  # code.replace refuses


# -- running what was accepted

class TooLong(BaseException):
    """A mutant has had its time."""


_ALLOWED_IMPORTS = frozenset({"math", "re", "itertools", "functools", "operator", "collections", "types", "_weakref", "_json", "_heapq",
                              "_bisect", "numbers", "decimal", "fractions", "random", "bisect", "weakref", "copyreg", "json", "enum",
                              "json.scanner", "json.decoder", "html.entities", "html", "string.templatelib", "_string", "sys_is_not"})
_REMOVED = ("open", "input", "exec", "eval", "compile", "breakpoint", "exit", "quit", "help", "print", "license", "credits", "copyright",
            "memoryview")


def _safe_import(name, namespace=None, local=None, fromlist=(), level=0):
    if level or type(name) is not str or name.partition(".")[0] not in _ALLOWED_IMPORTS:
        raise ImportError(name)
    return __import__(name, None, None, fromlist if type(fromlist) is tuple else (), 0)


def _safe_builtins():
    safe = {name: value for name, value in vars(builtins).items() if name not in _REMOVED}
    safe["__import__"] = _safe_import
    safe["print"] = lambda *values, **named: None
    return safe


_ARGUMENTS = ((1, 2, 3, 4, 5, 6), ("ab", "c", "d", "e", "f", "g"), ([3, 1, 2], (1, 2), {"a": 1}, 2, "x", None),
              (None, 1.5, b"x", 3j, ..., {1}))


def _drive(value, depth=0):
    """Pulls at what a function gave: iterators, coroutines, asynchronous iterators, functions."""
    kind = type(value)
    if kind is types.GeneratorType or kind is types.CoroutineType:
        for step in range(6):
            value.send(None)
        if depth % 2:
            value.throw(ValueError("thrown"))
        value.close()
    elif kind is types.AsyncGeneratorType:
        for _ in range(4):
            step = value.asend(None)
            try:
                step.send(None)
            except StopIteration:
                pass
        value.aclose().send(None)
    elif kind is types.FunctionType and depth < 2:
        _call(value, depth + 1)
    else:
        repr(value)


def _look_at(error):
    """Reads what tools read of frames and code after an error."""
    trace = error.__traceback__
    for _ in range(20):
        if trace is None:
            break
        frame = trace.tb_frame
        trace.tb_lineno, frame.f_lineno, frame.f_lasti
        for name, value in frame.f_locals.items():
            type(value)
        list(frame.f_code.co_positions()), list(frame.f_code.co_lines())
        trace = trace.tb_next


def _call(function, depth=0):
    code = function.__code__
    wanted = code.co_argcount
    named = dict.fromkeys(code.co_varnames[wanted:wanted + code.co_kwonlyargcount], 1) if code.co_kwonlyargcount < 20 else {}
    for round_ in range(10 if depth == 0 else 2):  # often enough for the interpreter to specialise instructions
        arguments = _ARGUMENTS[round_ % len(_ARGUMENTS) if round_ > 5 else 0][:wanted]
        try:
            _drive(function(*arguments, **named), depth + round_)
        except TooLong:
            raise
        except BaseException as error:
            _look_at(error)


def exercise(module, traced):
    """Runs a module's code, then calls every function and method it defines. May crash: that is the question."""
    namespace = {"__name__": "specimen", "__builtins__": _safe_builtins(), "__file__": "specimen.py"}
    if traced:
        sys.settrace(lambda frame, event, argument: _tracer)
    try:
        try:
            exec(module, namespace)
        except TooLong:
            raise
        except BaseException as error:
            _look_at(error)
        for value in list(namespace.values()):
            if type(value) is types.FunctionType:
                _call(value)
            elif isinstance(value, type) and value.__module__ == "specimen":
                try:
                    instance = value()
                except TooLong:
                    raise
                except BaseException:
                    instance = value
                for name, member in list(vars(value).items()):
                    if type(member) is types.FunctionType:
                        _call(member)
                        try:
                            getattr(instance, name)()
                        except TooLong:
                            raise
                        except BaseException as error:
                            _look_at(error)
    finally:
        sys.settrace(None)
    for _, code in code_objects(module):
        list(code.co_positions()), list(code.co_lines()), list(code.co_branches()), hash(code), marshal.dumps(code)


def _tracer(frame, event, argument):
    return _tracer


def _alarm(signum, frame):
    _alarm.count += 1
    if _alarm.count * 0.05 > _GIVE_UP_S:
        os._exit(_STUCK_STATUS)
    raise TooLong


_LIMITS = ((resource.RLIMIT_AS, 2 << 30), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CPU, 4),
           (resource.RLIMIT_NPROC, 0))


def _run_in_child(module, traced, verified):
    """The child's whole life. `module` is code, or marshalled bytes: read and verified here, since reading may crash too."""
    for what, amount in _LIMITS:
        resource.setrlimit(what, (amount, amount))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 64)
    status = 0
    try:
        if type(module) is bytes:
            try:
                module = load(module, where="mutant") if verified else marshal.loads(module)
                if verified:
                    verify(module, where="mutant")
            except VerifyError:
                os._exit(2)
            except (ValueError, TypeError, EOFError, SystemError, MemoryError, OverflowError, RecursionError):
                os._exit(3)
        _alarm.count = 0
        signal.signal(signal.SIGALRM, _alarm)
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S, 0.05)
        try:
            exercise(module, traced)
        except TooLong:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        module = None
        gc.collect()
    except BaseException:
        status = 0  # errors are as good as results: only a crash counts
    os._exit(status)


def run_accepted(module, traced, verified=True):
    """Runs a module's code in a child; gives RAN, STUCK, REJECTED, UNREADABLE or the name of the signal that killed it.

    With `verified` false, marshalled bytes run unverified: to see that what crashed still would.
    """
    child = os.fork()
    if child == 0:
        _run_in_child(module, traced, verified)
    deadline = time.monotonic() + 30
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.0005)
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        return STUCK if killer in _LIMIT_SIGNALS else signal.Signals(killer).name
    return {_STUCK_STATUS: STUCK, 2: REJECTED, 3: UNREADABLE}.get(os.WEXITSTATUS(status), RAN)


def judge(specimens, seed, index):
    """(name, what was done, outcome) of one mutant."""
    name, done, module = mutant(specimens, seed, index)
    if module is None:
        return name, done, UNREADABLE
    if type(module) is not bytes:
        try:
            verify(module, where="mutant")
        except VerifyError:
            return name, done, REJECTED
    return name, done, run_accepted(module, traced=index % 4 == 0)


# -- counting

def work(seed, indices, output):
    """One worker: a line of JSON for every mutant."""
    specimens = load_specimens()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        gc.freeze()
        for index in indices:
            name, done, outcome = judge(specimens, seed, index)
            print(json.dumps([index, name, done, outcome]), file=output, flush=outcome not in (REJECTED, RAN))
        output.flush()
        os.chdir("/")


def judge_files(paths, verified):
    """Prints a line of JSON, [file name, outcome], for each mutant that `keep` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        files = [(Path(path).name, base64.decodebytes(Path(path).read_bytes().partition(b"\n")[2])) for path in paths]
        os.chdir(folder)
        for name, data in files:
            print(json.dumps([name, run_accepted(data, False, verified)]), flush=True)
        os.chdir("/")


def keep(seed, index):
    """Writes a mutant that crashed to `tests/crashers/`; returns the path."""
    name, done, module = mutant(load_specimens(), seed, index)
    data = module if type(module) is bytes else marshal.dumps(module)
    version = "{}.{}".format(*sys.version_info[:2])
    path = CRASHERS / f"verifier-{version}-{seed}-{index}.txt"
    path.parent.mkdir(exist_ok=True)
    lines = base64.encodebytes(data).decode()
    path.write_text(f"# marshalled module {name}, mutated by {', '.join(done)}; crashes Python {version} when it runs unverified\n{lines}")
    return path


def start(arguments, **streams):
    """This program in a process of its own, with the allocator's checks on; a Popen."""
    environment = os.environ | {"PYTHONMALLOC": "debug", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-m", "tests.properties.verifier_mutations", *arguments], cwd=ROOT, env=environment, **streams)


def measure(seed, count, jobs):
    """Judges `count` mutants in `jobs` workers; returns {outcome: number}, {mutation: [accepted, all]} and the crashes."""
    workers = []
    for job in range(jobs):
        output = tempfile.TemporaryFile("w+")
        arguments = ["--worker", f"{job}:{jobs}", "--count", str(count), "--seed", str(seed)]
        workers.append((start(arguments, stdout=output), output))
    outcomes, kinds, crashes, failed = {}, {}, [], []
    for process, output in workers:
        if process.wait():
            failed.append(process.returncode)
        output.seek(0)
        for line in output:
            index, name, done, outcome = json.loads(line)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if len(done) == 1:
                accepted = kinds.setdefault(done[0], [0, 0])
                accepted[0] += outcome not in (REJECTED, UNREADABLE)
                accepted[1] += 1
            if outcome not in (REJECTED, RAN, STUCK, UNREADABLE):
                crashes.append((index, name, done, outcome))
        output.close()
    if failed:
        raise RuntimeError(f"workers ended with status {failed}")
    return outcomes, kinds, crashes


def report(seed, outcomes, kinds, crashes):
    """The lines that say what was found."""
    total = sum(outcomes.values())
    crashed = len(crashes)
    ran = outcomes.get(RAN, 0) + outcomes.get(STUCK, 0) + crashed
    yield (f"seed {seed}: {total} mutants, {outcomes.get(REJECTED, 0)} rejected, {outcomes.get(UNREADABLE, 0)} not even made, "
           f"{ran} accepted and run ({100 * ran / max(1, total):.1f} %), {outcomes.get(STUCK, 0)} of these stopped by their limits, "
           f"{crashed} crashed")
    for kind, (accepted, all_) in sorted(kinds.items()):
        yield f"    {kind:24} {accepted:6} of {all_:6} accepted"
    for index, name, done, outcome in crashes:
        yield f"    CRASH {outcome} mutant {index} of {name}: {', '.join(done)}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Mutates code objects, verifies them, and runs what is accepted.")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="judge this one mutant, and disassemble the code object that was changed")
    parser.add_argument("--files", nargs="+", help="judge mutants that were kept in these files")
    parser.add_argument("--unverified", action="store_true", help="with --files: run them without asking the verifier")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        job, jobs = map(int, options.worker.split(":"))
        work(options.seed, range(job, options.count, jobs), sys.stdout)
        return 0
    if options.files:
        judge_files(options.files, not options.unverified)
        return 0
    if options.only is not None:
        specimens = load_specimens()
        name, done, outcome = judge(specimens, options.seed, options.only)
        print(f"mutant {options.only} of {name}: {', '.join(done)}: {outcome}")
        show_difference(specimens, options.seed, options.only)
        return 0
    begun = time.monotonic()
    outcomes, kinds, crashes = measure(options.seed, options.count, options.jobs)
    for line in report(options.seed, outcomes, kinds, crashes):
        print(line)
    for index, *_ in crashes[:20]:
        print("    kept in", keep(options.seed, index).relative_to(ROOT))
    print(f"    {time.monotonic() - begun:.0f} s")
    return 1 if crashes else 0


def show_difference(specimens, seed, index):
    """Prints how the changed code object differs from its original."""
    import difflib
    import dis
    import io
    name, _, module = mutant(specimens, seed, index)
    if module is None or type(module) is bytes:
        return
    original = next(code for one, code in specimens[0] + specimens[1] if one == name and code.co_flags == module.co_flags
                    and len(code_objects(code)) == len(code_objects(module)))

    def text(code):
        out = io.StringIO()
        dis.dis(code, depth=0, file=out)
        fields = [f"{field}={getattr(code, field)!r}" for field in dir(code) if field.startswith("co_") and field not in (
            "co_code", "co_consts", "co_lines", "co_positions", "co_branches", "co_linetable", "co_lnotab")]
        return (out.getvalue().splitlines() + fields)
    for (_, old), (_, new) in zip(code_objects(original), code_objects(module)):
        if old.replace(co_consts=()) != new.replace(co_consts=()) or not inspect.iscode(new):
            print("\n".join(difflib.unified_diff(text(old), text(new), old.co_qualname, new.co_qualname, lineterm="", n=6)))


if __name__ == "__main__":
    sys.exit(main())
