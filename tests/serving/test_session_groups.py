"""Published versions and session groups: refusals, answers, and updates while calls go on."""

import json
import os
import queue
import threading
import time

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle
from vmhost.bytecode.signing import TrustStore, generate_key
from vmhost.engine import nn, optim
from vmhost.engine.embedding import CounterFilter, EmbeddingVariable, save
from vmhost.engine.features import FeatureEmbedding, FeatureSpec
from vmhost.serving import sessions
from vmhost.serving.errors import ExportError
from vmhost.serving.exports import graph_digest, latest, publish, read
from vmhost.serving.sessions import SessionGroup

SPEC = FeatureSpec(
    {
        "tables": {"item": {"dim": 4}, "user": {"dim": 4}},
        "features": {
            "price": {"kind": "number"},
            "item": {"kind": "hashed", "table": "item"},
            "bag": {"kind": "key", "table": "item", "sequence": True, "combiner": "sum", "weights": "counts"},
            "age": {"kind": "number", "default": 3},
            "user": {"kind": "key", "table": "user"},
        },
    }
)
COLUMNS = {
    "price": [1.0, 2.0, 3.0, 4.0],
    "item": ["a", "b", "never seen", None],
    "bag": [[1, 2], [], [7], [2, 2, 99]],
    "counts": [[1.0, 0.5], [], [2.0], [1.0, 1.0, 1.0]],
    "age": [None, 30.0, 40.0, 50.0],
    "user": [5, 6, 7, 10**12],
}


