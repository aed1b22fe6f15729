"""Embedding tables of a host: what tasks are granted, many VMs that train one table, stops, and host.yaml."""

import threading

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle
from vmhost.engine.embedding import CounterFilter, EmbeddingVariable, restore, save
from vmhost.engine.optim import SGD
from vmhost.operations import exposition

TASK = """
import vmhost.engine.numpy as np
from vmhost import guest
from vmhost.engine import embedding, optim

optimizer = optim.Adagrad(1.0)

def train(ask):
    keys, steps = ask
    items = embedding.table("items")
    ones = np.ones((len(keys), items.dim), "float32")
    for step in range(1, steps + 1):
        items.step(keys, ones, optimizer, step)
    return items.lookup(keys)

def run(keys):
    return embedding.safe_embedding_lookup_sparse(embedding.table("items"), keys, combiner="sum")

def for_ever(keys):
    items = embedding.table("items")
    ones = np.ones((len(keys), items.dim), "float32")
    guest.host.begun(None)
    while True:
        items.step(keys, ones, optimizer)

def saves(_):
    from vmhost.engine import _array
    return _array._embedding_snapshot((embedding.table("items").handle,), False)

def native(name):
    from vmhost.engine import _array
    try:
        return type(_array._embedding_open(name)).__name__
    except LookupError as error:
        return str(error)

def odd_modules(name):
    import _vmhost
    try:
        found = type(_vmhost.code(name)).__name__
    except ImportError as error:
        found = str(error)
    return found, _vmhost.find(name), [name for name in _vmhost.modules("") if not name.isidentifier()]

def on_disk(folder):
    storage = embedding.SSDStorage(folder, memory=1 << 20, quota=32 << 20)
    embedding.EmbeddingVariable(4, optimizer="sgd", storage=storage)

def own(keys):
    mine = embedding.EmbeddingVariable(64, optimizer="sgd", name="mine")
    mine.step(keys, np.ones((len(keys), 64), "float32"), optim.SGD(1.0))
    return len(mine)
"""


def made(**options):
    options = {"quota": 1 << 30} | options
    return EmbeddingVariable(4, initializer=np.zeros((1, 4), "float32"), name="items", **options)


@pytest.fixture
def host():
    begun = threading.Event()
    table = made()
    functions = {"begun": lambda _: begun.set()}
    with vmhost.Host(allow_unsigned=True, tables={"items": table}, functions=functions) as running:
        running.begun = begun
        yield running


def loaded(host, tables, name="trainer", **more):
    return host.load(
        bundle(TASK, name, permissions={"tables": tables, "host": ["begun"], **more.pop("also", {})}, **more)
    )


def test_a_task_trains_what_another_one_reads(host):
    trainer, reader = loaded(host, ["items:write"]), loaded(host, ["items:read"], "reader")
    keys = numpy.arange(10)
    trained = numpy.asarray(trainer((keys, 1), entry="main:train"))
    assert (trained == -1).all()
    assert (numpy.asarray(reader(keys)) == -1).all()
    assert len(host.tables["items"]) == 10


def test_reading_is_no_training_and_training_no_saving(host):
    reader = loaded(host, ["items:read"], "reader")
    with pytest.raises(vmhost.TaskError, match="granted for reading.*NAME:write"):
        reader((numpy.arange(3), 1), entry="main:train")
    writer = loaded(host, ["items:write"])
    with pytest.raises(vmhost.TaskError, match="the host's, which alone saves it"):
        writer(None, entry="main:saves")
    with pytest.raises(vmhost.TaskError, match="was granted no table 'items', but none"):
        loaded(host, [], "nothing")(numpy.arange(3))
    assert len(host.tables["items"]) == 0


def test_a_name_with_nul_is_no_tables(host):
    reader = loaded(host, ["items:read"], "reader")
    assert reader("items", entry="main:native") == "PyCapsule"
    for name in ("items\0", "items\0other", "\0"):
        assert reader(name, entry="main:native") == f"no embedding table {name!r} was granted"


def test_tables_are_no_modules(host):
    reader = loaded(host, ["items:read"], "reader")
    told = reader("@items:read", entry="main:odd_modules")
    assert told == ("no module named '@items:read' in the bundle", None, [])


def test_a_bundle_that_asks_for_a_table_that_is_not_there_is_refused(host):
    with pytest.raises(vmhost.BundleError, match="the embedding table 'users:read'; this host has items"):
        loaded(host, ["users:read"])


