"""Models in VMs: opened by name from the task's own bundle, shared, charged for the memory of a run, stopped in the
middle of a run."""

import dataclasses
import threading
from concurrent.futures import CancelledError

import numpy
import pytest
from onnx import helper

import vmhost
from bench import other_models
from bench.networks import resnet18
from tests import networks
from tests.hosts import until
from vmhost.bytecode.format import read_bundle, write_bundle
from vmhost.compiler import compile_folder
from vmhost.engine import library
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model
from vmhost.limits import Policy

MAIN = """
from vmhost import engine

opened = {}

def run(value):
    name, inputs = value
    if name not in opened:
        opened[name] = engine.load(name)
    return opened[name](inputs)

def describe(name):
    model = engine.load(name)
    return [(port.name, str(port.dtype), list(port.shape)) for port in (*model.inputs, *model.outputs)]

def open_bytes(data):
    from vmhost.engine import _array
    return _array._model_open(data)

def open_by_name(name):
    from vmhost.engine import _array
    try:
        return _array._model_open(name) and "opened"
    except LookupError as error:
        return str(error)

def module_named(name):
    import _vmhost
    try:
        found = type(_vmhost.code(name)).__name__
    except ImportError as error:
        found = str(error)
    return found, _vmhost.find(name)

kept = []

def an_output_under_way(inputs):
    import threading
    import vmhost.engine.numpy as np
    model, out, stop, runs = engine.load("net"), np.zeros((1, 10), "float32"), [], threading.Semaphore(0)
    def write():
        number = 0
        while not stop:
            number += 1
            try:
                model({"input": inputs * np.float32(number)}, out={"output": out})
            except ValueError:
                return
            runs.release()
    kept[:] = [threading.Thread(target=write), stop]
    kept[0].start()
    runs.acquire()
    return out

def end(_):
    kept[1].append(1)
    kept[0].join()

def with_options(value):
    inputs, options = value
    model = engine.load("net", **options)
    model.warmup()
    outputs, steps = model.run(inputs, profile=True)
    return outputs, [(step.kind, step.ms >= 0) for step in steps]

def for_ever(inputs):
    from vmhost import guest
    model = engine.load("net")
    guest.host.begun(None)
    while True:
        model(inputs)
"""


def task_bundle(folder, models, name="vision", memory="64 MiB", main=MAIN):
    """The bytes of a bundle of a task with `models`, a mapping of names to ONNX models."""
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(main)
    for model, data in models.items():
        (folder / f"{model}.onnx").write_bytes(data)
    listed = ", ".join(f"{model}: {model}.onnx" for model in models)
    (folder / "task.yaml").write_text(
        f'name: {name}\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\n'
        f"limits: {{memory: {memory}}}\nmodels: {{{listed}}}\npermissions: {{host: [begun]}}\n"
    )
    return compile_folder(folder).to_bytes()


BEGUN = threading.Event()


@pytest.fixture
def host():
    # the machine may be busy: that a stopped thread gets no CPU for a while is no failure
    with vmhost.Host(
        allow_unsigned=True, policy=Policy(grace_s=10), functions={"begun": lambda _: BEGUN.set()}
    ) as new_host:
        yield new_host


def test_resnet18_answers_in_a_vm_as_onnx_runtime_does(host, tmp_path):
    model = resnet18().SerializeToString()
    task = host.load(
        task_bundle(tmp_path / "vision", {"resnet18": model}, memory="24 MiB")
    )  # less than its weights take
    inputs = [networks.values((1, 3, 224, 224), seed) for seed in range(2)]
    for x, theirs in zip(inputs, networks.by_onnx_runtime(model, inputs)):
        networks.assert_close(task(("resnet18", {"input": x}))["output"], theirs)


def test_a_task_opens_its_own_models_only(host, tmp_path):
    first = host.load(
        task_bundle(tmp_path / "a", {"small": networks.small(), "other": networks.small(seed=2)}, "first")
    )
    second = host.load(task_bundle(tmp_path / "b", {"another": networks.small()}, "second"))
    x = networks.values((1, 3, 32, 32))
    networks.assert_close(
        second(("another", {"input": x}))["output"], networks.expected(networks.small(), {"input": x})[0]
    )
    networks.assert_close(
        first(("other", {"input": x}))["output"], networks.expected(networks.small(seed=2), {"input": x})[0]
    )
    with pytest.raises(vmhost.TaskError, match="no model 'another'; it has other, small"):
        first(("another", {"input": x}))
    with pytest.raises(vmhost.TaskError, match="no model '../small'"):
        second(("../small", {"input": x}))


