"""Closures, lambdas, bound methods and typed-in functions give in a VM what they give here."""

import functools
import os
import subprocess
import sys
import textwrap

import pytest

import vmhost
from tests.batches import each
from tests.vmhost import closures


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(1) as executor:
        yield executor


@each(
    ("function", "args"),
    [
        (closures.scaled(2), (5,)),
        (closures.scaled([1]), (2,)),
        (closures.recursive(7), (4,)),
        (closures.nested(4), (5,)),
        (closures.mutual(), (10,)),
        (closures.generator([1, 2, 3]), ()),
        *((function, (5,)) for function in closures.TABLE + closures.DEFAULTS),
        (functools.partial(closures.scaled(3), 4), ()),
        (closures.Point(1).plus, (2,)),
        (closures.Point(1).bound(), ()),
        (closures.inner_method(closures.Point(4)), (2,)),
        (closures.holding(closures.Point(4)), ()),
        (closures.holding({"a": (1, b"x")}), ()),
        (closures.counter(), ()),
    ],
)
def test_a_function_without_a_name_gives_what_it_gives_here(pool, function, args):
    sent = pool.submit(function, *args).result()
    assert sent == function(*args)


def test_a_map_of_a_closure_with_chunks(pool):
    assert list(pool.map(closures.scaled(2), range(5), chunksize=2)) == [0, 2, 4, 6, 8]
    y = 3
    assert list(pool.map(lambda x: x + y, [1, 2])) == [4, 5]


def test_coroutine_functions_made_inside_functions_run_to_their_end(pool):
    assert pool.submit(closures.asynchronous(2), 3).result() == 5


def test_cells_are_as_they_are_at_each_submit(pool):
    up = closures.counter()
    assert [pool.submit(up).result(), up(), pool.submit(up).result(), up()] == [1, 1, 2, 2]


def test_an_unset_variable_is_unset_there(pool):
    with pytest.raises(NameError):
        pool.submit(closures.unset()).result()


def test_closures_share_the_globals_of_their_module_in_the_vm():
    with vmhost.VMExecutor(1) as executor:
        assert [executor.submit(closures.noted(), 1).result() for _ in range(2)] == [1, 2]
    assert closures.CALLS == []


def test_an_initializer_may_be_a_closure():
    with vmhost.VMExecutor(1, initializer=closures.noted(), initargs=(1,)) as executor:
        assert executor.submit(closures.noted(), 1).result() == 2


@pytest.mark.parametrize(
    "function, message",
    [
        (closures.holding(object()), r"closures.py:\d+\) cannot travel to a VM: its variable value: \$: a `object`"),
        (closures.Opaque().method, "it is bound to an object of class Opaque, which stays on the host"),
        (closures.holding(closures.Opaque().method), r"its variable value: \$: a `Opaque` cannot cross"),
        ([].append, "bound to an object of class list"),
    ],
)
def test_what_cannot_travel_says_which_part(pool, function, message):
    with pytest.raises(vmhost.CrossingError, match=message) as caught:
        pool.submit(function)
    assert type(caught.value) is vmhost.CrossingError
    with pytest.raises(vmhost.CrossingError):
        pool.map(function, [])


def test_code_that_is_not_in_the_modules_source_cannot_travel(pool):
    for names, message in ((vars(closures), "its code is not in the source of"), ({"__name__": "nowhere"}, "nowhere")):
        with pytest.raises(vmhost.CrossingError, match=message):
            pool.submit(eval("lambda: 1", names))


def test_the_error_in_a_notebook_is_short(pool):
    with pytest.raises(vmhost.CrossingError) as caught:
        pool.submit(closures.holding(object()))
    lines = "\n".join(caught.value._render_traceback_()).splitlines()
    assert len(lines) == 2 and __file__ in lines[0] and lines[1].startswith("CrossingError: holding")


def test_a_program_that_is_recorded_may_submit_closures(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(
        textwrap.dedent("""
            import vmhost

            def scaled(k):
                return lambda x: x * k

            if __name__ == "__main__":
                with vmhost.VMExecutor(1) as pool:
                    print(pool.submit(scaled(2), 3).result())
        """)
    )
    for more in {}, {"VMHOST_RECORD": "1"}:
        ran = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=300, check=True, env=os.environ | more
        )
        assert ran.stdout == "6\n"


# -- typed in


