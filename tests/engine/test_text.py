"""Numbers in text: loadtxt, genfromtxt, savetxt, fromstring, and arrays of numbers written as text; compared with
NumPy, in the host and in a VM."""

import io
import itertools
import textwrap

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.engine.cases import again_in_a_vm, check, host_of_cases  # noqa: F401 - two are fixtures
from tests.engine.test_arrays_against_numpy import outcome
from vmhost.bytecode.compiler import compile_sources

pytestmark = [pytest.mark.usefixtures("again_in_a_vm"), pytest.mark.filterwarnings("ignore")]

TEXTS = [
    "1 2\n3 4",
    "1,2\n3,4\n",
    "# h\n1 2\n\n3 4 # c\n",
    "1;2;3",
    "5",
    "1 2\n3",
    "1 x",
    "1,,2",
    "1 2 3\n4 5 6",
    '"1","2"',
    "0x10 1",
    "1e3 nan\ninf -1",
    "1+2j 3",
    "(1+2j) 3j",
    " 1 , 2 \n 3 , 4",
    "1_0 2",
    "300 1",
    "-1 0",
    "True False",
    "1\n2\n3",
    "",
]
READ = [
    {},
    {"delimiter": ","},
    {"dtype": "int64"},
    {"dtype": "uint8"},
    {"dtype": "complex128"},
    {"dtype": "bool"},
    {"dtype": "float32"},
    {"delimiter": ";"},
    {"ndmin": 1},
    {"ndmin": 2},
    {"ndmin": 3},
    {"unpack": True},
    {"usecols": 1},
    {"usecols": (0, -1)},
    {"usecols": 5},
    {"usecols": 1.5},
    {"skiprows": 1},
    {"skiprows": -1},
    {"max_rows": 1},
    {"quotechar": '"', "delimiter": ","},
    {"comments": ["#", "3"]},
    {"comments": None},
    {"delimiter": ""},
]
GAPS = [
    {},
    {"delimiter": ","},
    {"dtype": "int64"},
    {"delimiter": ",", "filling_values": 7},
    {"skip_header": 1},
    {"skip_footer": 1},
    {"usecols": (0,)},
    {"delimiter": ",", "missing_values": "x", "filling_values": -9},
    {"unpack": True},
    {"max_rows": 1},
    {"invalid_raise": False},
    {"ndmin": 2},
    {"loose": False},
    {"delimiter": ",", "dtype": "int64", "autostrip": True},
]


def test_reading():
    for text, options in itertools.product(TEXTS, READ):
        if text or "usecols" not in options:
            check("np.loadtxt(text.splitlines(), **options)", text=text, options=options)


def test_reading_tables_with_gaps():
    for text, options in itertools.product(TEXTS, GAPS):
        check("np.genfromtxt(text.splitlines(), **options)", text=text, options=options)
    check("np.genfromtxt(['12 34', '5678'], delimiter=2)")
    check("np.genfromtxt(['1234', '5678'], delimiter=(1, 3))")


def test_converters():
    check("np.loadtxt(['a 1', 'b 2'], converters={0: ord})")
    check("np.loadtxt(['1,,3'], delimiter=',', converters=lambda word: float(word or 0))")
    check("np.genfromtxt(['a 1', 'b 2'], converters={0: lambda word: 5.0})")


@pytest.mark.parametrize(
    ("array", "options"),
    [
        ([[1.0, 2], [3, 4]], {}),
        ([1, 2, 3], {"fmt": "%d"}),
        ([[1 + 2j, 3 - 4j]], {}),
        ([[1 + 2j]], {"fmt": "%.1f"}),
        ([[1, 2.5]], {"fmt": ["%d", "%.3f"], "delimiter": ","}),
        ([[1, 2]], {"fmt": "%d-%d"}),
        ([[1, 2]], {"fmt": "%d %d %d"}),
        ([[1.0, 2]], {"header": "a\nb", "footer": "c", "comments": "// "}),
        ([[1.5]], {"fmt": "%s"}),
        (5, {}),
        ([True, False], {"fmt": "%s"}),
        ([1.5], {"fmt": "%q"}),
        ([[1, 2]], {"fmt": 3}),
        ([[1, 2]], {"fmt": "%x", "newline": "|"}),
        ([[1.5, 2]], {"fmt": ["%d"]}),
        ([[0.1]], {"fmt": "%s"}),
    ],
)
def test_writing(array, options):
    for dtype, file in itertools.product((None, "float32"), (io.StringIO, io.BytesIO)):
        written = []
        for module in (numpy, np):
            opened = file()
            error = outcome(
                module,
                lambda np: np.savetxt(
                    opened,
                    np.asarray(
                        array,
                        **({} if dtype is None or isinstance(array, list) and "j" in str(array) else {"dtype": dtype}),
                    ),
                    **options,
                ),
                [],
            )
            written.append((opened.getvalue(), type(error).__name__, str(error)))
        assert written[0] == written[1]


def test_a_files_text_comes_back(tmp_path):
    values = numpy.random.default_rng(1).normal(size=(4, 3))
    np.savetxt(tmp_path / "x.csv", np.asarray(values), delimiter=",", header="a,b,c")
    assert (
        np.loadtxt(tmp_path / "x.csv", delimiter=",").tolist()
        == values.tolist()
        == numpy.loadtxt(tmp_path / "x.csv", delimiter=",").tolist()
    )
    assert np.genfromtxt(str(tmp_path / "x.csv"), delimiter=",", skip_header=1).tolist() == values.tolist()


