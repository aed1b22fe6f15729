"""Uses the standard library where it compiles text, or did. Prints the same in CPython and in a sealed process."""

import annotationlib
import ast
import collections
import concurrent.futures
import configparser
import contextlib
import copy
import datetime
import decimal
import enum
import functools
import gettext
import inspect
import io
import json
import logging
import logging.config
import logging.handlers
import re
import sqlite3
import statistics
import threading
import traceback
import types
import typing
import unittest.mock
import urllib.parse
import warnings


def attempt(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return type(error).__name__, str(error)


def show(*values):
    print(re.sub(" at 0x[0-9a-f]+", " at 0x", " ".join(map(repr, values))))


class Shape(enum.Flag):
    ROUND = enum.auto()
    FLAT = enum.auto()


class Tree:
    left: "Tree | None"
    right: "typing.Optional[Tree]"
    values: "list[int]"
    key: "typing.Literal['a', 'b\\n', -1]"
    unknown: "NoSuchName | int"
    call: "typing.Callable[..., typing.Annotated[int, range(3), {'k': (1, 2)}]]"

    def method(self, other: "Tree", *rest: "int", **named: "Missing") -> "list[Tree]":
        pass


class Known:
    a: "int"
    b: "typing.Optional['Known']"
    c: "tuple[int, ...]"


def unpacking[*Ts](*rest: "*Ts", one: "tuple[*Ts]" = None) -> "*tuple[int, ...]":
    pass


def generic[T: "int"](a: "T", b: "list[T]") -> "dict[str, T]":
    pass


class Wrong:
    a: "1 +"


def annotations():
    for one in (Tree, Known, Wrong, Tree.method, unpacking, generic):
        show(
            one.__name__,
            attempt(typing.get_type_hints, one),
            attempt(inspect.get_annotations, one, eval_str=True),
            attempt(inspect.signature, one, eval_str=True),
            attempt(typing.get_type_hints, one, {"Missing": int, "NoSuchName": str}),
        )
        for format in annotationlib.Format:
            show(format, attempt(annotationlib.get_annotations, one, format=format))
    for text in (
        "int",
        "int | None",
        "list['int']",
        "a b",
        "",
        " int",
        "typing.List[int]",
        "x.y.z",
        "1 + 2",
        "*Ts",
        "not_defined[int]",
        "int\n",
        "typing.Union[int, str]",
        "(int)",
        "Tree.method",
        "{'a': 1}['a']",
        "None",
        "class",
    ):
        reference = attempt(annotationlib.ForwardRef, text)
        show(text, reference, attempt(typing.Optional.__getitem__, text), attempt(lambda: list[text]))
        for format in annotationlib.Format:
            show(attempt(lambda: reference.evaluate(globals=globals(), format=format)))
    show(
        attempt(
            lambda: typing.get_type_hints(type("C", (), {"__annotations__": {"a": typing.Optional["Tree"]}}), globals())
        )
    )

    class Late:
        a: Later
        b: list[Later | int]
        c: Later.inner[3:4, "x"](1, k=None) + 1
        d: {Later: [1, (2, Later)], "k": -Later}
        e: not_there if Later else 3

    for format in annotationlib.Format:
        show(attempt(annotationlib.get_annotations, Late, format=format))
    show(
        attempt(
            lambda: annotationlib.get_annotations(Late, format=annotationlib.Format.FORWARDREF)["a"].evaluate(
                globals={"Later": 3}
            )
        )
    )
    type Alias = list[Later2]
    show(
        attempt(lambda: Alias.__value__),
        attempt(annotationlib.call_evaluate_function, Alias.evaluate_value, annotationlib.Format.STRING),
    )


def dispatch():
    @functools.singledispatch
    def kind(value):
        return "other"

    @kind.register
    def _(value: int):
        return "int"

    @kind.register
    def _(value: "str | bytes"):
        return "text"

    show(kind(3), kind("x"), kind(b""), kind(2.5))

    @functools.lru_cache(maxsize=3)
    def square(x):
        return x * x

    show(
        [square(i) for i in (1, 2, 1)],
        square.cache_info(),
        functools.partial(square, 3)(),
        functools.reduce(lambda a, b: a + b, [1, 2]),
    )

    @functools.total_ordering
    class Ordered:
        def __init__(self, x):
            self.x = x

        def __lt__(self, other):
            return self.x < other.x

    show(Ordered(1) >= Ordered(0))


def literals():
    for text in (
        "1",
        "-1",
        "+2.5",
        "1+2j",
        "'a' 'b'",
        "b'x'",
        "[1, (2,), {3: {4}}, None, True, ...]",
        " \t1",
        "set()",
        "a",
        "1 + 1",
        "f'x'",
        "(",
        "",
        "f()",
        "{**{}}",
        "[*a]",
        "1_000",
        "'\\x41\\n'",
        "-'a'",
        "1 if 2 else 3",
        "1\n",
        "{1: 2, 'a': [b'c']}",
        "lambda: 1",
    ):
        found = attempt(ast.literal_eval, text)
        if isinstance(found, tuple) and (found[0] == "SyntaxError" or "lambda" in text or "f'" in text):
            found = found[0]  # the message tells where the parser was, which differs
        show(text, found)


def signatures():
    for one in (
        len,
        print,
        dict.get,
        "".split,
        int,
        object,
        sorted,
        re.compile,
        datetime.datetime.now,
        datetime.date,
        sqlite3.connect,
        list.sort,
        collections.deque,
        collections.OrderedDict.move_to_end,
        Exception,
        type,
        super,
        open,
        json.dumps,
        functools.partial(int, base=2),
        memoryview,
        io.BytesIO.read,
        staticmethod,
        enum.Enum,
        Shape,
        decimal.Decimal,
        collections.namedtuple,
    ):
        show(getattr(one, "__name__", str(one)), attempt(inspect.signature, one))


def plurals():
    for form in (
        "n != 1",
        "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2",
        "(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2",
        "0",
        "n / 3 + 2 * (n - 1)",
        "!n",
        "n % 0",
        "n + 1 ? n : 2 || !n && n < 3 == 1",
        "n ? ",
        "x",
        "n" * 2000,
        "(" * 30 + "n" + ")" * 30,
        "",
        "1 < 2 < n",
    ):
        function = attempt(gettext.c2py, form)
        show(
            form[:40],
            function
            if isinstance(function, tuple)
            else (
                function.__name__,
                [attempt(function, n) for n in (*range(13), 21, 22, 101, 111, 10**20, -1, True)],
                attempt(function, "x"),
            ),
        )


CONFIGURATION = """
[loggers]
keys=root,app
[handlers]
keys=out,memory,named
[formatters]
keys=plain,styled
[logger_root]
level=WARNING
handlers=out
[logger_app]
level=DEBUG
handlers=memory,named
qualname=app
propagate=0
[handler_out]
class=StreamHandler
args=(sys.stdout,)
formatter=plain
[handler_memory]
class=handlers.MemoryHandler
args=(10,)
kwargs={'flushLevel': CRITICAL, "target": None} if INFO < ERROR else {}
[handler_named]
class=NullHandler
level=INFO
[formatter_plain]
format=%(levelname)s %(message)s %(extra)s
defaults={"extra": ["x", -1]}
[formatter_styled]
format={message}
style={
"""


def logs():
    parser = configparser.RawConfigParser()
    parser.read_string(CONFIGURATION)
    logging.config.fileConfig(parser)
    logging.getLogger("other").warning("hello %s", 1)
    show(logging.getLogger("app").handlers, logging.getLogger().handlers[0].formatter._style._defaults)
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"f": {"format": "%(message)s!"}},
            "root": {"handlers": ["h"], "level": "INFO"},
            "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f", "stream": "ext://sys.stdout"}},
        }
    )
    logging.info("configured")


