"""A day of an order desk: most of the standard library that a task author reaches for."""
import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import itertools
import json
import logging
import logging.handlers
import operator
import queue
import random
import re
import sqlite3
import statistics
import string
import sys
import textwrap
import threading
import traceback
import typing
import urllib.parse
import uuid
import hashlib
import base64
import struct
import zlib
import csv
import heapq
import bisect
import fractions
import math
import pprint
import reprlib
import secrets
import types
import warnings
import weakref
import abc
import calendar
import difflib
import graphlib
import html
import ipaddress
import configparser
import tomllib
import email.message
import shlex
import fnmatch
import unicodedata
import xml.etree.ElementTree as ET
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, localcontext
from string.templatelib import Interpolation, Template

import annot
import model
from model import *
from model import Line, Side, Account

OUT = {}


def section(function):
    OUT[function.__name__] = function
    return function


def text_of(error):
    return without_sources("".join(traceback.format_exception(error)))


def without_sources(text):
    """A traceback as a VM can tell it: the names of the files, and no lines of theirs."""
    text = re.sub(r'File ".*?([^/"]+\.py)"', r'File "\1"', text)
    return re.sub(r'(?m)^((?:  \| )* *File .*)\n(?:(?:  \| )* {4,}.*\n)+', r"\1\n", text)


def refused(function, *arguments, **keywords):
    try:
        return "no error", repr(function(*arguments, **keywords))
    except BaseException as error:
        return type(error).__name__, str(error)


@section
def enums():
    return [
        list(Side), Side("buy"), str(Side.BUY), f"{Side.SELL:>6}", list(Rights), Rights.READ | Rights.TRADE,
        ~Rights.READ, Rights.ALL in Rights.ALL, refused(Rights, 64), Kept(9), Conform(7), refused(Side, "hold"),
        Level(99), refused(Level, 5), Planet.EARTH.gravity, [m.name for m in Planet], Planet.Outer,
        refused(setattr, Planet, "EARTH", 1), enum.Enum("Colour", "RED GREEN").RED,
        enum.IntEnum("Code", {"OK": 200}).OK + 1, Planet["MARS"].value, enum.verify,
        enum.global_enum_repr(Level.LOW), Rights.__members__.keys(), len(Rights), Level.LOW < Level.HIGH,
        inspect.signature(Planet),
    ]


@section
def tuples():
    p = Point(1)
    return [
        p, p._asdict(), p._replace(z=9), Point._fields, Point._field_defaults, Point._make([1, 2, 3]),
        refused(Point), refused(Point, 1, 2, 3, 4), refused(p._replace, q=1), Renamed._fields,
        Money(Decimal("1.10")) + Money(Decimal(2)), refused(operator.add, Money(1), Money(1, "USD")),
        Money.__annotations__, Money.__doc__, inspect.signature(Point), Point.__doc__, Point.x.__doc__,
        Point.__module__, copy.replace(p, y=5), collections.namedtuple("Late", ["a", "b"])(1, 2),
        refused(collections.namedtuple, "Bad", "a a"), refused(collections.namedtuple, "Bad", "1a"),
        typing.NamedTuple("Made", [("u", int), ("v", str)])(1, "x"), p == (1, 0, 0), hash(p) == hash((1, 0, 0)),
    ]


@section
def classes():
    a, b = Line("a", 2, Decimal("1.5")), Line("a", 1, Decimal("9"), discount=0.1, scale=3)
    match a:
        case Line(_, sku, quantity) if quantity > 5:
            matched = ("many", sku)
        case Line(sku=sku, quantity=2 | 3 as quantity):
            matched = ("few", sku, quantity)
    late = dataclasses.make_dataclass(
        "Late", [("x", int), ("y", int, dataclasses.field(default=5))], frozen=True,
        namespace={"s": lambda self: self.x + self.y})
    return [
        a, a < b, sorted([a, b]), a.total, b.total, hash(a) == hash(copy.copy(a)), refused(setattr, a, "sku", "b"),
        refused(setattr, a, "nope", 1), a.__slots__ if hasattr(a, "__slots__") else None, Line.__match_args__,
        inspect.signature(Line), dataclasses.asdict(a), dataclasses.astuple(b),
        dataclasses.replace(a, quantity=7, scale=1), matched,
        [(f.name, f.type, f.init, f.kw_only, dict(f.metadata), f.doc) for f in dataclasses.fields(Line)],
        Account("x"), Account("x") == Account("x"), hash(Account("x")) == hash(Account("x")), refused(Account),
        inspect.signature(Account), Child("k", 1), dataclasses.is_dataclass(Child), Child("k", 1) == Child("k", 1),
        Base("a", 2), Base.__type_params__, Child.__orig_bases__, late(1).s(), refused(late), late(1, 2),
        refused(setattr, late(1), "x", 2), Line.__doc__, weakref.ref(a)() is a, refused(Line, "a", 1, 2, (), 0.5),
        Line.__eq__(a, 5), refused(operator.lt, a, 5), refused(dataclasses.make_dataclass, "Bad", [("x", list, [])]),
        Account.__hash__ is not None,
    ]