def test_an_arena_that_passes_the_memory_limit_ends_the_call(host, tmp_path):
    model, inputs = resnet18(size=448, width=32).SerializeToString(), {"input": networks.values((1, 3, 448, 448))}
    roomy = host.load(task_bundle(tmp_path / "a", {"net": model}, "roomy", "32 MiB"))
    assert roomy(("net", inputs))["output"].shape == (1, 1000)
    tight = host.load(task_bundle(tmp_path / "b", {"net": model}, "tight", "6 MiB"))
    with pytest.raises(vmhost.MemoryLimitError):
        tight(("net", inputs))


def test_a_wrong_call_says_what_was_expected(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"small": networks.small()}))
    with pytest.raises(vmhost.TaskError, match=r"small: input 'input': expected shape \(1, 3, 32, 32\), got \(2, 2\)"):
        task(("small", {"input": numpy.zeros((2, 2), "float32")}))


def test_a_damaged_model_stops_the_load(host, tmp_path):
    bundle = read_bundle(task_bundle(tmp_path / "a", {"small": networks.small()}), allow_unsigned=True)
    damaged = {"small": bundle.models["small"][:-64]}
    data = write_bundle(
        dataclasses.replace(bundle.manifest, files={}), bundle.modules, bundle.files, bundle.texts, models=damaged
    )
    with pytest.raises(
        vmhost.BundleError,
        match="vision 1.0.0: model small: not a model file that this engine can run: its header says",
    ):
        host.load(data)


def test_bytes_are_no_way_to_a_model_in_a_vm(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"small": networks.small()}))
    with pytest.raises(vmhost.TaskError, match="expected a model's name, got bytes"):
        task(b"VMEMODEL", entry="main:open_bytes")


def test_a_name_with_nul_is_no_models(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"net": networks.small()}))
    assert task("net", entry="main:open_by_name") == "opened"
    assert task("net\0", entry="main:open_by_name") == "this task's bundle has no model 'net\\x00'"
    assert "no model" in task("net\0other", entry="main:open_by_name")


def test_models_are_no_modules(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"net": networks.small()}))
    assert task("%net", entry="main:module_named") == ("no module named '%net' in the bundle", None)


def test_an_array_that_receives_outputs_crosses_as_a_copy(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"net": networks.small()}))
    for seed in range(20):
        shown = numpy.asarray(task(networks.values((1, 3, 32, 32), seed), entry="main:an_output_under_way"))
        before = shown.copy()
        task(None, entry="main:end")
        assert before.any() and (shown == before).all()


def test_ports_are_told_in_a_vm(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"small": networks.small()}))
    assert task("small", entry="main:describe") == [
        ("input", "float32", [1, 3, 32, 32]),
        ("output", "float32", [1, 10]),
    ]


def test_options_warming_up_and_profiles_are_there_in_a_vm(host, tmp_path):
    half = networks.graph(
        [helper.make_node("Mul", ["x", "half"], ["y"])], {"x": (70000,)}, {"y": (70000,)}, {"half": numpy.float32(0.5)}
    )
    task, fewest = (
        host.load(task_bundle(tmp_path / "a", {"net": half})),
        {"x": numpy.full(70000, numpy.finfo("float32").tiny)},
    )
    for options, subnormal in (({}, True), ({"threads": 1, "ftz": True, "precision": "float32"}, False)):
        outputs, steps = task((fewest, options), entry="main:with_options")
        assert bool(numpy.asarray(outputs["y"]).all()) is subnormal
        assert steps and all(took for _, took in steps)
    for options, message in (
        ({"precision": "float16"}, "precision: expected float32, got 'float16'"),
        ({"threads": -1}, "threads: expected 1 or more"),
        ({"search": "fixed"}, "search: expected nothing: the host has prepared the model"),
    ):
        with pytest.raises(vmhost.TaskError, match=message):
            task((fewest, options), entry="main:with_options")


def test_a_stop_in_the_middle_of_a_run(host, tmp_path):
    task = host.load(task_bundle(tmp_path / "a", {"net": resnet18(width=32).SerializeToString()}))
    BEGUN.clear()
    future = task.submit({"input": networks.values((1, 3, 224, 224))}, entry="main:for_ever")
    assert BEGUN.wait(60)
    cpu_s = sum(vm.cpu_s for vm in host.statistics().vms)
    until(lambda: sum(vm.cpu_s for vm in host.statistics().vms) > cpu_s + 0.02)
    future.stop()
    with pytest.raises(CancelledError):
        future.result(60)
    until(lambda: not any(vm.counters["buffer_bytes"] for vm in host.statistics().vms if vm.state != "ended"))
    assert not [vm for vm in host.statistics().vms if vm.state == "quarantined"]
    assert task("net", entry="main:describe")[0][0] == "input"


