"""Attempts of a task to falsify the report of its error: exceptions whose every part fails, lies or never ends, and a
forged guest runtime.

Each function takes one value and is run in a VM of its own. Used by test_forged_errors.py, for tasks and for
VMExecutor."""

import builtins
import sys


class Unhashable(type):
    __hash__ = None

    def __eq__(cls, other):
        raise RuntimeError("never compared")


class Sub(str):
    __slots__ = ()


def error_with(base=Exception, **attributes):
    return type("Hostile", (base,), attributes)


def raises(error):
    def part(*_):
        raise error

    return part


def text_raises(value):
    raise error_with(__str__=raises(ValueError("in str")))("x")


def text_exits(value):
    raise error_with(__str__=raises(SystemExit(3)))("x")


def text_interrupts(value):
    raise error_with(__str__=raises(KeyboardInterrupt()))("x")


def text_raises_itself(value):
    def text(self):
        raise self

    raise error_with(__str__=text, __repr__=text)("x")


def text_is_no_text(value):
    raise error_with(__str__=lambda self: 5)("x")


def text_is_of_a_subclass(value):
    raise error_with(__str__=lambda self: Sub("said"))("x")


def text_is_half_a_character(value):
    raise ValueError("a lone \udc80 surrogate")


def text_is_large(value):
    raise error_with(__str__=lambda self: "x" * 20_000_000)("x")


def arguments_raise(value):
    raise error_with(args=property(raises(ValueError("in args"))))("x")


def arguments_interrupt(value):
    raise error_with(ValueError, args=property(raises(KeyboardInterrupt())))("x")


def arguments_change(value):
    answers = iter([("x",), 5, None])
    raise error_with(args=property(lambda self: next(answers)))("x")


def arguments_are_large(value):
    raise ValueError("x" * 5_000_000, b"y" * 5_000_000)


def argument_is_a_large_int(value):
    raise ValueError(1 << 1_000_000)


def arguments_are_many(value):
    raise ValueError(*range(100_000))


def chain_raises(value):
    raise error_with(
        __cause__=property(raises(ValueError("in cause"))),
        __context__=property(raises(SystemExit())),
        __suppress_context__=property(raises(SystemExit())),
        __traceback__=property(raises(GeneratorExit())),
    )("x")


def chain_is_long(value):
    error = None
    for number in range(10_000):
        newest = ValueError(number)
        newest.__cause__ = error
        error = newest
    raise error


def chain_is_a_ring(value):
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def notes_raise(value):
    raise error_with(__notes__=property(raises(KeyboardInterrupt())))("x")


def notes_are_many(value):
    error = ValueError("x")
    error.__notes__ = ["note " * 1000] * 100_000 + [Sub("y"), 5]
    raise error


def name_raises(value):
    class Meta(type):
        __qualname__ = property(raises(SystemExit()))
        __module__ = property(raises(SystemExit()))

    raise Meta("Hostile", (Exception,), {})("x")


def name_is_large(value):
    raise type("N" * 3_000_000, (Exception,), {})("x")


def type_is_unhashable(value):
    raise Unhashable("Hostile", (Exception,), {})("x")


def group_is_deep(value):
    def nested(depth):
        return ExceptionGroup("m" * 100, [nested(depth - 1) if depth else ValueError(depth)] * 15)

    raise nested(6)


def group_lies(value):
    class Lies(ExceptionGroup):
        exceptions = property(raises(SystemExit()))

    raise Lies("x", [ValueError("y")])


def says_that_it_is_builtin(value):
    text = "[Errno 2] x: [" + "0," * 2_000_000 + "]"
    raise error_with(OSError, __module__="builtins", __qualname__="OSError", __str__=lambda self: text)(2, "x")


def exits(value):
    raise SystemExit(0)


def interrupts(value):
    raise KeyboardInterrupt


def ends_a_generator(value):
    raise GeneratorExit


def raises_no_exception(value):
    raise BaseExceptionGroup("x", [SystemExit(1), KeyboardInterrupt()])


def raises_a_base(value):
    raise error_with(BaseException)("x")


def stops_itself(value):
    from vmhost.guest import Stopped

    raise Stopped


def thread_dies(value):
    import threading

    thread = threading.Thread(target=text_exits, args=(None,))
    thread.start()
    thread.join()
    raise ValueError("after a thread")


def without_modules(value):
    sys.modules.clear()
    raise ValueError("no modules")


def without_builtins(value):
    names = dict(vars(builtins))
    error = ValueError("no builtins")
    vars(builtins).clear()
    try:
        raise error
    finally:
        vars(builtins).update(__build_class__=names["__build_class__"])


def forged(**attributes):
    boot = sys.modules["vmhost.guest.boot"]
    for name, part in attributes.items():
        setattr(boot, name, part)
    raise ValueError("forged")


def format_gives_an_int(value):
    forged(_format=lambda *_: 5, _traceback_of=lambda *_: 5)


def format_raises(value):
    forged(
        _format=raises(SystemExit()),
        _traceback_of=raises(SystemExit()),
        _careful=lambda otherwise, function, *args: function(*args),
    )


def message_is_a_large_int(value):
    forged(_message=lambda error: 1 << 10_000_000)


def names_are_none(value):
    forged(_text=lambda *_: None, _message=lambda error: None)


def all_parts_are_lists(value):
    forged(
        _text=lambda *_: [1],
        _message=lambda error: [[2]],
        _plain_args=lambda error: [[3], {}],
        _notes=lambda error: {"a": 4},
        _chain=lambda error: [5, {"type": 6}],
        _attributes=lambda error: [7],
        _traceback_of=lambda error: {8},
    )


def arguments_are_forged(value):
    forged(_plain_args=lambda error: ["utf-8", b"x", 1 << 70, 2, "y"], _text=lambda *_: "UnicodeDecodeError")


def group_of_nothing_is_forged(value):
    forged(_plain_args=lambda error: ["x", ""], _text=lambda *_: "ExceptionGroup")


def syntax_error_is_forged(value):
    forged(_plain_args=lambda error: ["x", "abcd"], _text=lambda *_: "SyntaxError")


def report_has_memory(value):
    forged(_notes=lambda error: [memoryview(bytes(1000))])


def report_is_large(value):
    forged(_notes=lambda error: ["x" * 3_000_000] * 3)


FUNCTIONS = [
    value
    for value in list(vars().values())
    if getattr(value, "__code__", None) is not None
    and value.__code__.co_varnames[: value.__code__.co_argcount] == ("value",)
]


# Helpers of these functions.


def vars_of(error):
    return [getattr(error, name, None) for name in ("filename", "filename2", "name", "path")]


def raise_again(name, args, attributes):
    import builtins

    error = getattr(builtins, name)(*args)
    for key, value in zip(("filename", "filename2", "name", "path"), attributes):
        if value is not None:
            setattr(error, key, value)
    error.add_note("noted")
    raise error


def large_arguments(_):
    raise ValueError("x" * 1_000_000)


def over_nothing(_):
    import vmhost.guest.executor as executor

    executor._over_rows = lambda function: lambda rows, keywords: ([1], None)
    return 1


def over_a_number(_):
    import vmhost.guest.executor as executor

    executor._over_rows = lambda function: lambda rows, keywords: 5
    return 1


def over_a_lying_report(_):
    import vmhost.guest.executor as executor

    executor._over_rows = lambda function: lambda rows, keywords: ([], {"type": 5, "args": "abc", "builtin": True})
    return 1


def nothing(_):
    return None
