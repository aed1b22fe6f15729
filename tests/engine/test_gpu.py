"""Networks and tables on a GPU against those on the CPU. Needs a GPU and libvme_cuda.so: `make gpu-tests`; a machine
without them fails here, and says what is missing."""

import gc
import threading

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.engine.gpu_networks import OPERATORS, click_network, inputs_of, one_operator
from vmhost.engine import optim
from vmhost.engine.cuda import CudaTable, Options, gpu
from vmhost.engine.embedding import (
    CheckpointError,
    CounterFilter,
    EmbeddingVariable,
    GlobalStepEvict,
    L2WeightEvict,
    Ragged,
    group_embedding_lookup_sparse,
    restore,
    save,
)
from vmhost.engine.models import opened

pytestmark = pytest.mark.gpu
SWITCHES = ("streams", "merged_copies", "copy_stream", "graphs", "fused")


@pytest.fixture(autouse=True, scope="module")
def the_gpu_is_open():
    """CUDA keeps threads and files for the process: they are opened before the first test."""
    data = click_network("deepfm")
    model = opened("deepfm", data, device="cuda")
    model.warmup({"batch": 2})
    CudaTable(4)


def close(one, other, tolerance=1e-5):
    for name in other:
        got, wanted = numpy.asarray(one[name]), numpy.asarray(other[name])
        assert got.shape == wanted.shape
        assert numpy.allclose(got, wanted, rtol=tolerance, atol=tolerance * max(1, abs(wanted).max())), (
            name,
            abs(got - wanted).max(),
        )


