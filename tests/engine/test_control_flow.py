"""Graphs within models (If, Loop, Scan), sequences and optionals: compared with ONNX Runtime, and models that are
refused. ONNX's own cases are in test_onnx_nodes.py, larger models in test_other_models.py."""

import numpy
import pytest
from onnx import numpy_helper, parser

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine import library
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'


def model(text, **weights):
    made = parser.parse_model(HEADER + text)
    made.graph.initializer.extend(
        numpy_helper.from_array(numpy.asarray(values), name) for name, values in weights.items()
    )
    return made.SerializeToString()


def values(*shape, seed=0):
    return networks.values(shape, seed)


def yes_no(condition):
    return numpy.array(condition)


BRANCH = model(
    """branch (float[n, 3] x, bool c, int64 i) => (float[n, 3] y, float z) {
        h = Mul(x, x)
        y, z = If (c) <
            then_branch = a () => (float[n, 3] t, float s) {
                two = Constant <value = float {2.0}> ()
                u = Mul(h, two)
                t = Sub(u, x)
                s = Gather(table, i)
            },
            else_branch = b () => (float[n, 3] t, float s) {
                t = Neg(x)
                s = Constant <value = float {7.0}> ()
            }>
    }""",
    table=values(4),
)
NESTED = model(
    """nested (float[4] x, bool a, bool b) => (float[4] y) {
        y = If (a) <
            then_branch = p () => (float[4] t) {
                t = If (b) <
                    then_branch = q () => (float[4] v) { v = Add(x, x) },
                    else_branch = r () => (float[4] v) { h = Abs(x) v = Sqrt(h) }>
            },
            else_branch = s () => (float[4] t) { t = Identity(x) }>
    }""".replace("Abs(x) v", "Abs(x)\n v")
)
ON_A_SIZE = model(
    """sized (float[n, 3] x) => (float[n, 3] y) {
        shape = Shape(x)
        n = Gather(shape, zero)
        many = Greater(n, four)
        y = If (many) <
            then_branch = a () => (float[n, 3] t) { t = Exp(x) },
            else_branch = b () => (float[n, 3] t) { m = ReduceMean <axes = [0]> (x)
                t = Sub(x, m) }>
    }""",
    zero=numpy.int64(0),
    four=numpy.int64(4),
)
EARLY_END = model(
    """ends (float[2, 3] x, bool start, int64 i) => (float[2, 3] y, int64 n) {
        y, n = Loop (passes, start, x, none) <body = step (int64 k, bool on, float[2, 3] h, int64 m)
            => (bool goes, float[2, 3] h_new, int64 m_new) {
            half = Constant <value = float {0.5}> ()
            limit = Constant <value = float {0.2}> ()
            one = Constant <value = int64 {1}> ()
            h_new = Mul(h, half)
            size = Abs(h_new)
            most = ReduceMax <keepdims = 0> (size)
            goes = Greater(most, limit)
            place = Add(m, i)
            picked = Gather(counts, place)
            m_new = Add(m, picked)
        }>
    }""",
    passes=numpy.int64(7),
    none=numpy.int64(0),
    counts=numpy.ones(8, "int64"),
)
GROWING = model(
    """grows (float[1, 3] x) => (float[4, 3] y, int64[3] rows, float[3, 3] all) {
        t, rows, all = Loop (passes, , x) <body = step (int64 k, bool on, float[m, 3] h)
            => (bool goes, float[o, 3] h_new, int64 count, float[3] row) {
            goes = Identity(on)
            kf = Cast <to = 1> (k)
            add = Add(x, kf)
            h_new = Concat <axis = 0> (h, add)
            shape = Shape(h_new)
            count = Gather(shape, zero)
            row = Gather(h_new, k)
        }>
        y = Identity(t)
    }""",
    passes=numpy.int64(3),
    zero=numpy.int64(0),
)
PICKED = model(
    """picked (float[2, 6] x, int64 i) => (float[2, 2] y, float[3, 2, 2] z, int64 n) {
        parts = SplitToSequence <axis = 1> (x, two)
        y = SequenceAt(parts, i)
        out = SequenceErase(parts, zero)
        again = SequenceInsert(out, y, zero)
        z = ConcatFromSequence <axis = 0, new_axis = 1> (again)
        n = SequenceLength(out)
    }""",
    two=numpy.int64(2),
    zero=numpy.int64(0),
)
SCANNED = model(
    """scanned (float[2, 5, 3] x, float[2, 3] h) => (float[2, 3] y, float[2, 3, 5] z) {
        y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1], scan_input_directions = [1],
            body = step (float[2, 3] s, float[2, 3] r) => (float[2, 3] t, float[2, 3] u) {
                m = MatMul(s, w)
                a = Add(m, r)
                t = Tanh(a)
                u = Identity(t)
            }> (h, x)
    }""",
    w=values(3, 3, seed=1),
)
X3 = {n: values(n, 3, seed=n) for n in (1, 4, 6)}
CASES = [
    *((BRANCH, {"x": x, "c": yes_no(True), "i": numpy.array(-1)}) for x in X3.values()),
    (BRANCH, {"x": X3[4], "c": yes_no(False), "i": numpy.array(900)}),
    *((NESTED, {"x": values(4), "a": yes_no(a), "b": yes_no(b)}) for a in (True, False) for b in (True, False)),
    *((ON_A_SIZE, {"x": x}) for x in X3.values()),
    *(
        (EARLY_END, {"x": values(2, 3) * scale, "start": yes_no(start), "i": numpy.array(0)})
        for scale in (0.1, 1, 9, 500)
        for start in (True, False)
    ),
    (GROWING, {"x": values(1, 3)}),
    *((PICKED, {"x": values(2, 6), "i": numpy.array(i)}) for i in (0, 2, -1)),
    (SCANNED, {"x": values(2, 5, 3), "h": values(2, 3, seed=2)}),
]