def test_a_tasks_file_is_read():
    source = """
        import vmhost.engine.numpy as np

        def run(_):
            return np.loadtxt("prices.csv", delimiter=",", skiprows=1).mean(axis=0)
    """
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources(
                {"main": (textwrap.dedent(source), "main.py", False)},
                entry="main:run",
                name="prices",
                version="1.0.0",
                files={"prices.csv": b"open,close\n1,2\n3,4\n"},
            )
        )(None)
    assert task.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("text", ["1 2 3", "1\n2\t3", "1,2,3", "1, 2 ,3,", "", "1.5", "7"])
def test_numbers_in_a_text(text):
    check("np.fromstring(text, sep=',' if ',' in text else ' ')", text=text)
    check(
        "np.fromstring(text, sep=',' if ',' in text else ' ', count=1)" if text else "np.fromstring('', sep=' ')",
        **{"text": text} if text else {},
    )


def test_wrong_numbers_in_a_text():
    with pytest.raises(ValueError, match="expected 3 numbers, got 2"):
        np.fromstring("1 2", sep=" ", count=3)
    with pytest.raises(ValueError, match="unmatched data"):
        np.fromstring("1 x", sep=" ")
    with pytest.raises(ValueError, match="use frombuffer"):
        np.fromstring("12345678", sep="")


@pytest.mark.parametrize(
    "expression",
    [
        "np.array(['1', '2.5'], dtype=float)",
        "np.array(['1', '2.5'], dtype=int)",
        "np.array([['1', '2']], dtype=int)",
        "np.array('1.5', dtype='f4')",
        "np.array([b'1'], dtype=int)",
        "np.array([b'1.5'], dtype=float)",
        "np.array(['1+2j', b'3'], dtype=complex)",
        "np.array(['300'], dtype='u1')",
        "np.array(['x'], dtype=float)",
        "np.array([' 1 '], dtype=int)",
        "np.array(['1', 2], dtype=float)",
        "np.array(['1', ['2']], dtype=float)",
        "np.asarray(['1e400', 'nan'], dtype=float)",
        "np.array([''], dtype=float)",
        "np.full(2, '3', dtype=int)",
        "np.array([['1', '2'], '12'], dtype=float)",
        "np.array([('1', 2.5), ('3', '4')], dtype='f4')",
        "np.array([1, '2'], dtype='i1', ndmin=2)",
        "np.array([['1', '2'], ['3']], dtype=float)",
    ],
)
def test_arrays_of_numbers_written_as_text(expression):
    check(expression)


def test_text_is_no_number_where_none_is_asked_for():
    for wrong in (
        lambda: np.array(["1"]),
        lambda: np.zeros(2) + ["1", "2"],
        lambda: np.take(np.arange(3), "1"),
        lambda: np.where(["1"], 1, 2),
    ):
        with pytest.raises(TypeError, match="cannot make an array element of 'str'"):
            wrong()
    a = np.zeros(3)
    a[0], a[1:] = "1.5", ["2", "3"]
    assert a.tolist() == [1.5, 2.0, 3.0]


@pytest.mark.parametrize(
    "arguments",
    [
        "['1 2'], delimiter=' ', comments=' '",
        "['1 2'], comments=' '",
        "['1 2'], quotechar='\\u2003'",
        "['1 2'], quotechar=''",
        "['1 2'], quotechar='ab'",
        "['1 2'], delimiter='\\n'",
        "['1,2'], delimiter=',', quotechar=','",
        "['1,2'], delimiter=',', comments=['#', ',']",
        "['1,2'], delimiter=',', comments='12', quotechar='\"'",
        "['1 2'], converters=7",
        "['1 2'], converters={'a': float}",
        "['1 2'], converters={0: 7}",
        "['1 2'], converters={2: float}",
        "['1 2'], converters={-2: float}",
        "['1 2'], skiprows=1.5",
        "['1 2'], usecols=np.int64(1)",
        "['1 2'], usecols=[2**64]",
        "['1 +2j'], dtype=complex, delimiter=','",
        "['(1+2j)'], dtype=complex, delimiter=','",
        "['1,2\\n', '2\\n,3\\n'], delimiter=','",
        "[' 3 ,\"\\u202f2\\n\"\\n'], delimiter=',', quotechar='\"'",
        "['3,\"2\\n', '\"\\n'], delimiter=',', quotechar='\"'",
    ],
)
def test_what_loadtxt_refuses(arguments):
    found = []
    for np in (numpy, vmhost.engine.numpy):
        try:
            found.append(numpy.asarray(eval(f"np.loadtxt({arguments})", {"np": np})).tolist())
        except Exception as error:
            found.append(type(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("read", ["loadtxt", "genfromtxt"])
def test_the_lines_after_max_rows_are_left_in_the_file(read):
    file = io.StringIO("1 2\n3 4\n5 6\n7 8\n")
    function = getattr(vmhost.engine.numpy, read)
    assert function(file, max_rows=2).tolist() == [[1, 2], [3, 4]]
    assert function(file).tolist() == [[5, 6], [7, 8]]