@section
def typings():
    return [
        model.double(4), model.double("ab"), len(typing.get_overloads(model.double)),
        isinstance(Line("a"), model.Priced), isinstance(3, model.Priced), typing.get_type_hints(model.Stack.push),
        typing.get_type_hints(model.Line.__init__)["sku"], model.Shape.__required_keys__ == {"sides"},
        sorted(model.Shape.__optional_keys__), model.Shape(sides=3), refused(isinstance, {}, model.Shape),
        model.Stack[int], typing.get_args(model.Stack[int]), model.Stack().push(1).items, model.largest([3, 9, 2]),
        model.largest.__type_params__, model.Pairs.__value__, model.Pairs[int], typing.get_origin(dict[str, int]),
        typing.get_type_hints(model.largest), typing.Optional[int], int | None, typing.Literal["a", 1],
        typing.Callable[[int], str], typing.cast(int, "x"), refused(typing.get_type_hints, _bad),
        typing.NewType("Id", int)(5), typing.assert_type(1, int), refused(typing.assert_never, 1),
        typing.get_protocol_members(model.Priced), str(typing.Annotated[int, "x"]), typing.Unpack,
        typing.ParamSpec("P"), annot.show(), inspect.get_annotations(model.double, eval_str=True),
        typing.evaluate_forward_ref(typing.ForwardRef("list[int]"), globals={}),
    ]


def _bad(x: "NotDefinedAnywhere"):
    pass


@section
def functions():
    m = Mailer(2.5)

    @functools.singledispatch
    def show(x):
        return "object"

    @show.register
    def _(x: int | float):
        return "number"

    @show.register(collections.abc.Sequence)
    def _(x):
        return "sequence"

    @functools.lru_cache(maxsize=2, typed=True)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.wraps(fib)
    def wrapped(*a):
        return fib(*a)
    return [
        m.slow is m.slow, m.handle(3), m.handle([1]), m.handle("x"), m.twice(), Registry.known, Mailer.topic,
        Mailer.made_by, refused(setattr, m, "rate", "x"), show(1), show(1.5), show("a"), show({}), fib(20),
        fib.cache_info(), wrapped.__wrapped__ is fib, Version("1.2") >= Version("1.10"),
        max(map(Version, ["1.2", "1.10"])).parts, functools.reduce(operator.mul, range(1, 6)),
        functools.partial(pow, 2)(5), functools.partial(pow, functools.Placeholder, 2)(5),
        functools.cmp_to_key(lambda a, b: b - a)(1) < functools.cmp_to_key(lambda a, b: b - a)(0),
        inspect.signature(m.twice), inspect.signature(wrapped), inspect.signature(Mailer.scale),
        repr(functools.partial(int, base=2)), inspect.signature(int.from_bytes), inspect.signature(sorted),
    ]


