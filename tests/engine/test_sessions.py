"""Other features of a session than answers: its steps and their times, options, warming up, the choice of algorithms,
and prepared models in files."""

import os

import numpy
import pytest
from onnx import helper

import vmhost.engine.numpy as np
from bench import other_models
from tests import networks
from tests.engine.test_models import window
from vmhost import engine
from vmhost.engine import library
from vmhost.engine._vme import ffi, lib
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A network of 3x3 windows at stride 1 among others, as a model file."""
    path = tmp_path_factory.mktemp("models") / "network.vmm"
    path.write_bytes(compile_model(networks.small(size=64, width=16), "network"))
    return path


CHOICES = 48  # the size of a kept file's header: what was chosen for each step follows


def image(seed=0):
    return np.asarray(networks.values((1, 3, 64, 64), seed))


def test_a_profile_tells_of_every_step(path):
    model = engine.load(path)
    outputs, profile = model.run({"input": image()}, profile=True)
    assert (
        outputs["output"].tobytes()
        == model({"input": image()})["output"].tobytes()
        == model.run({"input": image()})["output"].tobytes()
    )
    first, stem, *_, last = profile
    assert (first.kind, first.name, last.kind, last.name) == ("Input", "input", "Output", "output")
    assert (stem.kind, stem.name, stem.algorithm, stem.shape, stem.dtype) == (
        "Conv",
        "stem",
        "direct",
        (1, 16, 32, 32),
        np.float32,
    )
    assert stem.products == 16 * 32 * 32 * 3 * 7 * 7
    assert stem.bytes == 4 * (3 * 64 * 64 + 16 * 32 * 32 + 16 * (3 * 7 * 7 + 1))
    assert all(step.ms > 0 for step in (first, stem, last))
    assert all(step.expected_ms > 0 for step in profile if step.algorithm != "nothing")
    assert [step.name for step in model.steps] == [step.name for step in profile] and all(
        step.ms is None for step in model.steps
    )


def test_a_profile_tells_products_of_matrices():
    data = networks.graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"], name="square")], {"x": (3, 20, 20)}, {"y": (3, 20, 20)}
    )
    from vmhost.engine import _array
    from vmhost.engine.models import Model

    (product,) = (
        step for step in Model("model", _array._model_open(compile_model(data, "model"))).steps if step.kind == "MatMul"
    )
    assert (product.name, product.products) == ("square", 3 * 20 * 20 * 20)


def test_warming_up_is_a_run_on_zeros(path):
    model = engine.load(path, search="fixed")
    assert model.warmup() is None
    assert (
        engine.load(path, search="fixed")({"input": image()})["output"].tobytes()
        == model({"input": image()})["output"].tobytes()
    )


@pytest.mark.parametrize("threads", [1, 2, 1000])
def test_any_limit_of_threads_gives_the_same_bytes(path, threads):
    expected = engine.load(path, search="fixed")({"input": image()})["output"].tobytes()
    assert engine.load(path, threads=threads, search="fixed")({"input": image()})["output"].tobytes() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads: expected 1 or more, got -1"),
        ({"search": "fast"}, "search: expected measured or fixed, got 'fast'"),
        ({"precision": "float16"}, "precision: expected float32, got 'float16'; .*leave it out"),
    ],
)
def test_wrong_options_say_so(path, options, message):
    with pytest.raises(ValueError, match=message):
        engine.load(path, **options)


def test_ftz_counts_subnormal_numbers_as_zero(tmp_path):
    data = networks.graph(
        [helper.make_node("Mul", ["x", "half"], ["y"])], {"x": (70000,)}, {"y": (70000,)}, {"half": numpy.float32(0.5)}
    )
    path = tmp_path / "half.vmm"
    path.write_bytes(compile_model(data, "half"))
    tiny = np.asarray(numpy.full(70000, numpy.finfo("float32").tiny))
    assert engine.load(path)({"x": tiny})["y"].all()
    assert not engine.load(path, ftz=True)({"x": tiny})["y"].any()
    assert (tiny * np.float32(0.5)).all()  # what else the thread computes is as before


def test_fixed_choices_go_by_the_built_in_rates_alone(path):
    def choices(search):
        return [step.algorithm for step in engine.load(path, search=search).steps]

    fixed = choices("fixed")
    assert "winograd2" in fixed or "winograd4" in fixed
    rates, built_in = library.measured_rates(), library.fixed_rates()
    try:  # a core on which Winograd's points take 250 times as long beside products
        library.set_rates(
            built_in
            | {
                "products": built_in["products"] * 15.9,
                **{name: built_in[name] / 15.9 for name in ("points_2", "points_4")},
            }
        )
        assert set(choices("measured")) <= {"", "direct", "nothing"}
        assert choices("fixed") == fixed
    finally:
        library.set_rates(rates)


def test_few_rows_are_no_reason_for_narrow_vectors():
    """Open sizes are prepared at one row, where times say little."""
    model, _ = other_models.make("classic/linear_regression")
    found = opened("linear", compile_model(model.SerializeToString(), "linear"), search="fixed").backends
    assert next(iter(found)) == [backend.name for backend in library.backends() if backend.available][-1]


def test_the_backend_with_the_least_total_is_the_models(path, tmp_path):
    available = [backend.name for backend in library.backends() if backend.available]
    model = engine.load(path, search="fixed")
    totals = model.backends
    assert (
        list(totals)[0] == available[-1]
        and set(totals) == set(available)
        and min(totals, key=totals.get) == available[-1]
    )
    assert sum(step.expected_ms for step in model.steps) == pytest.approx(
        totals[available[-1]], rel=0.01
    )  # flattening turns out to take no time
    expected = model({"input": image()})["output"]
    library.force_backend(available[0])
    try:
        assert list(engine.load(path).backends) == [available[0]]
    finally:
        library.force_backend(None)
    if len(available) == 1:
        return
    rates, built_in = library.measured_rates(), library.fixed_rates()
    try:  # a core that is slow with the best kernels only
        library.set_rates({name: rate / 15.9 for name, rate in built_in.items()})
        slow = engine.load(path)
        assert list(slow.backends)[0] == available[-2] == min(slow.backends, key=slow.backends.get)
        assert numpy.allclose(
            numpy.asarray(slow({"input": image()})["output"]), numpy.asarray(expected), rtol=0, atol=1e-5
        )
        data, kept = path.read_bytes(), tmp_path / "kept"
        assert not library.Model(data, kept=kept).was_kept
    finally:
        library.set_rates(rates)
    assert library.Model(data, kept=kept).was_kept  # and is what it was made for: that backend's layout
    library.force_backend(available[-1])
    try:
        assert not library.Model(data, kept=kept).was_kept
    finally:
        library.force_backend(None)


def everything():
    """A model file with each kind of step whose kernels are a backend's own, on numbers whose sums differ with the
    order in which they are taken."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Sigmoid", ["m"], ["s"]),
        node("Mul", ["m", "s"], ["bent"]),
        node("LayerNormalization", ["bent", "scale"], ["n"], axis=-1),
        node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["n", "t"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "n"], ["a"]),
        node("MatMul", ["a", "t"], ["product"]),
        node("Softmax", ["product"], ["q"], axis=-1),
        node("Tanh", ["product"], ["tanh"]),
        node("Exp", ["tanh"], ["exp"]),
        node("ReduceSum", ["exp", "axes"], ["sums"]),
        node("CumSum", ["exp", "axis"], ["scan"]),
        node("Gelu", ["exp"], ["gelu"]),
        node("Sigmoid", ["a"], ["sigmoid"]),
        node("Concat", ["q", "scan", "gelu", "sums", "sigmoid"], ["y"], axis=-1),
    ]
    constants = {
        "w": networks.values((65, 129), 1),
        "scale": networks.values((129,), 2),
        "axes": numpy.array([-1]),
        "axis": numpy.array(2),
    }
    return compile_model(
        networks.graph_of(nodes, {"x": networks.values((2, 37, 65))}, ("y",), constants, 20), "model.onnx"
    )