class Clicks(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.rows = FeatureEmbedding(SPEC, tables)
        self.out = nn.Sequential(nn.Linear(self.rows.width + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def __call__(self, numbers, ids, weights=None):
        return nn.sigmoid(self.out(np.concatenate([numbers, self.rows(ids, weights)], axis=1)))[:, 0]


class Trainer:
    """A model on tables, which learns and publishes."""

    def __init__(self, folder):
        nn.seed(0)
        self.folder = folder
        self.tables = {
            "item": EmbeddingVariable(4, optimizer="adagrad", name="item"),
            "user": EmbeddingVariable(4, optimizer="adagrad", filter=CounterFilter(1), name="user"),
        }
        self.model, self.optimizer = Clicks(self.tables), optim.Adagrad(0.1)
        self.step = nn.value_and_grad(self.model, lambda x, y: nn.binary_cross_entropy(self.model(*x), y, False))

    def train(self, columns=COLUMNS):
        inputs = SPEC.transform(columns)
        y = np.asarray([1.0, 0.0, 1.0, 0.0][: len(inputs)], "float32")
        self.optimizer.update(self.model, self.step(inputs, y)[1])

    def publish(self, full=False, **options):
        save(self.tables, self.folder / "saves", incremental=not full)
        onnx, lookups = nn.export(self.model, SPEC.transform(COLUMNS)._asdict(), ("click",), with_lookups=True)
        return publish(self.folder / "served", onnx, lookups, SPEC, self.tables, **options)

    def expected(self):
        return numpy.asarray(self.model(*SPEC.transform(COLUMNS)))


@pytest.fixture
def trainer(tmp_path):
    made = Trainer(tmp_path)
    made.train()
    made.publish(full=True)
    return made


def answer(group, **key):
    return numpy.asarray(group(COLUMNS, **key)["click"])


def test_a_group_answers_as_the_model_that_was_trained(trainer):
    """Also for keys that have no row; numbers and weights of bags are in their places."""
    with SessionGroup(trainer.folder / "served", policy="round_robin", quota=8 << 20) as group:
        assert numpy.allclose(answer(group), trainer.expected(), atol=1e-6)
        assert numpy.allclose(
            numpy.asarray(group(group.spec.transform(COLUMNS))["click"]), trainer.expected(), atol=1e-6
        )
        with pytest.raises(ValueError, match="price"):
            group({name: column for name, column in COLUMNS.items() if name != "price"})
        calls = [group.submit(COLUMNS) for _ in range(5)]
        assert all((numpy.asarray(one.result()["click"]) == answer(group)).all() for one in calls)
        assert sum(group.statistics().calls) == 12 and min(group.statistics().calls) == 6  # in turn
    assert all(one.result() for one in calls)
    with pytest.raises(vmhost.ClosedError):
        group(COLUMNS)


def test_calls_of_one_key_go_to_one_session(trainer):
    with SessionGroup(trainer.folder / "served", sessions=3, policy="modulo") as group:
        for key in (3, 6, 9, 9, 4):
            answer(group, key=key)
        assert group.statistics().calls == (4, 1, 0)
        with pytest.raises(TypeError, match="key: expected a whole number"):
            group(COLUMNS)
        assert (numpy.asarray(group.functions["predict"]([5, COLUMNS])["click"]) == answer(group, key=0)).all()


def test_calls_go_to_the_session_with_the_fewest(trainer):
    """A session that is busy with one call gets no further ones; sessions with equally many take turns."""
    reading, read_on = threading.Event(), threading.Event()

    class Slow(dict):
        def __getitem__(self, name):
            reading.set()
            assert read_on.wait(60)
            return super().__getitem__(name)

    with SessionGroup(trainer.folder / "served") as group:
        for _ in range(6):
            answer(group)
        assert group.statistics().calls == (3, 3)
        slow = group.submit(Slow(COLUMNS))
        try:
            assert reading.wait(60)
            for _ in range(5):
                group.submit(COLUMNS).result(60)
        finally:
            read_on.set()
        assert slow.result(60) and sorted(group.statistics().calls) == [4, 8]


def test_sessions_run_on_their_cores(trainer):
    allowed = sorted(os.sched_getaffinity(0))
    seen = []

    class Looks(dict):
        def __getitem__(self, name):
            seen.append(os.sched_getaffinity(0))  # of the thread that reads the columns
            return super().__getitem__(name)

    with SessionGroup(trainer.folder / "served", sessions=1, cores=[{allowed[-1]}]) as group:
        group(Looks(COLUMNS))
    assert seen and all(one == {allowed[-1]} for one in seen) and os.sched_getaffinity(0) == set(allowed)
    with pytest.raises(ValueError, match="cores: expected 2 sets of CPUs out of"):
        SessionGroup(trainer.folder / "served", cores=[{allowed[0]}])


class Seen(dict):
    """Columns that note the thread that reads them, after waiting for `go`."""

    def __init__(self, threads, reading=None, go=None):
        super().__init__(COLUMNS)
        self.threads, self.reading, self.go, self.noted = threads, reading, go, False

    def __getitem__(self, name):
        if not self.noted:
            self.noted = True
            self.threads.append(threading.current_thread())
            if self.go is not None:
                self.reading.set()
                assert self.go.wait(60)
        return super().__getitem__(name)


def test_a_free_session_answers_a_short_call_in_its_callers_thread(trainer, monkeypatch):
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    seen, own, folder = [], threading.current_thread(), trainer.folder / "served"
    with SessionGroup(folder, sessions=1) as group:
        group(COLUMNS)  # its time is known now
        assert numpy.allclose(group(Seen(seen))["click"], trainer.expected(), atol=1e-6) and seen == [own]
        with pytest.raises(ValueError, match="price"):
            group({"item": COLUMNS["item"]})
        reading, go = threading.Event(), threading.Event()
        earlier = group.submit(Seen(seen, reading, go))
        assert reading.wait(60)
        later = threading.Thread(target=lambda: group(Seen(seen)))
        later.start()
        while group._sessions[0].pending() < 2:
            time.sleep(0.001)
        go.set()
        later.join()
        assert earlier.result() and len(seen) == 3 and own not in seen[1:] and seen[1] is seen[2]
        for limit in ("DIRECT_S", "BRIEF_S"):
            monkeypatch.setattr(sessions, limit, 0)  # all calls are longer
        group(Seen(seen))
        assert seen[3] is seen[2] and group.statistics().calls == (5,)
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    with SessionGroup(folder, sessions=1, cores=[os.sched_getaffinity(0)]) as group:
        group(COLUMNS)
        group(Seen(seen))
    assert seen[4] is not own


def test_with_as_many_calls_as_sessions_a_free_session_answers_in_its_own_thread(trainer, monkeypatch):
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    seen, others, own = [], [], threading.current_thread()
    reading, go = threading.Event(), threading.Event()
    with SessionGroup(trainer.folder / "served", sessions=2, policy="modulo") as group:
        for key in (0, 1):
            group(COLUMNS, key)
        calls = [group.submit(Seen(others, reading, go), 0)]
        assert reading.wait(60)
        group(Seen(seen), 1)  # one call, two sessions
        calls.append(group.submit(COLUMNS, 0))
        group(Seen(seen), 1)
        go.set()
        assert all(call.result() for call in calls)
        monkeypatch.setattr(sessions, "CROWDED_S", 60)
        monkeypatch.setattr(sessions, "BRIEF_S", 0)  # all calls are longer
        group(Seen(seen), 1)
        monkeypatch.setattr(sessions, "CROWDED_S", 0)
        group(Seen(seen), 1)
    assert [thread is own for thread in seen] == [True, False, False, True]


def test_during_an_update_sessions_answer_in_their_own_threads(trainer, monkeypatch):
    """Calls in their callers' threads would keep the update from the GIL."""
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    seen, own = [], threading.current_thread()
    with SessionGroup(trainer.folder / "served", sessions=1) as group:
        group(Seen(seen))  # in the session's thread: nothing is known of calls yet
        with group._updating:
            group(Seen(seen))
        group(Seen(seen))
    assert [thread is own for thread in seen] == [False, False, True]


def test_callers_whose_threads_compute_answers_let_other_threads_run(trainer, monkeypatch):
    """They sleep now and then; else a thread that needs the GIL waits for up to 200 ms."""
    slept = []
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    monkeypatch.setattr(sessions.time, "sleep", slept.append)
    with SessionGroup(trainer.folder / "served") as group:
        group(COLUMNS)  # in the session's thread: nothing is known of calls yet
        monkeypatch.setattr(sessions, "REST_AFTER_S", 60)
        answer(group)
        assert not slept
        monkeypatch.setattr(sessions, "REST_AFTER_S", 0)
        for _ in range(3):
            answer(group)
    assert slept == [sessions.REST_S] * 3


def test_closing_waits_for_a_call_in_its_callers_thread(trainer, monkeypatch):
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    group, seen, answers = SessionGroup(trainer.folder / "served", sessions=1, queue=2), [], []
    group(COLUMNS)
    reading, go = threading.Event(), threading.Event()

    def ask(*gates):
        answers.append(numpy.asarray(group(Seen(seen, *gates))["click"]))

    callers = [threading.Thread(target=ask, args=(reading, go)), *(threading.Thread(target=ask) for _ in range(2))]
    callers[0].start()
    assert reading.wait(60)
    for one in callers[1:]:
        one.start()
    session, closing = group._sessions[0], threading.Thread(target=group.close)
    while session.pending() < 3:
        time.sleep(0.001)
    with pytest.raises(queue.Full):
        group(COLUMNS)
    closing.start()
    while not session._ended:
        time.sleep(0.001)
    with pytest.raises(vmhost.ClosedError):
        group(COLUMNS)
    assert closing.is_alive() and not answers
    go.set()
    closing.join()
    assert group.statistics().calls == (4,) and session.pending() == 0
    for one in callers:
        one.join()
    assert len(answers) == 3 and seen[0] is callers[0] and not {*seen[1:]} & {*callers}


def test_closing_waits_for_the_only_call_too(trainer, monkeypatch):
    monkeypatch.setattr(sessions, "DIRECT_S", 60)
    group, seen, answers = SessionGroup(trainer.folder / "served", sessions=1), [], []
    group(COLUMNS)
    reading, go = threading.Event(), threading.Event()
    caller = threading.Thread(target=lambda: answers.append(group(Seen(seen, reading, go))))
    caller.start()
    assert reading.wait(60)
    closing = threading.Thread(target=group.close)
    closing.start()
    session = group._sessions[0]
    session._thread.join()
    time.sleep(0.05)  # a close that does not wait would have ended
    assert closing.is_alive()
    go.set()
    closing.join()
    caller.join()
    assert seen == [caller] and answers and group.statistics().calls == (2,)


class Interrupting:
    """A lock after whose release the next signal comes."""

    def __init__(self, lock):
        self.lock, self.rest = lock, 1

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        self.lock.__exit__(*error)
        self.rest -= 1
        if self.rest == 0:
            raise KeyboardInterrupt


def test_an_interrupted_call_in_its_callers_thread_is_not_pending_any_more(trainer, monkeypatch):
    monkeypatch.setattr(sessions, "DIRECT_S", 60)

    class Interrupts(dict):
        def __getitem__(self, name):
            raise KeyboardInterrupt

    with SessionGroup(trainer.folder / "served", sessions=1) as group:
        group(COLUMNS)
        session = group._sessions[0]
        with pytest.raises(KeyboardInterrupt):
            group(Interrupts(COLUMNS))
        assert session.pending() == 0
        session._entry = Interrupting(session._entry)
        with pytest.raises(KeyboardInterrupt):  # when the call was accepted
            group(COLUMNS)
        assert session.pending() == 0 and numpy.allclose(group(COLUMNS)["click"], trainer.expected(), atol=1e-6)


def test_an_update_reads_the_rows_that_changed_and_keeps_what_was_prepared(trainer):
    served = trainer.folder / "served"
    with SessionGroup(served) as group:
        before = answer(group)
        assert not group.update() and group.version == 1
        tables = group._tables
        trainer.train()
        trainer.publish()
        onnx = [(served / f"version-{number:06}/network.onnx").read_bytes() for number in (1, 2)]
        assert onnx[0] != onnx[1] and graph_digest(onnx[0]) == graph_digest(onnx[1])
        assert (answer(group) == before).all()  # not until it is told
        assert group.update() and group.version == 2 and group._tables is tables
        assert numpy.allclose(answer(group), trainer.expected(), atol=1e-6) and (answer(group) != before).any()
        statistics = group.statistics()
        assert (statistics.prepared, statistics.kept, statistics.updates) == (4, 2, 1) and statistics.longest_wait_s > 0
        trainer.publish()  # nothing has changed: the networks stay
        assert group.update() and group.statistics().prepared == 4 and group.version == 3
        trainer.train({name: column[:2] for name, column in COLUMNS.items()})
        trainer.publish(full=True)
        assert group.update() and group._tables is not tables
        assert numpy.allclose(answer(group), trainer.expected(), atol=1e-6)
        names = sorted(os.listdir(served / "tables"))
    assert [name[:6] for name in names] == ["000001", "000002", "000003", "000004"]
    assert [one for one in sorted(os.listdir(served)) if one != "tables"] == ["version-000003", "version-000004"]


def test_an_increment_beyond_the_quota_leaves_the_version_before(trainer):
    keys = np.arange(100, 60_100)
    with SessionGroup(trainer.folder / "served", quota=2 << 20) as group:
        before = answer(group)
        trainer.train()  # rows that the group has, too
        trainer.tables["user"].step(keys, np.ones((len(keys), 4), "float32"), trainer.optimizer)
        trainer.publish()
        with pytest.raises(MemoryError, match="quota"):
            group.update()
        assert (answer(group) == before).all() and group.version == 1
        assert {name: len(table) for name, table in group._tables.items()}["user"] == 4


def test_updates_lose_no_call_and_no_answer_mixes_versions(trainer):
    """Each of many callers sees answers of whole versions only, in their order."""
    expected, wrong, done = [trainer.expected()], [], threading.Event()

    def ask(group):
        last = 0
        while not done.is_set():
            result = answer(group)
            found = [i for i, truth in enumerate(list(expected)) if numpy.allclose(result, truth, atol=1e-6)]
            if not found:
                wrong.append(result)
            elif found[-1] < last - 1:
                wrong.append((found, last))
            last = max(last, found[-1]) if found else last
            done.wait(1e-4)  # callers that never sleep would keep the trainer from the GIL

    with SessionGroup(trainer.folder / "served") as group:
        callers = [threading.Thread(target=ask, args=(group,)) for _ in range(3)]
        for one in callers:
            one.start()
        for number in range(8):
            trainer.train()
            trainer.publish(full=number == 5)
            expected.append(trainer.expected())
            assert group.update()
        done.set()
        for one in callers:
            one.join()
        assert sum(group.statistics().calls) > 8 and group.version == 9
    assert not wrong


def test_an_update_waits_for_a_call_that_is_reading_its_rows(trainer):
    reading, tried, go, before = threading.Event(), threading.Event(), threading.Event(), trainer.expected()

    class Slow(dict):
        def __getitem__(self, name):
            reading.set()
            go.wait()
            return super().__getitem__(name)

    class Watched:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if threading.current_thread() is updating:
                tried.set()
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    with SessionGroup(trainer.folder / "served", sessions=1) as group:
        group._sessions[0].lock = Watched(group._sessions[0].lock)
        updating = threading.Thread(target=lambda: (group.update(), tried.set()))
        call = group.submit(Slow(COLUMNS))
        reading.wait()
        trainer.train()
        trainer.publish()
        updating.start()
        tried.wait()
        go.set()
        updating.join()
        assert numpy.allclose(call.result()["click"], before, atol=1e-6)
        assert numpy.allclose(answer(group), trainer.expected(), atol=1e-6)


def test_every_accepted_call_ends_where_the_group_is_closed(trainer):
    group = SessionGroup(trainer.folder / "served", sessions=1, queue=50)
    held, calls = group._sessions[0].lock, []
    with held:
        with pytest.raises(queue.Full):
            for _ in range(60):
                calls.append(group.submit(COLUMNS))
        closing = threading.Thread(target=group.close)
        closing.start()
        assert calls[-1].cancel() and not calls[-2].done()
    closing.join()
    assert all(one.result()["click"] is not None for one in calls[:-1]) and len(calls) >= 50
    group.close()


def test_signed_versions_by_trusted_keys_alone(trainer):
    served, key, other = trainer.folder / "served", generate_key(), generate_key()
    with pytest.raises(ExportError, match="is not signed; publish it with key="):
        SessionGroup(served, trust=TrustStore.of(us=key.public))
    trainer.publish(key=key)
    assert read(served, trust=TrustStore.of(us=key.public)).signed == "us"
    with pytest.raises(ExportError, match="which this host does not trust"):
        read(served, trust=TrustStore.of(them=other.public))
    manifest = served / "version-000002/manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"model"', b'"modem"'))
    with pytest.raises(ExportError, match="does not belong to this manifest"):
        read(served, trust=TrustStore.of(us=key.public))


def replaced(path, data=None):
    """The file, which may be a link to that of others, with other contents."""
    data = path.read_bytes()[:-1] + b"?" if data is None else data
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "file", ["network.onnx", "network.vmm", "features.json", "first_rows.safetensors", "tables", "manifest.json"]
)
def test_a_version_of_mixed_files_is_refused_and_the_one_before_goes_on(trainer, file):
    served = trainer.folder / "served"
    with SessionGroup(served) as group:
        before = answer(group)
        trainer.train()
        trainer.publish()
        path = served / "version-000002" / file
        if file == "tables":
            replaced(next(served.glob("tables/000002-*/item.safetensors")))
        elif file == "first_rows.safetensors":
            replaced(path)
        else:
            replaced(path, (served / "version-000001" / file).read_bytes() + b" ")
        with pytest.raises(ExportError, match=r"is not the file of this version's manifest|is that of version 1"):
            group.update()
        assert (answer(group) == before).all() and group.version == 1
        trainer.publish()
        if file != "tables":
            assert group.update() and numpy.allclose(answer(group), trainer.expected(), atol=1e-6)


def test_what_does_not_belong_together_is_not_published(trainer):
    served = trainer.folder / "served"
    onnx, lookups = nn.export(trainer.model, SPEC.transform(COLUMNS)._asdict(), ("click",), with_lookups=True)
    other = json.loads(SPEC.to_bytes())
    del other["features"]["user"]
    with pytest.raises(ExportError, match=r"looks up 'ids.user' in the table 'user'; the specification has item, bag"):
        publish(served, onnx, lookups, FeatureSpec(other), trainer.tables)
    with pytest.raises(ExportError, match=r"the network reads no user of the specification"):
        publish(served, onnx, [one for one in lookups if one.ids != "ids.user"], SPEC, trainer.tables)
    trainer.train()
    with pytest.raises(ExportError, match="have rows that no save has"):
        publish(served, onnx, lookups, SPEC, trainer.tables)
    assert latest(served) == 1 and latest(trainer.folder / "nothing") is None
    with pytest.raises(ExportError, match="there is no version"):
        SessionGroup(trainer.folder / "nothing")


def test_a_task_asks_the_group_by_a_granted_function(trainer):
    task = "from vmhost.guest import host\n\ndef run(columns):\n    return host.predict(columns)['click'].tolist()\n"
    with SessionGroup(trainer.folder / "served") as group:
        with vmhost.Host(allow_unsigned=True, functions=group.functions) as running:
            answer = running.load(bundle(task, permissions={"host": ["predict"]}))(COLUMNS)
    assert numpy.allclose(answer, trainer.expected(), atol=1e-6)


@pytest.mark.parametrize("joined", [True, False])
def test_a_specification_without_numbers_is_served(tmp_path, joined):
    spec = FeatureSpec({"tables": {"item": {"dim": 4}}, "features": {"item": {"kind": "key", "table": "item"}}})
    tables = {"item": EmbeddingVariable(4, optimizer="sgd", name="item")}
    rows, out = FeatureEmbedding(spec, tables), nn.Linear(4, 1)

    class Net(nn.Module):
        def __call__(self, numbers, ids, weights=None):
            found = rows(ids)
            return out(np.concatenate([numbers, found], axis=1) if joined else found)

    inputs = spec.transform({"item": [1, 2, 3]})
    onnx, lookups = nn.export(Net(), inputs._asdict(), ("y",), with_lookups=True)
    save(tables, tmp_path / "saves")
    publish(tmp_path / "served", onnx, lookups, spec, tables)
    with SessionGroup(tmp_path / "served") as group:
        assert numpy.allclose(group({"item": [1, 2, 3]})["y"], Net()(*inputs), atol=1e-6)