@section
def texts():
    name, n = "Ada", 3
    t = t"Hello {name!r:>8}, {n + 1:03d}!"
    pieces = [part if isinstance(part, str) else (part.value, part.expression, part.conversion, part.format_spec)
              for part in t]
    return [
        pieces, t.strings, t.values, type(t).__name__, isinstance(t, Template),
        string.Template("$who owes ${what}").safe_substitute(who="Bo"),
        refused(string.Template("$x $").substitute, x=1),
        re.sub(r"(?P<y>\d{4})-(\d\d)", lambda m: f"{m['y']}/{m[2]}", "2026-11"),
        re.findall(r"(?i)\b[a-z]{3}\b", "The cat sat"), re.compile(r"(a)(?:b)?(?=c)").groups,
        refused(re.compile, "(a"), re.split(r"\s*[,;]\s*", "a , b;c"),
        re.fullmatch(r"[\w.]+@\w+\.\w+", "a.b@c.de").group(), textwrap.fill("lorem ipsum dolor sit amet " * 3, 30),
        textwrap.dedent("  a\n    b"), string.capwords("a bc"),
        f"{Decimal('1234.5'):,.2f} {255:#x} {1e10:g} {'x':^5}|{True!s:>6}",
        "{0.amount} {1[0]}".format(Money(1), [2]), urllib.parse.urlsplit("https://u:p@h:80/p;x?q=1&q=2#f"),
        urllib.parse.parse_qs("a=1&a=2&b="), urllib.parse.urlencode({"a": [1, 2], "b": "ü &"}, doseq=True),
        urllib.parse.urljoin("http://a/b/c", "../d"), urllib.parse.quote("a b/ü"),
        urllib.parse.urlsplit("//h:99x").hostname, refused(lambda: urllib.parse.urlsplit("//h:99999").port),
        unicodedata.name("é"), html.escape("<a&b>"), shlex.split("a 'b c' d"),
        fnmatch.filter(["a.py", "b.c"], "*.py"), difflib.get_close_matches("appel", ["ape", "apple"]),
        list(difflib.unified_diff(["a"], ["b"], lineterm="")), pprint.pformat({"k" * 30: list(range(30))}, width=60),
        reprlib.repr(list(range(100))), base64.b64encode(b"xyz"), hashlib.sha256(b"x").hexdigest()[:16],
        zlib.crc32(b"x"), struct.pack("<hI", 1, 2),
        json.dumps({"a": (1, None, 2.5), "ü": "é"}, indent=1, sort_keys=True),
        json.loads('{"a": [1, 1e3, "\\u00e9"]}', object_pairs_hook=list), refused(json.loads, '{"a": }'),
        refused(json.dumps, {1, 2}), json.dumps(Decimal(1), default=str),
        tomllib.loads("a = 2026-01-01\n[b]\nc = [1]"), unicodedata.normalize("NFD", "é") == "é",
    ]


@section
def numbers():
    with localcontext(prec=6, rounding=ROUND_HALF_UP) as context:
        third = Decimal(1) / 3
        flags = sorted(str(f) for f, on in context.flags.items() if on)
    return [
        third, flags, Decimal("2.675").quantize(Decimal(".01")), refused(lambda: Decimal(1) / 0),
        statistics.mean([1, 2, 4]), statistics.quantiles(range(20), n=4), statistics.stdev([1, 2, 5]),
        statistics.NormalDist(0, 1).cdf(1.5), statistics.linear_regression([1, 2, 3], [2, 4, 7]),
        statistics.multimode("aabb"), statistics.fmean([1, 2], weights=[3, 1]),
        statistics.correlation([1, 2, 3], [1, 2, 4]), statistics.kde([1, 2, 3], h=1)(2),
        fractions.Fraction("0.125") + fractions.Fraction(1, 3), math.isclose(math.fsum([0.1] * 10), 1),
        math.comb(10, 3), random.Random(5).sample(range(100), 5), random.Random(5).gauss(0, 1),
        heapq.nsmallest(2, [5, 1, 4]), heapq.heappop_max([9, 3]), bisect.bisect([1, 3, 5], 3),
        list(itertools.batched("abcdefg", 3)), list(itertools.pairwise([1, 2, 3])),
        list(itertools.accumulate([1, 2, 3], operator.mul)), collections.Counter("abracadabra").most_common(2),
        collections.ChainMap({"a": 1}, {"b": 2})["b"], list(graphlib.TopologicalSorter({"b": {"a"}}).static_order()),
        calendar.monthrange(2024, 2), ipaddress.ip_network("10.0.0.0/30").num_addresses,
        uuid.uuid5(uuid.NAMESPACE_DNS, "x"), len(secrets.token_hex(4)),
    ]


@section
def times():
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc)
    return [
        moment.isoformat(), datetime.fromisoformat("2026-11-21T10:00:00+02:00").astimezone(timezone.utc),
        moment + timedelta(days=1.5), date(2024, 2, 29).strftime("%A %d %B %Y %j"),
        datetime.strptime("21 Nov 2026", "%d %b %Y"), refused(datetime.strptime, "x", "%d"),
        date(2026, 11, 21).isocalendar(), timedelta(hours=-3),
        (moment - datetime(2026, 1, 1, tzinfo=timezone.utc)).total_seconds(),
        date.fromisoformat("2026-W47-6"),
    ]


@section
def databases():
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.row_factory = sqlite3.Row
        db.create_function("twice", 1, lambda x: x * 2, deterministic=True)
        db.executescript(
            "create table orders(id integer primary key, sku text not null, n int); create index i on orders(sku);")
        db.executemany("insert into orders(sku, n) values(?, ?)", [("a", 1), ("b", 2), ("a", 3)])
        sums = "select sku, sum(n) s, twice(max(n)) t from orders group by sku order by sku"
        rows = [dict(r) for r in db.execute(sums)]
        try:
            with db:
                db.execute("insert into orders(sku) values ('c')")
                db.execute("insert into orders(sku) values (null)")
        except sqlite3.IntegrityError as error:
            failed = str(error)
        return [
            rows, failed, db.execute("select count(*) from orders").fetchone()[0], db.total_changes,
            list(db.iterdump())[:3], refused(db.execute, "selec 1"),
            db.execute("select :a + :b", {"a": 1, "b": 2}).fetchone()[0],
            [tuple(r) for r in db.execute("select sku, row_number() over (order by n) from orders")],
        ]