def coroutines():
    import asyncio

    @types.coroutine
    def pause():
        return (yield "paused")

    async def wait():
        return await pause()

    running = wait()
    show(running.send(None), attempt(running.send, 3), pause.__code__.co_flags, pause.__name__)

    async def main():
        results = await asyncio.gather(*(asyncio.sleep(0, i) for i in range(3)), asyncio.to_thread(sum, [1, 2]))
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.sleep(0.001, "done"))
        queue = asyncio.Queue()
        await queue.put(1)
        return (
            results,
            task.result(),
            await queue.get(),
            await asyncio.get_running_loop().run_in_executor(None, len, "abc"),
        )

    show(asyncio.run(main()))


def others():
    show(
        Shape.ROUND | Shape.FLAT,
        Shape["FLAT"],
        list(Shape),
        enum.Enum("Colour", "RED GREEN")["RED"],
        enum.StrEnum("S", {"A": "a"}).A,
    )
    show(
        urllib.parse.urlsplit("http://u@h:1/p?q#f"),
        urllib.parse.urlparse("x://y/;z")._replace(scheme="w").geturl(),
        urllib.parse.quote("ä/"),
    )
    show(
        statistics.linear_regression([1, 2, 3], [2, 4, 7]),
        statistics.NormalDist(3, 1).quantiles(),
        statistics.mode("aab"),
    )
    show(
        decimal.Decimal("1.10").as_tuple(),
        decimal.getcontext().prec,
        datetime.datetime(2020, 1, 2).isoformat(),
        datetime.timedelta(hours=3),
    )
    show(
        re.sub(r"(\w)(?P<x>\d)", r"\g<x>\1", "a1 b2"),
        json.loads(json.dumps({"a": [1, None, 2.5]})),
        json.dumps({1: "é"}, indent=1),
    )
    show(
        collections.Counter("aab"),
        collections.ChainMap({1: 2}, {3: 4}),
        collections.OrderedDict(a=1),
        collections.defaultdict(list),
    )
    with sqlite3.connect(":memory:") as database:
        database.row_factory = sqlite3.Row
        database.execute("create table t (a, b)")
        database.executemany("insert into t values (?, ?)", [(1, "x"), (2, "y")])
        show([tuple(row) for row in database.execute("select * from t")], sqlite3.sqlite_version_info > (3,))
    database.close()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        show(list(pool.map(str, range(3))), pool.submit(pow, 2, 3).result())

    @contextlib.contextmanager
    def manager():
        yield 3

    with manager() as three, contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.nullcontext())
        show(three, 1 / 0)
    thread = threading.Thread(target=show, args=("thread",))
    thread.start()
    thread.join()

    class Typed(typing.TypedDict, total=False):
        a: "int"
        b: typing.Required["str"]

    class Speaks(typing.Protocol):
        def speak(self) -> "str": ...

    T = typing.TypeVar("T", bound="int")

    class Box(typing.Generic[T]):
        item: T

    show(
        Typed(a=1),
        Typed.__required_keys__,
        typing.get_type_hints(Typed),
        Box[int],
        typing.get_args(Box["Later"]),
        T.__bound__,
        typing.NewType("N", int)(3),
    )
    show(typing.runtime_checkable(Speaks), isinstance(3, Speaks), copy.deepcopy({"a": [1]}), types.SimpleNamespace(a=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning)
    show([str(one.message) for one in caught])
    try:
        raise ValueError("bad") from KeyError("k")
    except ValueError as error:
        show([line for line in traceback.format_exception(error) if "File" not in line])
    show(traceback.format_exception_only(SyntaxError("invalid syntax", ("file.py", 1, 2, "x y z", 1, 3))))


def mocks():
    def add(a, b=2, *, c=3):
        return a + b + c

    import asyncio

    async def wait(a):
        return a

    made, waiting = (
        unittest.mock.create_autospec(add, return_value=7),
        unittest.mock.create_autospec(wait, return_value=8),
    )
    show(
        made(1, c=2),
        attempt(made),
        made.__name__,
        inspect.signature(made),
        made.mock_calls,
        asyncio.run(waiting(1)),
        waiting.await_count,
    )
    made.assert_called_once_with(1, c=2)


if __name__ == "__main__":
    for part in (mocks, annotations, dispatch, literals, signatures, plurals, logs, coroutines, others):
        print("####", part.__name__)
        part()