def test_a_host_narrows_tables():
    policy = vmhost.Policy(permissions={"tables": ["items:read"], "host": ["*"]})
    functions = {"begun": print}
    with vmhost.Host(allow_unsigned=True, policy=policy, functions=functions, tables={"items": made()}) as host:
        loaded(host, ["items:read"], "reader")
        with pytest.raises(vmhost.BundleError, match=r"permissions.tables 'items:write': the host allows items:read"):
            loaded(host, ["items:write"])
    policy = vmhost.Policy(permissions={"tables": ["items:write"], "host": ["*"]})
    with vmhost.Host(allow_unsigned=True, policy=policy, functions=functions, tables={"items": made()}) as host:
        loaded(host, ["items:read"], "reader")  # permission to write includes reading


def test_many_vms_train_one_table_and_no_step_is_lost(tmp_path):
    """SGD's steps of 1 in any order: the sum tells how many there were."""
    other = made(optimizer="sgd")
    with vmhost.Host(allow_unsigned=True, tables={"items": other}, functions={"begun": print}) as many:
        task = many.load(
            bundle(
                TASK.replace("optim.Adagrad(1.0)", "optim.SGD(1.0)"),
                permissions={"tables": ["items:write"], "host": ["begun"]},
            )
        )
        keys = numpy.arange(500)
        calls = [task.submit((keys, 25), entry="main:train") for _ in range(8)]
        saves = [save(many.tables, tmp_path, incremental=i > 0) for i in range(3)]
        for call in calls:
            call.result()
        saves.append(save(many.tables, tmp_path, incremental=True))
        assert (numpy.asarray(other.lookup(np.arange(500))) == -200).all()
    again = made(optimizer="sgd")
    restore([again], tmp_path)
    assert (numpy.asarray(again.lookup(np.arange(500))) == -200).all()


def test_a_stop_leaves_rows_whole_and_the_table_free_for_others(host):
    task = loaded(host, ["items:write"])
    keys = numpy.arange(3000)
    for _ in range(3):
        for timeout_s in (0.3, 2, 20):  # on a slow machine the first deadlines come before it has begun
            with pytest.raises(vmhost.TimeLimitError):
                task(keys, entry="main:for_ever", timeout_s=timeout_s)
            if host.begun.is_set():
                break
        assert host.begun.is_set()
        host.begun.clear()
        rows = numpy.asarray(task(keys))
        assert (rows == rows[:, :1]).all(), "each row made the same steps with all its numbers"
    assert (numpy.asarray(task((keys, 1), entry="main:train"))[:, 0] < rows[:, 0]).all()


def test_the_vm_pays_for_its_own_tables_and_not_for_the_hosts(host):
    task = loaded(host, ["items:write"], limits={"memory": "24 MiB"})
    keys = numpy.arange(60000)  # some 10 MB of rows, and what the step takes
    for part in range(0, 600000, 60000):
        task((keys + part, 1), entry="main:train")
    assert host.tables["items"].statistics().bytes > 24 << 20
    with pytest.raises(vmhost.MemoryLimitError):
        task(numpy.arange(200000), entry="main:own")


def fill(table, chance, dim):
    """Trains random keys until the quota is met."""
    with pytest.raises(MemoryError, match="raise its quota"):
        while True:
            keys = chance.integers(0, 1 << 40, 200)
            table.step(keys, numpy.ones((len(keys), dim), "float32"), SGD(1.0))