def test_graphs_within_give_what_onnx_runtime_computes():
    files = {data: compile_model(data, "model") for data, _ in CASES}
    for number, ((data, inputs), theirs) in enumerate(zip(CASES, networks.each_by_onnx_runtime(CASES), strict=True)):
        for backend in backends():
            with on_backend(backend):
                ours = opened("model", files[data])(inputs)
            for (name, made), expected in zip(ours.items(), theirs, strict=True):
                made = numpy.asarray(made)
                assert made.dtype == expected.dtype, (number, name)
                numpy.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6, err_msg=f"{number} {name}")


def test_a_pass_behind_the_end_looks_nothing_up():
    """Indices of a loop after its last iteration are out of range."""
    run = opened("model", compile_model(EARLY_END, "model"))
    answer = run({"x": values(2, 3), "start": yes_no(False), "i": numpy.int64(10**6)})
    assert answer["n"].tolist() == 0
    with pytest.raises((IndexError, ValueError)):
        run({"x": values(2, 3), "start": yes_no(True), "i": numpy.int64(10**6)})


SIDES = model(
    """sides (float[n, 8] x, bool c, bool d, int64 i) => (float[n, 8] y) {
        [outside] h = Exp(x)
        y = If (c) <
            then_branch = a () => (float[n, 8] t) {
                [product] u = MatMul(h, w)
                [row] r = Gather(table, i)
                m = Add(u, r)
                t = If (d) <
                    then_branch = p () => (float[n, 8] v) { [inner_then] v = Tan(m) },
                    else_branch = q () => (float[n, 8] o) { [inner_else] o = Cos(m) }>
            },
            else_branch = b () => (float[n, 8] t2) { [outer_else] t2 = Sqrt(x) }>
    }""",
    w=values(8, 8),
    table=values(4, 8),
)
THEN, NAMED = {"outside", "product", "row"}, {"outside", "product", "row", "inner_then", "inner_else", "outer_else"}


@pytest.mark.parametrize(
    "c, d, runs",
    [
        (True, True, THEN | {"inner_then"}),
        (True, False, THEN | {"inner_else"}),
        (False, True, {"outer_else"}),
        (False, False, {"outer_else"}),
    ],
)
def test_a_branch_that_is_not_taken_is_not_run(c, d, runs):
    """A skipped step takes no time, and its indices are not checked."""
    run = opened("model", compile_model(SIDES, "model"))
    given = {"x": abs(values(3, 8)), "c": yes_no(c), "d": yes_no(d), "i": numpy.int64(2 if c else 900)}
    _, steps = run.run(given, profile=True)
    assert {step.name for step in steps if step.ms > 0 and step.name in NAMED} == runs
    if c:
        with pytest.raises((IndexError, ValueError)):
            run(given | {"i": numpy.int64(900)})


