"""A program that uses the public API, for mypy to read (tools/lint.sh): it never runs. Each `type: ignore` is a mistake
that mypy has to find, and fails the check if it does not."""

from collections.abc import Iterator

import vmhost
from vmhost.compiler import compile_folder
from vmhost.future import TaskFuture
from vmhost.operations import Dashboard
from vmhost.statistics import HostStatistics


def square(x: int) -> int:
    return x * x


def host_and_task() -> HostStatistics:
    policy = vmhost.Policy(max_vms=4, tasks={"digits": vmhost.TaskPolicy(queue=10, limits={"memory": "8 MiB"})})
    with vmhost.Host(trust="keys", policy=policy, functions={"lookup": square}) as host:
        task: vmhost.Task = host.load("digits.vmb")
        future: TaskFuture = task.submit({"image": [0]}, timeout_s=0.5)
        future.stop()
        results: Iterator[object] = task.map([1, 2], window=8)
        print(task([1]), list(results), task.limits.memory_bytes, host.tasks[0].upper(), future.exception())
        host.load(3)  # type: ignore[arg-type]
        task.submit([1], timeout="soon")  # type: ignore[call-arg]
        vmhost.Limits(memory_bytes="64 MiB")  # type: ignore[arg-type]
        task([vmhost.Packed(b"\x01")])
        vmhost.Packed("text")  # type: ignore[arg-type]
        return host.statistics()


async def run(task: vmhost.Task) -> object:
    try:
        return await task.run(1, timeout_s=1)
    except vmhost.TimeLimitError as error:
        return error.guest_traceback.upper()  # type: ignore[union-attr]
    except vmhost.BreakerOpenError as error:
        return error.retry_in_s + 1


def executor() -> list[int]:
    with vmhost.VMExecutor(max_workers=2, limits={"memory": "64 MiB"}) as pool:
        pool.submit(square, 3).stop()
        pool.submit(square, "3")  # type: ignore[arg-type]
        return list(pool.map(square, [1, 2, 3], chunksize=2))


class Order:
    cents: int


def with_own_classes(folder: str) -> None:
    types = {"main:Order": Order, "main:Money": vmhost.Conversion(Order, vars, lambda cents: Order())}
    with vmhost.Host(allow_unsigned=True, types=types) as host, Dashboard(host, "127.0.0.1:0") as dashboard:
        host.load(compile_folder(folder).to_bytes(None))
        print(dashboard.url.upper())


def read(statistics: HostStatistics) -> float | None:
    return statistics.tasks["digits"].walls.quantile(0.99)
