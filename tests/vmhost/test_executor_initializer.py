"""The initializer of a VMExecutor: once per VM, before its first call; and what follows when it fails."""

import concurrent.futures
import functools
import logging

import pytest

import vmhost
from tests.vmhost import functions


def test_it_runs_once_in_each_vm_before_its_first_call():
    with vmhost.VMExecutor(2, initializer=functions.remember, initargs=("started",)) as executor:
        results = list(executor.map(functions.recall_slowly, [0.02] * 20))
        assert executor.statistics().booted == 2
    assert results == [["started"]] * 20
    assert functions.seen == []


def test_it_takes_its_arguments_as_values_and_may_be_a_partial():
    start = functools.partial(functions.remember, {"a": (1, {2})})
    with vmhost.VMExecutor(1, initializer=start) as executor:
        assert executor.submit(functions.recall).result() == [{"a": (1, {2})}]
        assert list(executor.map(functions.recall_slowly, [0], chunksize=5)) == [[{"a": (1, {2})}]]


def test_it_may_be_of_another_module_than_the_functions():
    with vmhost.VMExecutor(1, initializer=functions.remember, initargs=(1,)) as executor:
        assert executor.submit(abs, -1).result() == 1
        assert executor.submit(functions.recall).result() == [1]


@pytest.mark.parametrize(
    "initializer, error",
    [
        (3, TypeError),
        ("name", TypeError),
        (functions.shop.greet, vmhost.CrossingError),
    ],
)
def test_what_cannot_be_an_initializer_is_said_at_once(initializer, error):
    with pytest.raises(error, match="callable|travel"):
        vmhost.VMExecutor(1, initializer=initializer)


def test_when_it_fails_the_executor_is_broken(caplog, tmp_path):
    gate = tmp_path / "gate"
    with caplog.at_level(logging.CRITICAL, "vmhost"):
        executor = vmhost.VMExecutor(1, initializer=functions.fail_once_there, initargs=(str(gate), "no data"))
        futures = [executor.submit(functions.echo, i) for i in range(20)]
        gate.touch()
        for future in futures:
            with pytest.raises(concurrent.futures.BrokenExecutor, match="initializer failed"):
                future.result()
            assert isinstance(future.exception(), concurrent.futures.BrokenExecutor) and not future.cancelled()
        for attempt in (lambda: executor.submit(functions.echo), lambda: executor.map(functions.echo, [1])):
            with pytest.raises(concurrent.futures.BrokenExecutor, match="not usable anymore"):
                attempt()
        executor.shutdown()
        with pytest.raises(RuntimeError):
            executor.submit(functions.echo)
    assert "RuntimeError: no data" in caplog.text and "in fail_once_there" in caplog.text


def test_a_map_on_a_broken_executor_raises(tmp_path):
    gate = tmp_path / "gate"
    with vmhost.VMExecutor(2, initializer=functions.fail_once_there, initargs=(str(gate), "x")) as executor:
        results = executor.map(functions.echo, range(20))
        gate.touch()
        with pytest.raises(concurrent.futures.BrokenExecutor):
            list(results)


def test_exit_in_the_initializer_breaks_the_executor_and_not_the_host():
    with vmhost.VMExecutor(1, initializer=functions.raise_error, initargs=("SystemExit", 3)) as executor:
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(functions.echo).result()