@pytest.mark.parametrize("algorithm", ["fused", "apart"])
def test_how_attention_is_done_is_kept_too(tmp_path, algorithm):
    def chosen(model):
        told = ffi.new("vme_step *")
        for number in range(lib.vme_model_steps(model._model)):
            lib.vme_model_step(model._model, number, told)
            if ffi.string(told.kind) == b"Attention":
                yield ffi.string(told.algorithm).decode()

    data, kept = everything(), tmp_path / "kept"
    library.force_algorithm(algorithm)
    try:
        assert list(chosen(library.Model(data, search="fixed", kept=kept))) == [algorithm]
    finally:
        library.force_algorithm(None)
    again = library.Model(data, search="fixed", kept=kept)
    assert again.was_kept and list(chosen(again)) == [algorithm]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", ["fused", "apart"])
def test_all_steps_of_a_model_run_on_its_backend(threads, algorithm):
    """A model runs on the backend that it was prepared for, not on the process's; the thread's other operators
    run on the process's."""
    data, x = everything(), np.asarray(networks.values((2, 37, 65)))
    answers, kinds = {}, set()
    library.force_algorithm(algorithm)
    try:
        for backend in (backend.name for backend in library.backends() if backend.available):
            library.force_backend(backend)
            model = opened("model", data, search="fixed", threads=threads)
            answers[backend] = model({"x": x})["y"].tobytes()
            kinds |= {step.kind for step in model.steps}
            exponentials = np.exp(x).tobytes()
            for other in (other.name for other in library.backends() if other.available):
                library.force_backend(other)
                assert model({"x": x})["y"].tobytes() == answers[backend]
            library.force_backend(backend)
            assert np.exp(x).tobytes() == exponentials
    finally:
        library.force_algorithm(None)
        library.force_backend(None)
    assert {"Attention", "Softmax", "Normalize", "MatMul", "Unary", "Reduce", "Scan", "Activate"} <= kinds
    assert len(set(answers.values())) == len(answers)  # else it would show nothing


