"""joblib and dask with VMs as their workers, by the real libraries."""

import time

import dask
import joblib
import pytest

import vmhost.dask
import vmhost.joblib
from tests.vmhost.scheduled import Plain, fails, nested, of_plain, spins, square, uses_numpy, where
from vmhost.errors import TimeLimitError


def jobs(*calls, **options):
    return joblib.Parallel(**options)(calls)


@pytest.fixture(autouse=True)
def workers():
    with joblib.parallel_config("vmhost", n_jobs=2):
        yield


def test_joblib_calls_functions_in_vms():
    assert jobs(*(joblib.delayed(square)(i, add=1) for i in range(500))) == [i * i + 1 for i in range(500)]
    names = {name for _, name in jobs(*(joblib.delayed(where)(i) for i in range(20)))}
    assert not any("vmhost-joblib" in name for name in names)
    found = joblib.Parallel(return_as="generator")(joblib.delayed(square)(i) for i in range(50))
    assert list(found) == [i * i for i in range(50)]
    assert sorted(jobs(*(joblib.delayed(square)(i) for i in range(9)), return_as="generator_unordered")) == [
        i * i for i in range(9)
    ]
    assert jobs(joblib.delayed(square)(3), n_jobs=1) == [9]
    offset = 5
    assert jobs(*(joblib.delayed(lambda x: x + offset)(i) for i in range(4))) == [5, 6, 7, 8]
    assert jobs() == []


def test_what_cannot_travel_runs_in_threads_and_is_named_once():
    with pytest.warns(RuntimeWarning) as told:
        assert jobs(*(joblib.delayed(uses_numpy)(i) for i in range(6))) == [0, 0, 1, 3, 6, 10]
        assert jobs(*(joblib.delayed(uses_numpy)(i) for i in range(6))) == [0, 0, 1, 3, 6, 10]
    [message] = [str(each.message) for each in told]
    assert message.startswith("uses_numpy (") and "runs in threads, not in VMs" in message and "numpy" in message
    with pytest.warns(RuntimeWarning, match=r"of_plain .* runs in threads"):
        mixed = [joblib.delayed(of_plain)(Plain(3)), joblib.delayed(square)(4), joblib.delayed(of_plain)(Plain(5))]
        assert jobs(*mixed) == [3, 16, 5]
    with pytest.warns(RuntimeWarning, match="nested .* runs in threads"):
        assert jobs(*(joblib.delayed(nested)(i) for i in range(4))) == [0, 0, 1, 5]


def test_errors_of_joblib_s_calls_arrive_and_end_the_others():
    with pytest.raises(LookupError) as raised:
        jobs(*(joblib.delayed(fails if i == 7 else square)(i) for i in range(200)))
    assert raised.value.args == ("no", 7)
    begin = time.monotonic()
    with pytest.raises(LookupError):
        jobs(joblib.delayed(spins)(0), joblib.delayed(fails)(1), batch_size=1)
    assert jobs(*(joblib.delayed(square)(i) for i in range(10))) == [i * i for i in range(10)]
    assert time.monotonic() - begin < 60, "the call that spins was stopped"
    with pytest.raises((TimeoutError, joblib.parallel.TimeoutError)):
        jobs(joblib.delayed(spins)(0), joblib.delayed(spins)(1), timeout=0.5)


def test_joblib_passes_the_executor_s_options_on():
    with joblib.parallel_config("vmhost", n_jobs=2, limits={"wall_time": "0.5 s"}):
        with pytest.raises(TimeLimitError):
            jobs(joblib.delayed(spins)(0), joblib.delayed(spins)(1))
    with joblib.parallel_config("vmhost", n_jobs=2, limitz={}):
        with pytest.raises(TypeError, match="limitz"):
            jobs(joblib.delayed(square)(0), joblib.delayed(square)(1))


def test_dask_calls_functions_of_tasks_in_vms():
    with vmhost.dask.VMPool(2) as pool, dask.config.set(pool=pool, scheduler="threads"):
        squares = [dask.delayed(square)(i, add=dask.delayed(square)(1)) for i in range(50)]
        assert dask.compute(*squares) == tuple(i * i + 1 for i in range(50))
        [(_, name)] = dask.compute(dask.delayed(where)(0))
        assert "vmhost-dask" not in name
        with pytest.raises(LookupError, match="no"):
            dask.compute(dask.delayed(fails)(1))
        with pytest.warns(RuntimeWarning) as told:
            assert dask.compute(*(dask.delayed(uses_numpy)(i) for i in range(5))) == (0, 0, 1, 3, 6)
        assert [str(each.message).partition(" ")[0] for each in told] == ["uses_numpy"]
        assert pool.submit(square, 3, add=1).result() == 10
        assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
        from dask import bag

        assert bag.from_sequence(range(20), npartitions=4).map(square).sum().compute() == 2470
        with pytest.warns(RuntimeWarning, match="of_plain .* runs in threads"):
            assert pool.submit(of_plain, Plain(2)).result() == 2