@pytest.mark.parametrize("quota", [600_000, 3_000_000, 9_000_000])
@pytest.mark.parametrize("filter", [None, CounterFilter(2)], ids=["all", "filtered"])
def test_a_full_table_is_restored_into_the_same_quota_and_not_into_a_half(tmp_path, quota, filter):
    dim = 5
    options = {"optimizer": "sgd", "name": "items", "filter": filter}
    for seed in range(4):  # the hash of each table is another one
        folder, chance = tmp_path / str(seed), numpy.random.default_rng(seed)
        table = EmbeddingVariable(dim, quota=quota, **options)
        some = chance.integers(0, 1 << 40, 100)
        for _ in range(3):
            table.step(some, numpy.ones((len(some), dim), "float32"), SGD(1.0))
        fill(table, chance, dim)
        save([table], folder)
        again = EmbeddingVariable(dim, quota=quota, **options)
        restore([again], folder)
        assert len(again) == len(table) > 0
        assert (numpy.asarray(again.lookup(some)) == numpy.asarray(table.lookup(some))).all()
        again.step(some, numpy.ones((len(some), dim), "float32"), SGD(1.0))
        fill(again, chance, dim)  # new rows meet the quota again
    with pytest.raises(MemoryError, match="raise its quota"):
        restore([EmbeddingVariable(dim, quota=quota // 2, **options)], folder)


def test_host_yaml_describes_tables_and_where_they_come_from(tmp_path):
    (tmp_path / "host.yaml").write_text(
        """
allow_unsigned: true
tables:
  items: {dim: 4, optimizer: adagrad, initial: 0.5, initializer: 0.1, filter: {filter_freq: 2}, quota: 8 MiB,
          evict: {steps_to_live: 9}}
  users: {dim: 2, optimizer: ftrl}
tables_from: saves
"""
    )
    task = bundle(TASK, permissions={"tables": ["items:write"]})
    with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
        assert {name: (one.dim, one.optimizer) for name, one in host.tables.items()} == {
            "items": (4, "adagrad"),
            "users": (2, "ftrl"),
        }
        assert {name: one.quota for name, one in host.tables.items()} == {"items": 8 << 20, "users": 1 << 30}
        running = host.load(task)
        assert (numpy.asarray(running((numpy.arange(3), 1), entry="main:train")) == 0).all()
        running((numpy.arange(3), 2), entry="main:train")
        before = numpy.asarray(running(numpy.arange(3)))
        save(host.tables, tmp_path / "saves")
    with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
        assert (numpy.asarray(host.load(task)(numpy.arange(3))) == before).all()


def test_many_vms_train_a_table_with_rows_on_disk(tmp_path):
    (tmp_path / "host.yaml").write_text(
        """
allow_unsigned: true
tables:
  items: {dim: 4, optimizer: adagrad, initializer: 0,
          storage: {folder: cache, memory: 64 KiB, quota: 8 MiB, cache: lru}}
"""
    )
    with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
        task = host.load(bundle(TASK, permissions={"tables": ["items:write"]}, limits={"memory": "64 MiB"}))
        calls = [task.submit((numpy.arange(i * 2000, i * 2000 + 2000), 1), entry="main:train") for i in range(8)]
        assert all((numpy.asarray(call.result()) == -1).all() for call in calls)
        assert (numpy.asarray(task(numpy.arange(16_000))) == -1).all()
        counts = host.tables["items"].statistics()
        assert counts.rows == 16_000 and counts.disk_rows > 14_000 and counts.disk_hits
        metrics = exposition(host.statistics())
        assert f'vmhost_table_rows{{table="items",tier="disk"}} {counts.disk_rows}' in metrics
        assert f'vmhost_table_hits_total{{table="items",tier="memory"}} {counts.memory_hits}' in metrics
        save(host.tables, tmp_path / "saves")


def test_a_task_makes_no_table_with_rows_on_disk(host, tmp_path):
    task = loaded(host, ["items:write"], also={"read": [str(tmp_path)], "write": [str(tmp_path)]})
    with pytest.raises(
        vmhost.TaskError, match="PermissionError: a task's own embedding table has all its rows in memory"
    ):
        task(str(tmp_path), entry="main:on_disk")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "{dim: 4, storage: {folder: host.yaml, memory: 1 MiB, quota: 32 MiB}}",
            "tables.items: .*File exists",
        ),
        ("{dim: 4, storage: {folder: ., memory: 1, quota: 32 MiB}}", "tables.items: items: memory: expected at least"),
        ("{dim: 0}", "tables.items.dim: expected a whole number from 1 to 65536"),
        ("{optimizer: adam}", "tables.items: .*dim"),
        ("{dim: 4, optimizer: adam, initial: 1}", "tables.items.initial: is for the optimizer adagrad"),
        ("{dim: 4, filter: {filter_freq: 2, false_positive_probability: 0.1}}", "goes with max_element_size"),
        ("{dim: 4, quota: 100}", "tables.items: the embedding table has 0 of its 100 bytes"),
        ("{dim: 4, quotas: 1 GiB}", "did you mean 'quota'"),
    ],
)
def test_wrong_tables_of_host_yaml_are_told_by_key(tmp_path, yaml, message):
    (tmp_path / "host.yaml").write_text(f"tables:\n  items: {yaml}\n")
    with pytest.raises(
        vmhost.ConfigurationError, match=f"host.yaml:2: {message}" if message.startswith("tables") else message
    ):
        vmhost.Host.from_file(tmp_path / "host.yaml")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["items"], "tables: expected a mapping"),
        ({"a b": None}, "expected a name of letters"),
        ({"items": 3}, "items: expected an EmbeddingVariable, got int"),
        ({"items": made(quota=None)}, "items: has no quota, .* make it with quota="),
    ],
)
def test_wrong_tables_of_a_host_are_refused(tables, message):
    with pytest.raises(vmhost.ConfigurationError, match=message):
        vmhost.Host(allow_unsigned=True, tables=tables)