def test_measured_rates_are_kept_and_impossible_ones_refused():
    rates = library.measured_rates()
    assert rates == library.measured_rates() and set(rates) == set(library.RATES)
    assert all(rate / 16 < rates[name] < rate * 16 for name, rate in library.fixed_rates().items())
    with pytest.raises(library.EngineError, match="is implausible for a core"):
        library.set_rates(rates | {"bytes": 1e9})
    assert rates == library.measured_rates()


def test_a_prepared_model_is_kept_and_mapped(path, tmp_path):
    data, kept = path.read_bytes(), tmp_path / "kept"
    assert not library.Model(data, kept=kept).was_kept
    assert kept.stat().st_mode & 0o777 == 0o600 and [kept] == list(tmp_path.iterdir())
    assert library.Model(data, kept=kept).was_kept
    kept.unlink()
    model = library.Model(data, kept=tmp_path / "no folder" / "kept")
    assert not model.was_kept and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", ["short", "of others", "writable", "garbage", "link", "another model", "a bit", "a choice"]
)
def test_a_kept_file_that_is_not_ours_or_not_whole_is_made_anew(path, tmp_path, change):
    data, kept = path.read_bytes(), tmp_path / "kept"
    library.Model(data, kept=kept)
    good = kept.read_bytes()
    if change == "short":
        os.truncate(kept, len(good) - 1)
    elif change == "writable":
        kept.chmod(0o622)
    elif change == "garbage":
        kept.write_bytes(b"\xff" * len(good))
    elif change == "a bit":  # as a disk may lose one: weights would be wrong, and answers
        kept.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
    elif change == "a choice":
        kept.write_bytes(good[:CHOICES] + bytes([good[CHOICES] ^ 1]) + good[CHOICES + 1 :])
    elif change == "link":
        kept.rename(tmp_path / "other")
        kept.symlink_to(tmp_path / "other")
    elif change == "another model":
        library.Model(compile_model(window(), "other"), kept=tmp_path / "other")
        (tmp_path / "other").rename(kept)
    else:
        try:
            os.chown(kept, 12345, 12345)
        except PermissionError:
            pytest.skip("this user may not give files away")
    assert not library.Model(data, kept=kept).was_kept
    assert kept.read_bytes() == good and library.Model(data, kept=kept).was_kept


def test_a_model_like_another_takes_its_choices_without_a_search(path, tmp_path):
    """Forced choices replace measured ones: they can come only from the previous model."""
    free = [step.algorithm for step in engine.load(path, search="fixed").steps]
    library.force_algorithm("im2col")
    try:
        before = engine.load(path)
    finally:
        library.force_algorithm(None)
    chosen = [step.algorithm for step in before.steps]
    other = compile_model(networks.small(size=64, width=16, seed=1), "network")
    after = opened("after", other, search="fixed", like=before)
    assert [step.algorithm for step in after.steps] == chosen != free
    expected = opened("expected", other, search="fixed")({"input": image()})["output"]
    assert np.allclose(after({"input": image()})["output"], expected, atol=1e-4)
    # of another network: as without
    one = compile_model(window(), "window")
    assert [step.algorithm for step in opened("window", one, search="fixed", like=before).steps] == [
        step.algorithm for step in opened("window", one, search="fixed").steps
    ]