# ---- networks
@pytest.mark.parametrize("kind", ["deepfm", "din", "dlrm"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_click_network_gives_what_the_cpu_gives(kind, fused):
    data = click_network(kind)
    cpu, model = opened(kind, data), opened(kind, data, device="cuda", device_options=Options(fused=fused))
    model.warmup({"batch": 64})
    for batch in (1, 2, 64, 64, 513, 2048):
        inputs = inputs_of(cpu, batch, batch)
        close(model(inputs), cpu(inputs))


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_changes_no_answer(switch):
    data = click_network("deepfm")
    base = Options(copy_stream=True)
    other = Options(**{**vars(base), switch: not getattr(base, switch)})
    one, two = (opened("deepfm", data, device="cuda", device_options=options) for options in (base, other))
    for model in (one, two):
        model.warmup({"batch": 100})
    for seed in range(5):
        inputs = inputs_of(one, 100, seed)
        close(two(inputs), one(inputs), 1e-6)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("fused", [True, False])
def test_an_operator_gives_what_the_cpu_gives(name, fused):
    data = one_operator(name)
    cpu, model = opened(name, data), opened(name, data, device="cuda", device_options=Options(fused=fused))
    for batch in (1, 3, 700):
        inputs = inputs_of(cpu, batch, 1)
        close(model(inputs), cpu(inputs), 1e-5)


def test_nan_and_infinity_pass_as_on_the_cpu():
    data = one_operator("relu")
    cpu, model = opened("relu", data), opened("relu", data, device="cuda")
    inputs = inputs_of(cpu, 4, 0)
    name = next(iter(inputs))
    inputs[name][0, 0], inputs[name][1, 0], inputs[name][2, 0] = numpy.nan, numpy.inf, -numpy.inf
    for output, wanted in cpu(inputs).items():
        assert numpy.array_equal(numpy.asarray(model(inputs)[output]), numpy.asarray(wanted), equal_nan=True)


def test_wrong_inputs_are_refused_and_the_next_call_works():
    data = click_network("deepfm")
    model, cpu = opened("deepfm", data, device="cuda"), opened("deepfm", data)
    inputs = inputs_of(cpu, 8, 0)
    name = model.inputs[0].name
    for wrong, error in (
        ({key: value for key, value in inputs.items() if key != name}, ValueError),
        (inputs | {"more": inputs[name]}, ValueError),
        (inputs | {name: inputs[name].astype("float64")}, TypeError),
        (inputs | {name: inputs[name][:4]}, ValueError),
        (inputs | {name: inputs[name][:, :2]}, ValueError),
    ):
        with pytest.raises(error, match=r"input|shape"):
            model(wrong)
    close(model(inputs), cpu(inputs))


def test_outputs_go_where_they_are_told_to():
    data = click_network("deepfm")
    model, cpu = opened("deepfm", data, device="cuda"), opened("deepfm", data)
    inputs, target = inputs_of(cpu, 8, 0), np.zeros((8,), "float32")
    given = model(inputs, out={"y": target})
    assert given["y"] is target
    close({"y": target}, cpu(inputs))


def test_staged_inputs_are_read_where_they_lie():
    data = click_network("deepfm")
    model, cpu = opened("deepfm", data, device="cuda"), opened("deepfm", data)
    inputs, staged = inputs_of(cpu, 32, 3), model.staging({"batch": 32})
    for name, array in staged.items():
        array[...] = inputs[name]
    close(model(staged), cpu(inputs))
    close(model(dict(staged)), cpu(inputs))
    doubled = {name: numpy.repeat(array, 2, axis=1) for name, array in inputs.items()}
    close(model({name: np.asarray(array)[:, ::2] for name, array in doubled.items()}), cpu(inputs))
    other = opened("deepfm", data, device="cuda")
    close(other(staged), cpu(inputs))  # another network's memory is read as any array
    del model, other
    gc.collect()
    assert numpy.array_equal(numpy.asarray(staged["numbers"]), inputs["numbers"])  # the memory lives on


def test_a_model_update_takes_sizes_over():
    first, second = click_network("deepfm", 0), click_network("deepfm", 1)
    model = opened("deepfm", first, device="cuda")
    model.warmup({"batch": 64})
    newer = opened("deepfm", second, device="cuda", like=model)
    assert newer.launches.keys() == model.launches.keys()
    inputs = inputs_of(model, 64, 0)
    close(newer(inputs), opened("deepfm", second)(inputs))
    close(model(inputs), opened("deepfm", first)(inputs))


def test_memory_is_within_its_limit_and_comes_back():
    data = click_network("deepfm")
    limit = 6 << 20
    with pytest.raises(MemoryError, match="limit"):
        opened("deepfm", data, device="cuda", device_memory=1 << 20)
    model = opened("deepfm", data, device="cuda", device_memory=limit)
    inputs = inputs_of(model, 16, 0)
    model(inputs)
    with pytest.raises(MemoryError, match="limit"):
        model(inputs_of(model, 4096, 0))
    close(model(inputs), opened("deepfm", data)(inputs))
    before = gpu("cuda", memory=limit).facts().used_bytes
    assert 0 < before <= limit
    del model
    assert gpu("cuda", memory=limit).facts().used_bytes == 0


def test_more_than_the_gpu_has_is_a_memory_error():
    data = click_network("deepfm")
    model, batch = opened("deepfm", data, device="cuda"), gpu("cuda").facts().memory_bytes // 4096
    with pytest.raises(MemoryError, match="GPU has no memory"):  # an arena of twice its memory
        model._plan((("batch", batch),))
    inputs = inputs_of(model, 4, 0)
    close(model(inputs), opened("deepfm", data)(inputs))


def test_many_threads_with_models_of_their_own():
    data = click_network("deepfm")
    cpu = opened("deepfm", data)
    wanted = {seed: cpu(inputs_of(cpu, 64, seed)) for seed in range(8)}
    errors = []

    def work(seed, shared):
        try:
            options = Options(streams=not shared, copy_stream=bool(seed % 2))
            model = opened("deepfm", data, device="cuda", device_options=options)
            model.warmup({"batch": 64})
            for _ in range(50):
                close(model(inputs_of(cpu, 64, seed)), wanted[seed])
        except BaseException as error:
            errors.append(error)

    for shared in (False, True):
        threads = [threading.Thread(target=work, args=(seed, shared)) for seed in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not errors


# ---- tables
def tables(dim, **options):
    options = {"initializer": 0.05, "default_value_dim": 64, "seed": 3, **options}
    return EmbeddingVariable(dim, **options), CudaTable(dim, **options)


def rows_of(table, keys):
    return numpy.asarray(table.lookup(np.asarray(keys)))


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1),
    "adagrad": lambda: optim.Adagrad(0.1, initial=0.1),
    "adam": lambda: optim.Adam(0.01),
    "ftrl": lambda: optim.Ftrl(0.1, l1=0.01, l2=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 130])
def test_gradient_steps_give_the_same_bytes(kind, dim):
    optimizer = OPTIMIZERS[kind]()
    cpu, ours = tables(dim, optimizer=optimizer)
    rng = numpy.random.default_rng(1)
    every = rng.integers(-(2**62), 2**62, 3000)
    for step in range(1, 13):
        optimizer.state["step"] = step
        keys = every[rng.integers(0, 250 * step, 700)]
        gradients = rng.normal(size=(700, dim)).astype("float32")
        for one in (cpu, ours):
            one.step(np.asarray(keys), np.asarray(gradients), optimizer)
    assert numpy.array_equal(rows_of(cpu, every), rows_of(ours, every))
    one, other = cpu.statistics(), ours.statistics()
    assert one[:3] == other[:3] and one.step == other.step and len(ours) == len(cpu) > 1000


@pytest.mark.parametrize("filter_freq", [2, 3])
def test_admission_is_that_of_the_cpu(filter_freq):
    optimizer = optim.SGD(1.0)
    options = {"filter": CounterFilter(filter_freq), "default_value_no_permission": 7.0, "optimizer": "sgd"}
    cpu, ours = tables(4, **options)
    rng = numpy.random.default_rng(2)
    for step in range(1, 20):
        optimizer.state["step"] = step
        keys = rng.integers(0, 200, 30)
        for one in (cpu, ours):
            one.step(np.asarray(keys), np.ones((30, 4), "float32"), optimizer)
        assert numpy.array_equal(rows_of(cpu, numpy.arange(220)), rows_of(ours, numpy.arange(220)))
        assert cpu.statistics()[:3] == ours.statistics()[:3]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("default_id", [None, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_and_their_gradients(combiner, default_id, weighted):
    rng = numpy.random.default_rng(3)
    optimizer = optim.Adagrad(0.1, initial=0.1)
    pairs = [tables(dim, optimizer=optimizer, name=f"t{dim}") for dim in (16, 5, 16, 64)]
    bags = 301
    for turn in range(4):
        optimizer.state["step"] = turn + 1
        ids, weights = [], []
        for _ in pairs:
            counts = rng.integers(0, 40 if turn else 3, bags)
            offsets = numpy.concatenate([[0], numpy.cumsum(counts)])
            ids.append(Ragged(np.asarray(rng.integers(-5, 900, offsets[-1])), np.asarray(offsets)))
            weights.append(np.asarray(rng.uniform(-0.2, 1, offsets[-1]).astype("float32")))
        found = []
        for side in (0, 1):
            some = [pair[side] for pair in pairs]
            found.append(group_embedding_lookup_sparse(some, ids, weights if weighted else None, combiner, default_id))
        for one, other in zip(*found):
            assert numpy.allclose(numpy.asarray(one), numpy.asarray(other), rtol=1e-5, atol=1e-6)
        for pair, one, weight in zip(pairs, ids, weights):
            gradient = rng.normal(size=(bags, pair[0].dim)).astype("float32")
            for table in pair:
                bag = (table._table, one.values, one.offsets, weight if weighted else None,
                       -1 if default_id is None else default_id, ["sum", "mean", "sqrtn"].index(combiner))  # fmt: skip
                rates = (0.1, 1e-10, 0.0, 0.0, 0.0, 0.0, 0.0, turn + 1, turn + 1)
                table.natives._embedding_update_bags([(*bag, np.asarray(gradient))], rates)
    for cpu, ours in pairs:
        keys = numpy.arange(900)
        assert numpy.allclose(rows_of(cpu, keys), rows_of(ours, keys), rtol=1e-5, atol=1e-6)
        assert cpu.statistics()[:3] == ours.statistics()[:3]


def trained(pair, optimizer, seed, steps=5):
    rng = numpy.random.default_rng(seed)
    for step in range(1, steps + 1):
        optimizer.state["step"] = step + 10 * seed
        keys, gradients = rng.integers(0, 3000, 400), rng.normal(size=(400, pair[0].dim)).astype("float32")
        for one in pair:
            one.step(np.asarray(keys), np.asarray(gradients), optimizer)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_saves_go_from_the_gpu_to_the_cpu_and_back(tmp_path, kind):
    optimizer = OPTIMIZERS[kind]()
    options = {"optimizer": optimizer, "filter": CounterFilter(2), "name": "t"}
    cpu, ours = tables(8, **options)
    trained((cpu, ours), optimizer, 1)
    for side, table in (("cpu", cpu), ("gpu", ours)):
        save([table], tmp_path / side)
        assert table.statistics().changed == 0
    trained((cpu, ours), optimizer, 2, 2)
    assert cpu.statistics()[:3] == ours.statistics()[:3] and ours.statistics().changed > 0
    for side, table in (("cpu", cpu), ("gpu", ours)):
        save([table], tmp_path / side, incremental=True)
    restored, ours = tables(8, **options)
    other = EmbeddingVariable(8, **options, initializer=0.05, default_value_dim=64, seed=3)
    for side, table in (("cpu", restored), ("cpu", ours), ("gpu", other)):  # the GPU reads what the CPU saved, and back
        restore([table], tmp_path / side)
        assert table.statistics()[:3] == restored.statistics()[:3]
        assert table.statistics().step == restored.statistics().step and len(table) == len(cpu) > 500
        assert numpy.array_equal(rows_of(table, numpy.arange(3000)), rows_of(cpu, numpy.arange(3000)))
    trained((restored, ours, other), optimizer, 3)  # slots, counts and waiting keys were there too
    for table in (ours, other):
        assert numpy.array_equal(rows_of(table, numpy.arange(3000)), rows_of(restored, numpy.arange(3000)))
    with pytest.raises(CheckpointError, match="apart"):
        save([cpu, CudaTable(8, name="other")], tmp_path / "both")


@pytest.mark.parametrize("evict", [GlobalStepEvict(3), L2WeightEvict(0.05)])
def test_eviction_is_that_of_the_cpu(tmp_path, evict):
    optimizer = optim.SGD(0.05)
    pair = tables(4, optimizer="sgd", evict=evict, filter=CounterFilter(2), name="t")
    for seed in range(1, 4):
        trained(pair, optimizer, seed)
        for side, table in enumerate(pair):
            save([table], tmp_path / str(side))
        assert pair[0].statistics()[:3] == pair[1].statistics()[:3]
        keys = numpy.arange(3000)
        assert numpy.array_equal(rows_of(pair[0], keys), rows_of(pair[1], keys))
    assert 0 < len(pair[1]) < 3000


def test_a_quota_is_an_error_and_the_table_goes_on():
    table = CudaTable(16, optimizer="sgd", initializer=0.05, default_value_dim=4, quota=2_000_000)
    optimizer, keys = optim.SGD(1.0), numpy.arange(2000)
    optimizer.state["step"] = 1
    with pytest.raises(MemoryError, match="quota"):
        for begin in range(0, 100_000, 2000):
            table.step(np.asarray(keys + begin), np.ones((2000, 16), "float32"), optimizer)
    assert table.statistics().bytes <= 2_000_000
    held = len(table)
    assert held > 2000
    before = rows_of(table, [0, 1])
    table.step(np.asarray([0, 1]), np.ones((2, 16), "float32"), optimizer)  # rows that are there need no room
    assert numpy.array_equal(rows_of(table, [0, 1]), before - 1) and len(table) == held


def test_lookups_beside_training_see_whole_steps():
    table = CudaTable(32, optimizer="sgd", initializer=np.zeros((1, 32), "float32"))
    optimizer, keys, stop, errors = optim.SGD(1.0), np.arange(500), threading.Event(), []

    def look_up():
        try:
            while not stop.is_set():
                rows = rows_of(table, range(500))
                assert (rows == rows[:, :1]).all() and (rows == numpy.round(rows)).all()
                assert (rows == rows[0, 0]).all()  # one step changes all of them under one lock
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for one in threads:
        one.start()
    for step in range(1, 201):
        optimizer.state["step"] = step
        table.step(keys, np.ones((500, 32), "float32"), optimizer)
    stop.set()
    for one in threads:
        one.join()
    assert not errors and (rows_of(table, range(500)) == -200).all()


def test_tables_of_the_host_and_of_the_gpu_are_not_read_in_one_call():
    cpu, ours = tables(4)
    with pytest.raises(ValueError, match="same GPU"):
        group_embedding_lookup_sparse([cpu, ours], [np.asarray([1]), np.asarray([1])])
    with pytest.raises(TypeError):
        ours.lookup(np.asarray([1.5]))
    with pytest.raises(ValueError, match="gradients"):
        ours.step(np.asarray([1]), np.ones((1, 5), "float32"), optim.Adagrad(0.1))


# ---- both
@pytest.mark.parametrize("weighted", [False, True])
def test_a_network_reads_tables_of_its_gpu(weighted):
    data = click_network("deepfm")
    cpu, model = opened("deepfm", data), opened("deepfm", data, device="cuda")
    optimizer, rng = optim.Adagrad(0.1, initial=0.1), numpy.random.default_rng(5)
    pairs = [tables(16, optimizer=optimizer, name=f"t{i}", seed=i) for i in range(26)]
    optimizer.state["step"] = 1
    for pair in pairs:
        for one in pair:
            one.step(np.arange(300), np.ones((300, 16), "float32"), optimizer)
    names = [port.name for port in model.inputs if port.name != "numbers"]
    model.bind({name: (ours, 0, -1) for name, (_, ours) in zip(names, pairs)})
    for batch in (1, 7, 64, 64, 300):
        bags, rows = {}, {"numbers": rng.normal(size=(batch, 13)).astype("float32")}
        for name, (other, _) in zip(names, pairs):
            offsets = numpy.concatenate([[0], numpy.cumsum(rng.integers(0, 4, batch))])
            ids = rng.integers(-2, 500, offsets[-1])
            weights = rng.uniform(0.1, 1, len(ids)).astype("float32") if weighted else None
            bags[name] = (np.asarray(ids), np.asarray(offsets), None if weights is None else np.asarray(weights))
            [rows[name]] = group_embedding_lookup_sparse(
                [other], [Ragged(*bags[name][:2])], None if weights is None else [bags[name][2]], "sum"
            )
        if batch == 64:
            model.warmup({"batch": 64})
        got = model.run_bags({"numbers": rows["numbers"]}, bags)
        close(got, cpu({name: np.asarray(one) for name, one in rows.items()}))
    with pytest.raises(ValueError, match="offsets"):
        broken = dict(bags)
        broken[names[0]] = (bags[names[0]][0], bags[names[0]][1][::-1].copy(), bags[names[0]][2])
        model.run_bags({"numbers": rows["numbers"]}, broken)
    with pytest.raises(ValueError, match="expected bags"):
        model.run_bags({"numbers": rows["numbers"]}, {})