def typed_in(text):
    """What a program that is typed in prints; each line must be "result expected"."""
    program = "import vmhost\npool = vmhost.VMExecutor(1)\n" + textwrap.dedent(text) + "\npool.shutdown()\n"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stderr == ""
    return ran.stdout


def test_typed_in_closures_have_their_own_variables():
    assert (
        typed_in("""
            n = 100
            def outer(n):
                def add(x): return x + n
                return add
            add2 = outer(2)
            k = 1000
            def make(k):
                def mul(x): return x * k
                return mul
            scale = make(2)
            def g(x): return scale(x)
            def counted():
                i = 0
                def up():
                    nonlocal i
                    i += 1
                    return i
                return up
            up = counted()
            def deep(n):
                M = n * 2
                inner = make(3)
                def both(x, *, base=M,
                         more=[n, "käse"]): return inner(x) + n + base, more
                return both
            def factorials():
                def fact(n): return 1 if n < 2 else n * fact(n - 1)
                return fact
            print(pool.submit(add2, 3).result(), pool.submit(outer(5), 3).result(), pool.submit(g, 3).result())
            print(pool.submit(up).result(), up(), pool.submit(up).result())
            print(*pool.submit(deep(2), 3).result(), pool.submit(factorials(), 5).result())
            def local():
                import math
                k = 3
                return list(pool.map(lambda x: math.floor(x) * k, [1.5, 2.5]))
            print(local())
        """)
        == "5 8 6\n1 1 2\n15 [2, 'käse'] 120\n[3, 6]\n"
    )


def test_typed_in_functions_have_their_own_defaults():
    assert (
        typed_in("""
            N = 1
            def f(x, n=N, *, m=N): return n + m + x
            class A:
                rate = N
                def m(self, z=N): return z + self.rate
                @staticmethod
                def s(z=N): return z
            def use(): return A().m(), A.s()
            N = 50
            print(pool.submit(f, 0).result(), pool.submit(use).result())
            table = [lambda x: x + 1, lambda x: x * 7] + [lambda x, i=i: x * i for i in range(2)]
            print([pool.submit(each, 3).result() for each in table])
        """)
        == "2 (2, 1)\n[4, 21, 0, 3]\n"
    )


def test_each_submit_of_typed_in_code_sends_what_has_changed():
    assert (
        typed_in("""
            C, L = 1, [1]
            def helper(): return 1
            def h(): return C, L, helper()
            print(pool.submit(h).result())
            C = 2
            print(pool.submit(h).result())
            L.append(2)
            print(pool.submit(h).result())
            def helper(): return "new"
            print(pool.submit(h).result())
        """)
        == "(1, [1], 1)\n(2, [1], 1)\n(2, [1, 2], 1)\n(2, [1, 2], 'new')\n"
    )


def test_globals_of_the_library_and_enum_members_cross():
    assert (
        typed_in("""
            import datetime, decimal, enum, logging, pathlib, re, zoneinfo
            PATTERN = re.compile("a+", re.I)
            LOG, ROOT = logging.getLogger("my"), logging.getLogger()
            HERE, ZONE = pathlib.Path("/tmp"), zoneinfo.ZoneInfo("UTC")
            AT = datetime.datetime(2024, 1, 1, tzinfo=ZONE)
            class Colour(enum.Enum):
                RED = 1
            RED, MANY = Colour.RED, {"a": [Colour.RED, decimal.Decimal("1.5"), PATTERN]}
            def use(x):
                return (PATTERN.findall(x), LOG.name, ROOT.name, str(HERE / "x"), ZONE.key, AT.isoformat(), RED.value,
                        RED is Colour.RED is MANY["a"][0], str(MANY["a"][1]), MANY["a"][2].pattern)
            print(*pool.submit(use, "xAa").result())
        """)
        == "['Aa'] my root /tmp/x UTC 2024-01-01T00:00:00+00:00 1 True 1.5 a+\n"
    )


def test_typed_in_methods_take_their_object_along_or_are_refused():
    assert (
        typed_in("""
            import dataclasses
            @dataclasses.dataclass
            class Point:
                x: int
                def plus(self, y): return self.x + y
            class Opaque:
                def method(self): return 1
            plus = Point(3).plus
            print(pool.submit(plus, 4).result())
            opaque = object()
            for function in Opaque().method, lambda: opaque:
                try:
                    pool.submit(function)
                except vmhost.CrossingError as error:
                    print(str(error).partition(": ")[2].partition(",")[0])
        """)
        == "7\nit is bound to an object of class Opaque\nit uses the global opaque\n"
    )