@section
def logs():
    stream = io.StringIO()
    log = logging.Logger("desk", logging.DEBUG)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("{levelname}:{name}:{funcName}:{lineno}:{message}", style="{"))
    memory = logging.handlers.MemoryHandler(10, target=handler)
    log.addHandler(memory)
    log.addFilter(lambda record: "secret" not in record.getMessage())
    log.info("hello %s", "x")
    log.warning("secret")
    q = queue.SimpleQueue()
    log.addHandler(logging.handlers.QueueHandler(q))
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("failed: %(what)s", {"what": 1})
    memory.flush()
    adapter = logging.LoggerAdapter(log, {"user": "u"}, merge_extra=True)
    adapter.error("adapted")
    text = without_sources(stream.getvalue())
    return [
        text, q.qsize(), q.get().getMessage().splitlines()[0], logging.getLevelNamesMapping()["INFO"],
        logging.getLogger("a.b").parent is logging.getLogger("a"), refused(log.setLevel, "LOUD"),
    ]


@section
def contexts():
    order = []

    @contextlib.contextmanager
    def opened(name):
        order.append(f"+{name}")
        try:
            yield name
        except KeyError as error:
            order.append(f"!{error}")
        finally:
            order.append(f"-{name}")

    with contextlib.ExitStack() as stack:
        stack.callback(order.append, "last")
        stack.enter_context(opened("a"))
        stack.enter_context(opened("b"))
        raise KeyError("k")
    with contextlib.suppress(ValueError), contextlib.redirect_stdout(io.StringIO()) as out:
        print("captured")
        raise ValueError
    groups = []
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError("t"), ExceptionGroup("inner", [OSError(2, "gone")])])
    except* ValueError as g:
        groups.append(repr(g.exceptions))
    except* (TypeError, OSError) as g:
        g.add_note("noted")
        groups += [str(g), g.__notes__, len(g.split(OSError))]
    return [order, out.getvalue(), groups, contextlib.nullcontext(3).__enter__()]


def fails(depth):
    if depth:
        return fails(depth - 1)
    try:
        {}["gone"]
    except KeyError as error:
        error.add_note("a note")
        raise RuntimeError("outer") from error


@section
def tracebacks():
    try:
        fails(2)
    except RuntimeError as error:
        first = text_of(error)
        summary = [f.name for f in traceback.extract_tb(error.__traceback__)]
    try:
        raise ExceptionGroup("g", [ValueError("v"), TypeError("t")])
    except ExceptionGroup as error:
        second = text_of(error)
    return [
        first, summary, second, refused(lambda: None.missing),
        refused(lambda: undefined_thing), refused(lambda: [].apend), refused(lambda: "x" + 1),
        refused(lambda: model.Lines),
    ]


@section
def matches():
    def kind(value):
        match value:
            case {"type": "point", "at": [x, y, *_], **rest}:
                return "point", x, y, rest
            case [Side.BUY, *others] if others:
                return "buy", others
            case Point(x=0):
                return "origin"
            case str(s) | bytes(s):
                return "text", s
            case int() | float() as n if n > 3:
                return "large", n
            case None | True:
                return "singleton"
            case _:
                return "other"
    point = {"type": "point", "at": (1, 2, 3), "k": 1}
    return [kind(v) for v in (point, ["buy", 1], Point(0), "s", b"b", 5, 2, None, True, [], {})]


@section
def threads():
    results, lock, done = [], threading.Lock(), threading.Barrier(3)
    local = threading.local()

    def work(n):
        local.n = n
        with lock:
            results.append(local.n)
        done.wait(5)
    made = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [t.start() for t in made]
    [t.join() for t in made]
    with concurrent.futures.ThreadPoolExecutor(3, thread_name_prefix="w") as pool:
        squares = list(pool.map(lambda x: x * x, range(6)))
        futures = [pool.submit(divmod, 7, n) for n in (2, 0)]
        finished, _ = concurrent.futures.wait(futures)
        failed = refused(futures[1].result)
        first = sorted(f.result() for f in concurrent.futures.as_completed([pool.submit(abs, -n) for n in range(3)]))
    timer = threading.Timer(0.01, results.append, ["timer"])
    timer.start()
    timer.join()
    event = threading.Event()
    return [
        sorted(map(str, results)), squares, futures[0].result(), failed, first, event.wait(0.01),
        refused(queue.Queue(1).get, timeout=0.01),
    ]


