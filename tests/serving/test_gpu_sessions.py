"""Session groups whose networks, and tables, lie on a GPU, beside one on the CPU. Needs a GPU: `make gpu-tests`."""

import threading

import numpy
import pytest

from tests.serving.test_session_groups import COLUMNS, Trainer
from vmhost.engine.cuda import Options
from vmhost.serving.sessions import SessionGroup

pytestmark = pytest.mark.gpu
OPTIONS = (
    Options(),
    Options(streams=False, copy_stream=True),
    Options(streams=False, merged_copies=False, graphs=False, fused=False),
)


@pytest.fixture(autouse=True, scope="module")
def the_gpu_is_open(tmp_path_factory):
    """CUDA keeps threads and files for the process: they are opened before the first test."""
    trainer = Trainer(tmp_path_factory.mktemp("first"))
    trainer.train()
    trainer.publish(full=True)
    with SessionGroup(trainer.folder / "served", warmup=(4,), device="cuda", device_tables=True) as group:
        group(COLUMNS)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert numpy.allclose(numpy.asarray(one[name]), numpy.asarray(other[name]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_group_answers_as_one_on_the_cpu_and_is_updated_under_calls(tmp_path, tables, options):
    trainer = Trainer(tmp_path)
    trainer.train()
    trainer.publish(full=True)
    served, stop, errors = tmp_path / "served", threading.Event(), []
    with (
        SessionGroup(served) as cpu,
        SessionGroup(served, warmup=(4,), device="cuda", device_options=options, device_tables=tables) as ours,
    ):
        same(ours(COLUMNS), cpu(COLUMNS))

        def ask():
            try:
                while not stop.is_set():
                    assert numpy.asarray(ours(COLUMNS)["click"]).shape == (4,)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for one in threads:
            one.start()
        for turn in range(4):
            trainer.train()
            trainer.publish(full=turn == 2)
            for group in (cpu, ours):
                assert group.update()
            same(ours(COLUMNS), cpu(COLUMNS))
        stop.set()
        for one in threads:
            one.join()
        assert not errors
        with pytest.raises(Exception, match="price|item|column"):
            ours({"price": [1.0]})
        same(ours(COLUMNS), cpu(COLUMNS))


def test_a_closed_group_gives_its_memory_back(tmp_path):
    import gc

    from vmhost.engine.cuda import gpu

    trainer = Trainer(tmp_path)
    trainer.train()
    trainer.publish(full=True)
    limit = 512 << 20
    with SessionGroup(tmp_path / "served", device="cuda", device_memory=limit, device_tables=True) as group:
        group(COLUMNS)
        assert gpu("cuda", memory=limit).facts().used_bytes > 0
    del group
    gc.collect()
    assert gpu("cuda", memory=limit).facts().used_bytes == 0


def test_too_little_memory_is_an_error(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.train()
    trainer.publish(full=True)
    with pytest.raises(MemoryError, match="limit"):
        SessionGroup(tmp_path / "served", device="cuda", device_memory=1000)