@pytest.mark.parametrize(
    "then, other, outputs, selections",
    [
        ("t = Exp(x)", "t = Neg(x)", "float[n, 4] y", 0),
        ("t = Exp(x)", "t = Identity(x)", "float[n, 4] y", 1),  # it computes nothing
        ("t = Exp(x)", "t = Neg(h)", "float[n, 4] y, float[n, 4] h", 0),
        ("t = Identity(h)", "t = Neg(h)", "float[n, 4] y, float[n, 4] h", 1),  # an output too
        ("t = Exp(x)", "t = Identity(u)", "float[n, 4] y", 0),
    ],
)
def test_branches_write_the_result_in_place(then, other, outputs, selections):
    """Where the condition alone decides which layer computes it, no step selects and copies it."""
    data = model(
        f"""placed (float[n, 4] x, bool c) => ({outputs}) {{
            h = Cos(x)
            u = Mul(h, half)
            y = If (c) < then_branch = a () => (float[k, 4] t) {{ {then} }},
                else_branch = b () => (float[l, 4] t) {{ {other} }}>
        }}""",
        half=numpy.full((1, 4), 0.5, "float32"),
    )
    run = opened("model", compile_model(data, "model"))
    assert sum(step.kind == "Where" for step in run.steps) == selections
    for rows in (3, 5):
        for c in (True, False):
            given = {"x": values(rows, 4), "c": yes_no(c)}
            [theirs] = networks.each_by_onnx_runtime([(data, given)])
            for name, expected in zip([text.split()[-1] for text in outputs.split(", float")], theirs, strict=True):
                numpy.testing.assert_allclose(run(given)[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reader", ["MaxPool <kernel_shape = [2, 2]> (b)", "Conv(b, k)", "Softmax(b)", "Relu(b)"])
def test_branches_whose_result_is_an_image(reader):
    data = model(
        f"""image (float[1, 2, 6, 6] x, bool c) => (float[1, m, p, q] y, float[1, 2, 6, 6] z) {{
            z = If (c) < then_branch = d () => (float[1, 2, 6, 6] t) {{ t = Sin(x) }},
                else_branch = e () => (float[1, 2, 6, 6] t) {{ t = Cos(x) }}>
            b = If (c) < then_branch = a () => (float[1, 2, 6, 6] t) {{ t = Exp(x) }},
                else_branch = b () => (float[1, 2, 6, 6] t) {{ t = Neg(x) }}>
            y = {reader}
        }}""",
        k=values(3, 2, 3, 3),
    )
    run = opened("model", compile_model(data, "model"))
    for c in (True, False):
        given = {"x": values(1, 2, 6, 6), "c": yes_no(c)}
        [theirs] = networks.each_by_onnx_runtime([(data, given)])
        for name, expected in zip("yz", theirs, strict=True):
            numpy.testing.assert_allclose(run(given)[name], expected, rtol=1e-5, atol=1e-6)


def test_passes_behind_the_end_are_not_run():
    run = opened("model", compile_model(EARLY_END, "model"))
    given = {"x": values(2, 3), "start": yes_no(False), "i": numpy.int64(0)}
    _, steps = run.run(given, profile=True)
    loops = [step for step in steps if step.kind not in ("Input", "Output")]
    taken = sum(step.ms > 0 for step in loops)
    _, steps = run.run(given | {"start": yes_no(True), "x": values(2, 3) * 500}, profile=True)
    assert taken < sum(step.ms > 0 for step in steps if step.kind not in ("Input", "Output")) / 2


def test_passes_share_their_weights():
    width, passes = 192, 6
    data = model(
        f"""passes (float[3, {width}] x) => (float[3, {width}] y) {{
            y = Loop (count, goes, x) <body = b (int64 i, bool c, float[3, {width}] h)
                => (bool d, float[3, {width}] k) {{
                d = Identity(c)
                p = MatMul(h, w)
                s = Add(p, bias)
                k = Tanh(s)
            }}>
        }}""",
        w=values(width, width) * width**-0.5,
        bias=values(width),
        count=numpy.int64(passes),
        goes=yes_no(True),
    )
    file, given = compile_model(data, "model"), {"x": values(3, width)}
    before = library.statistics().live_bytes
    run = opened("model", file)
    assert sum(step.kind == "Gemm" for step in run.steps) == passes
    assert library.statistics().live_bytes - before < 2 * width * width * 4  # of one pass, and an arena
    [[theirs]] = networks.each_by_onnx_runtime([(data, given)])
    numpy.testing.assert_allclose(run(given)["y"], theirs, atol=1e-5)


def test_what_both_sides_need_is_run_whichever_is_taken():
    data = model(
        """shared (float[4] x, bool c) => (float[4] y, float[4] z) {
            [shared] h = Exp(x)
            y = If (c) < then_branch = a () => (float[4] t) { [one] t = Tan(h) },
                else_branch = b () => (float[4] u) { [two] u = Cos(h) }>
            [kept] k = Sqrt(h)
            z = If (c) < then_branch = e () => (float[4] f) { f = Neg(k) },
                else_branch = g () => (float[4] i) { i = Identity(k) }>
        }"""
    )
    run, x = opened("model", compile_model(data, "model")), abs(values(4))
    for c, side in ((True, "one"), (False, "two")):
        answer, steps = run.run({"x": x, "c": yes_no(c)}, profile=True)
        names = {step.name for step in steps if step.ms > 0}
        assert {"shared", "kept", side} <= names and not {"one", "two"} - {side} <= names
        numpy.testing.assert_allclose(numpy.asarray(answer["z"]), numpy.sqrt(numpy.exp(x)) * (-1 if c else 1), 1e-5)


def loop(count="", condition="", goes="on", body="h_new = Neg(h)", scan=False):
    more = (", float[2] row", "row = Identity(h)", ", rows") if scan else ("", "", "")
    return f"""loop (float[2] x, bool c, int64 m) => (float[2] y) {{
        y{more[2]} = Loop ({count}, {condition}, x) <body = step (int64 k, bool on, float[2] h)
            => (bool goes, float[2] h_new{more[0]}) {{
            goes = Identity({goes})
            {body}
            {more[1]}
        }}>
    }}"""


def deep(levels):
    text = "v = Neg(x)"
    for level in range(levels):
        text = f"""v = If (c) <
            then_branch = t{level} () => (float[2] v{level}) {{ {text.replace("v =", f"v{level} =")} }},
            else_branch = e{level} () => (float[2] w{level}) {{ w{level} = Abs(x) }}>"""
    return f"deep (float[2] x, bool c) => (float[2] v) {{ {text} }}"


# As TorchScript exports `while i < n: h = sin(h) if h.sum() > 0 else abs(h) + 0.5`.
WHILE = """m (float[3] x, int64 n) => (float[3] y, int64 i) {{
    c = Less(zero, n)
    y, i = Loop (many, c, x, zero) <body = b (int64 k, bool o, float[3] h, int64 j)
        => (bool goes, float[3] g, int64 l) {{
        l = Add(j, one)
        s = ReduceSum <keepdims = 0> (h)
        p = Greater(s, none)
        g = If (p) < then_branch = t () => (float[3] u) {{ u = Sin(h) }},
            else_branch = e () => (float[3] v) {{ w = Abs(h) v = Add(w, half) }}>
        {}
    }}>
}}"""
WHILE_CONSTANTS = {
    "zero": numpy.int64(0),
    "one": numpy.int64(1),
    "none": numpy.float32(0),
    "half": numpy.float32(0.5),
    "many": numpy.int64(2**63 - 1),
}
MANY, TRUE = numpy.int64(10**12), yes_no(True)
REFUSED = [
    (loop(), {}, "Loop", "an unknown number of iterations"),
    (loop(condition="t"), {"t": TRUE}, "Loop", "an unknown number of iterations"),
    (loop(condition="c"), {}, "Loop", "is a while loop that only its condition ends"),
    (loop(condition="c", goes="c", count="n"), {"n": MANY}, "Loop", "add a constant limit to the condition"),
    (WHILE.format("goes = Less(l, n)"), WHILE_CONSTANTS, "Loop", "is a while loop that only its condition ends"),
    (loop(count="m"), {}, "Loop", "has a number of iterations that is computed at run time"),
    (loop(count="n", goes="c", scan=True), {"n": numpy.int64(3)}, "Loop", "and has scan outputs"),
    (loop(count="n", body="h_new = Concat <axis = 0> (h, h)", goes="c"), {"n": numpy.int64(3)}, "Loop", "(8,) in one"),
    (loop(count="n", body="h_new = Det(h)"), {"n": numpy.int64(3)}, "Det", ""),
    (loop(count="n"), {"n": numpy.float32(3)}, "Loop", ""),
    (loop(count="n", body="h_new = Neg(missing)"), {"n": numpy.int64(3)}, "", "missing"),
    (loop(count="n", body="g = Neg(h_new)\nh_new = Neg(g)"), {"n": numpy.int64(3)}, "", "h_new"),
    (deep(20), {}, "If", "more than 16 nested graphs"),
    (
        """other (float[n, 3] x, bool c) => (float[m, 3] y) {
            y = If (c) < then_branch = a () => (float[o, 3] t) { t = Concat <axis = 0> (x, x) },
                else_branch = b () => (float[n, 3] u) { u = Neg(x) }>
        }""",
        {},
        "If",
        "gives a tensor of shape (2*n, 3) in one case and (n, 3) in the other",
    ),
    (
        """ranks (float[2, 3] x, bool c) => (float[m, 3] y) {
            y = If (c) < then_branch = a () => (float[2, 3] t) { t = Neg(x) },
                else_branch = b () => (float[3] u) { u = ReduceSum <keepdims = 0> (x, axes) }>
        }""",
        {"axes": numpy.array([0])},
        "If",
        "gives a tensor of shape (2, 3) in one case and (3,) in the other, by a condition computed at run time; export",
    ),
    (
        """kinds (float[3] x, bool c) => (float[3] y) {
            y = If (c) < then_branch = a () => (float[3] t) { t = Neg(x) },
                else_branch = b () => (double[3] u) { u = Cast <to = 11> (x) }>
        }""",
        {},
        "",
        "",
    ),
    (
        """open (float[n, 3] x) => (float[3] y) {
            y, z = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] r) => (float[3] t, float[3] u) {
                t = Add(s, r)
                u = Neg(t)
            }> (h, x)
        }""",
        {"h": numpy.zeros(3, "float32")},
        "Scan",
        "goes through a dimension of the open size n",
    ),
    (
        "far (float[2, 4] x) => (float[2, 2] y) { s = SplitToSequence <axis = 1> (x, two)\ny = SequenceAt(s, two) }",
        {"two": numpy.int64(2)},
        "SequenceAt",
        "has position 2 of a sequence of 2",
    ),
    ("alone (float[2] x) => (float[2] y) { y = SequenceAt(x, i) }", {"i": numpy.int64(0)}, "", ""),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_stands_in_its_own_way_is_told(number):
    text, weights, operator, message = REFUSED[number]
    with pytest.raises(OnnxError) as caught:
        compile_model(model(text, **weights), "model.onnx")
    told = str(caught.value)
    assert told.startswith("model.onnx: ") and message in told and operator in told, told
    assert len(caught.value.messages) <= 2, told


@pytest.mark.parametrize(
    "condition",
    [
        "a = Less(l, n) b = Less(l, limit) goes = And(a, b)",
        """a = Less(l, n) goes = If (a) < then_branch = f () => (bool b) { b = Less(l, limit) },
            else_branch = q () => (bool d) { d = Identity(no) }>""",
        """a = Less(l, limit) goes = If (a) < then_branch = f () => (bool b) { b = Less(l, n) },
            else_branch = q () => (bool d) { d = Identity(no) }>""",
    ],
    ids=["and", "second", "first"],
)
def test_while_loops_with_a_limit_run_around_branches(condition):
    limits = {"limit": numpy.int64(12)} | ({"no": yes_no(False)} if "no)" in condition else {})
    data = model(WHILE.format(condition), **WHILE_CONSTANTS, **limits)
    run = opened("model", compile_model(data, "model"))
    given = [{"x": numpy.float32([0.3, -0.9, 0.2]), "n": numpy.array(n)} for n in (-1, 0, 1, 5, 12, 40)]
    for own, theirs in zip(given, networks.each_by_onnx_runtime([(data, some) for some in given])):
        for answer, wanted in zip(run(own).values(), theirs):
            numpy.testing.assert_allclose(answer, wanted, atol=1e-6)


def test_loops_within_loops_are_bounded():
    """A thousand iterations of a thousand iterations are refused long before they are all unrolled."""
    text = """loops (float[2] x) => (float[2] y) {
        y = Loop (n, , x) <body = outer (int64 k, bool on, float[2] h) => (bool goes, float[2] h_new) {
            goes = Identity(on)
            h_new = Loop (n, , h) <body = inner (int64 l, bool o, float[2] g) => (bool goes2, float[2] g_new) {
                goes2 = Identity(o)
                g_new = Sin(g)
            }>
        }>
    }"""
    with pytest.raises(OnnxError, match="unrolls to more than"):
        compile_model(model(text, n=numpy.int64(1000)), "model.onnx")


def test_sequences_are_lists_of_arrays():
    """Of tensors of different kinds: twice the same, an input, a constant, another output."""
    data = model(
        """s (float[n, 2] x) => (float[n, 2] a, seq(float) y, seq(float) z, float[n, 2] b) {
            a = Neg(x)
            h = Exp(x)
            v = ReduceSum <keepdims = 0> (h)
            y = SequenceConstruct(h, x, h, c, a)
            k = Relu(x)
            z = SequenceConstruct(k, k)
            b = Identity(h)
        }""",
        c=values(3),
    )
    run = opened("model", compile_model(data, "model"))
    assert [(port.name, port.type, port.shape) for port in run.outputs] == [
        ("a", "tensor(float)", ("n", 2)),
        ("y", "seq(tensor(float))", ()),
        ("z", "seq(tensor(float))", ("n", 2)),
        ("b", "tensor(float)", ("n", 2)),
    ]
    assert [port.shape for port in run.outputs[1].items] == [("n", 2)] * 3 + [(3,), ("n", 2)]
    given = {"x": values(4, 2)}
    [theirs] = networks.each_by_onnx_runtime([(data, given)])
    ours = run.run(None, given)
    assert [type(own) is list for own in ours] == [False, True, True, False]
    for own, wanted in zip((ours[0], *ours[1], *ours[2], ours[3]), (theirs[0], *theirs[1], *theirs[2], theirs[3])):
        numpy.testing.assert_allclose(own, wanted, atol=1e-6)
    assert run.run(["z"], given)[0][1].shape == (4, 2)
    run.warmup()
    with pytest.raises(ValueError, match="out: a model with texts or lists"):
        run(given, out={"a": ours[0]})


def test_sequences_of_what_is_found():
    data = model(
        """s (float[6] x) => (seq(float) y, int64[m] k) {
            f = NonZero(x)
            k = Squeeze(f, zeroth)
            g = Gather(x, k)
            y = SequenceConstruct(x, g)
        }""",
        zeroth=numpy.int64([0]),
    )
    run = opened("model", compile_model(data, "model"))
    for x in (numpy.float32([0, 1, 0, 2, 0, 0]), numpy.zeros(6, "float32")):
        answer = run({"x": x})
        assert [own.tolist() for own in answer["y"]] == [x.tolist(), x[x != 0].tolist()]
        assert answer["k"].tolist() == numpy.flatnonzero(x).tolist()


def test_notes_on_sequences_that_are_damaged_are_refused():
    data = bytes(
        compile_model(model("s (float[2] x) => (seq(float) y) { h = Exp(x) y = SequenceConstruct(h, h) }"), "m")
    )
    for damage in ((b'"y[1]"', b'"y[0]"'), (b'"y[1]"', b'"y[7]"'), (b'{"y": [', b'{"y": {'), (b'{"y": [', b'["y", [')):
        assert damage[0] in data
        with pytest.raises(ValueError, match="damaged"):
            opened("m", data.replace(*damage))


def test_models_that_take_sequences_or_give_empty_ones_say_so():
    with pytest.raises(OnnxError, match="input s: is a sequence or an optional"):
        compile_model(
            model("s (seq(float[2]) s, float[2] x) => (float[2] y) { y = SequenceAt(s, i) }", i=numpy.int64(0)), "m"
        )
    with pytest.raises(OnnxError, match="output y: is an empty sequence"):
        compile_model(model("s (float[2] x) => (seq(float[2]) y, float[2] z) { y = SequenceEmpty() z = Neg(x) }"), "m")
    with pytest.raises(OnnxError, match="output y: is an optional"):
        compile_model(model("s (float[2] x) => (optional(float[2]) y) { y = Optional(x) }"), "m")


SIZES_DIFFER = """sizes (float[2, 3] x, bool c) => (float[m, k] y, float[m, k] z) {
    y = If (c) <
        then_branch = a () => (float[4, 3] t) { t = Concat <axis = 0> (x, x) },
        else_branch = b () => (float[2, 1] u) { u = ReduceMax <axes = [1]> (x) }>
    z = Relu(y)
}"""
NO_ITERATION = """none (float[2, 3] x) => (float[2, 3] f, float[n, 2, 3] rows, float[m, 2, 3] y, int64[3] size) {
    f, rows = Loop (trips, goes, x) <body = step (int64 i, bool b, float[2, 3] h) =>
            (bool b_new, float[2, 3] h_new, float[2, 3] row) {
        b_new = Identity(b)
        h_new = Add(h, x)
        row = Mul(h_new, h_new)
    }>
    x_row = Unsqueeze(x, zeroth)
    y = Concat <axis = 0> (rows, x_row)
    size = Shape(rows)
}"""
RETURNED = """returned (float[n, 3] x) => (float[n, 3] x, float[n, 3] y) { y = Neg(x) }"""
FOUND = """found (float[n, 3] x) => (float[n, 3] x, int64[2, m] y) { y = NonZero(x) }"""
REVERSED = """reversed (float[a, b, 2] x, int64[{}] lengths) => (float[a, b, 2] y) {{
    y = ReverseSequence <time_axis = {}, batch_axis = {}> (x, lengths)
}}"""
TWO = values(2, 3)


@pytest.mark.parametrize(
    ("text", "constants", "calls"),
    [
        (SIZES_DIFFER, {}, [{"x": TWO, "c": yes_no(side)} for side in (True, False, True)]),
        (NO_ITERATION, {"trips": numpy.int64(0), "goes": yes_no(True), "zeroth": numpy.array([0])}, [{"x": TWO}]),
        (NO_ITERATION, {"trips": numpy.int64(3), "goes": yes_no(False), "zeroth": numpy.array([0])}, [{"x": TWO}]),
        (NO_ITERATION, {"trips": numpy.int64(2), "goes": yes_no(True), "zeroth": numpy.array([0])}, [{"x": TWO}]),
        (RETURNED, {}, [{"x": TWO}, {"x": TWO[:0]}]),
        (FOUND, {}, [{"x": TWO}, {"x": TWO[:0]}]),
        (
            REVERSED.format("b", 0, 1),
            {},
            [
                {"x": values(4, 3, 2), "lengths": numpy.array([4, 1, 2])},
                {"x": values(1, 1, 2), "lengths": numpy.array([1])},
            ],
        ),
        (REVERSED.format("a", 1, 0), {}, [{"x": values(4, 3, 2), "lengths": numpy.array([3, 1, 2, 1])}]),
    ],
    ids=["branches", "no trip", "no condition", "two trips", "input", "input beside a count", "times", "batches"],
)
def test_what_exporters_write_though_sizes_and_names_are_unusual(text, constants, calls):
    data = model(text, **constants)
    theirs = networks.each_by_onnx_runtime([(data, call) for call in calls])
    run = opened("unusual", compile_model(data, "unusual"))
    for call, expected in zip(calls, theirs, strict=True):
        answers = run(call)
        for port, wanted in zip(run.outputs, expected, strict=True):
            numpy.testing.assert_allclose(numpy.asarray(answers[port.name]), wanted, 1e-6, strict=True)