@section
def asyncios():
    async def work(n, wait=0.01):
        await asyncio.sleep(wait)
        if n == 3:
            raise ValueError("three")
        return n * 2

    async def numbers():
        for n in range(3):
            yield n
            await asyncio.sleep(0)

    async def main():
        out = [await asyncio.gather(work(1), work(2), work(3), return_exceptions=True)]
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(5)
        except TimeoutError as error:
            out.append(repr(error))
        out.append(refused_type(await asyncio.gather(asyncio.wait_for(work(1, 5), 0.01), return_exceptions=True)))
        try:
            async with asyncio.TaskGroup() as group:
                good = group.create_task(work(1))
                group.create_task(work(3))
        except* ValueError as errors:
            out.append([str(e) for e in errors.exceptions])
        out.append([x async for x in numbers()])
        generator = numbers()
        out.append(await anext(generator))
        await generator.aclose()
        out.append(await asyncio.to_thread(threading_name))
        lock, semaphore, q = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Queue()
        async with lock, semaphore:
            await q.put(1)
        out.append(await q.get())
        task = asyncio.create_task(asyncio.sleep(9), name="sleeper")
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            out.append((task.cancelled(), task.get_name()))
        out.append([await c for c in asyncio.as_completed([work(4)])])
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(work, 5)
        loop = asyncio.get_running_loop()
        out.append(await loop.run_in_executor(None, sum, [1, 2]))
        event = asyncio.Event()
        loop.call_later(0.01, event.set)
        out.append(await event.wait())
        return out
    return asyncio.run(main())


def refused_type(values):
    return [type(v).__name__ for v in values]


def threading_name():
    return threading.current_thread().name.startswith("asyncio_0")


@section
def documents():
    root = ET.fromstring("<a><b k='1'>x</b><b/></a>")
    parser = configparser.ConfigParser()
    parser.read_string("[s]\nk = %(v)s!\nv = 1\n")
    out = io.StringIO()
    writer = csv.DictWriter(out, ["a", "b"])
    writer.writeheader()
    writer.writerow({"a": 1, "b": 'q"x'})
    message = email.message.EmailMessage()
    message["Subject"] = "ü"
    message.set_content("body")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning)
    with open("rates.json") as file:
        rates = json.load(file, parse_float=Decimal)
    return [
        [b.get("k") for b in root.iter("b")], ET.tostring(root), parser["s"]["k"], out.getvalue(),
        message.as_string().splitlines()[0], [str(w.message) for w in caught], rates,
        list(csv.reader(["a,'b,c',d"], quotechar="'")), types.SimpleNamespace(a=1), types.MappingProxyType({"a": 1}),
        abc.ABC.__name__, refused(type("Abstract", (abc.ABC,), {"f": abc.abstractmethod(lambda self: 1)})),
    ]


@section
def objects():
    made = types.new_class("Dyn", (Handler,), {"topic": "dyn", "kind": 1}, lambda ns: ns.update(x=1))
    closure = [lambda i=i: i for i in range(3)]

    def gen():
        got = yield 1
        try:
            yield got
        except ValueError as error:
            yield str(error)
        return "end"
    g = gen()
    steps = [next(g), g.send("sent"), g.throw(ValueError("thrown")), refused(next, g)]
    return [
        made.topic, Registry.known["Dyn"], [c() for c in closure], steps, weakref.WeakValueDictionary().__len__(),
        copy.deepcopy({"a": [1, {2}]}),
        operator.attrgetter("x.y")(types.SimpleNamespace(x=types.SimpleNamespace(y=2))),
        operator.itemgetter(1, 0)("ab"), sys.version_info >= (3, 14), inspect.getdoc(model),
        inspect.isgeneratorfunction(gen), str(inspect.signature(kinds)),
        inspect.getmembers(model.Version, inspect.isfunction)[0][0], __name__ in ("main", "__main__"),
        refused(super),
    ]


def kinds(a, /, b: int = 1, *c, d, e=2, **f) -> str:
    ...


def run(value):
    out = {}
    for name, function in OUT.items():
        try:
            result = function()
        except BaseException as error:
            out[name] = ["FAILED " + text_of(error)]
            continue
        out[name] = [re.sub(r" at 0x[0-9a-f]+", " at 0x", repr(item)) for item in result]
    return out