def test_prepared_models_are_kept_in_the_state_folder(tmp_path):
    data, value = networks.small(), ("net", {"input": networks.values((1, 3, 32, 32))})
    bundle = task_bundle(tmp_path / "task", {"net": data})
    given = {"functions": {"begun": lambda value: None}, "policy": Policy(allow=("host",)), "allow_unsigned": True}

    def answer():
        with vmhost.Host(state=tmp_path / "state", **given) as host:
            return numpy.asarray(host.load(bundle)(value)["output"]).tobytes()

    first = answer()
    kept = {file.name: file.stat().st_ino for file in (tmp_path / "state" / "models").iterdir()}
    assert len(kept) == 2 and "rates.json" in kept  # and one prepared model
    assert answer() == first
    assert {file.name: file.stat().st_ino for file in (tmp_path / "state" / "models").iterdir()} == kept
    (tmp_path / "state" / "models" / "rates.json").write_text("{}")
    assert answer() == first


@pytest.mark.parametrize("order", [("fixed", "measured"), ("measured", "fixed")])
def test_the_host_chooses_how_algorithms_are_searched_and_keeps_each_kind_apart(tmp_path, monkeypatch, order):
    """A model prepared with one kind of search is never mapped for the other; each finds its own again."""
    model = networks.small(width=32, size=64)
    bundle, value = task_bundle(tmp_path / "task", {"net": model}), ("net", {"input": networks.values((1, 3, 64, 64))})
    (tmp_path / "task.vmb").write_bytes(bundle)
    seen, prepare = [], library.Model
    monkeypatch.setattr(
        library,
        "Model",
        lambda data, search, kept, spend: seen.append((search, prepare(data, search, kept, spend))) or seen[-1][1],
    )
    answers = {}
    for search in (*order, *order):
        (tmp_path / "host.yaml").write_text(
            f"allow_unsigned: true\nstate: state\nload: [task.vmb]\nsearch: {search}\nfunctions: {{begun:"
            " 'builtins:id'}\n"
        )
        with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
            answers.setdefault(search, []).append(numpy.asarray(host.task("vision")(value)["output"]).tobytes())
    assert [name for name, _ in seen] == [*order, *order]
    assert [model.was_kept for _, model in seen] == [False, False, True, True]
    compiled = compile_model(model, "net")
    assert set(answers["fixed"]) == {
        numpy.asarray(opened("net", compiled, search="fixed")(value[1])["output"]).tobytes()
    }
    assert len(set(answers["measured"])) == 1
    kept = [file.name for file in (tmp_path / "state" / "models").iterdir()]
    assert len(kept) == 3 and "rates.json" in kept


def test_a_fixed_search_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "measured_rates", lambda: pytest.fail("measured"))
    bundle = task_bundle(tmp_path / "task", {"net": networks.small()})
    given = {"functions": {"begun": lambda value: None}, "allow_unsigned": True, "state": tmp_path / "state"}
    with vmhost.Host(policy=Policy(search="fixed"), **given) as host:
        host.load(bundle)
    assert len(list((tmp_path / "state" / "models").iterdir())) == 1
    with pytest.raises(vmhost.ConfigurationError, match="search: expected measured or fixed, got 'quick'"):
        Policy(search="quick")


def test_each_call_in_a_vm_chooses_the_open_sizes(host, tmp_path):
    model = networks.images()
    wide = networks.graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["between"]),
            helper.make_node("Exp", ["between"], ["more"]),
            helper.make_node("MatMul", ["more", "b"], ["y"]),
        ],
        {"x": ("rows", 8)},
        {"y": ("rows", 8)},
        {"a": networks.values((8, 4096), 1), "b": networks.values((4096, 8), 2)},
    )
    task = host.load(task_bundle(tmp_path / "a", {"small": model, "wide": wide}, memory="24 MiB"))
    assert task("small", entry="main:describe") == [
        ("input", "float32", ["batch", 3, 32, 32]),
        ("output", "float32", ["batch", 10]),
    ]
    for count in (1, 5, 2):
        x = networks.values((count, 3, 32, 32), count)
        networks.assert_close(task(("small", {"input": x}))["output"], networks.expected(model, {"input": x})[0])
    with pytest.raises(vmhost.MemoryLimitError):
        task(("wide", {"x": numpy.zeros((4000, 8), "float32")}))  # 64 MB between the products: the arena is the task's
    assert task(("wide", {"x": numpy.zeros((4, 8), "float32")}))["y"].shape == (4, 8)


def test_texts_go_into_a_models_vm_and_dicts_come_out(host, tmp_path):
    model, given = other_models.make("classic/columns_of_texts")
    here = opened("columns", compile_model(model.SerializeToString(), "columns"))
    given = {name: value.tolist() if value.dtype == object else value for name, value in given.items()}
    task = host.load(task_bundle(tmp_path / "task", {"columns": model.SerializeToString()}))
    assert task(("columns", given)) == here(given)
    assert set(here(given)["label"]) <= {"no", "yes", "maybe"}
    with pytest.raises(vmhost.TaskError, match="columns: input 'texts': expected str in lists of lists"):
        task(("columns", {**given, "texts": [[1, 2]]}))
