"""ClusterExecutor beside plain Ray, on a cluster of two nodes with one core each on this machine.

    python -m bench.ray [--calls 20000] [--rounds 3] [--json]

Calls of `int`: submitted one by one, mapped, and one alone. Peers: tasks, one actor a node, and
ray.util.multiprocessing.Pool in chunks. The contenders take turns, since each needs the cores for itself.
"""

import argparse
import json
import logging
import statistics
import time

import ray
from ray.cluster_utils import Cluster
from ray.util.multiprocessing import Pool

import vmhost.ray

CHUNKS = (100, 1000, 5000)
ALONE = 200


def submitted(calls):
    with vmhost.ray.ClusterExecutor() as pool:
        pool.submit(int, 1).result()
        yield (
            "ClusterExecutor, submitted",
            calls,
            lambda: [each.result() for each in [pool.submit(int, number) for number in range(calls)]],
        )
        yield "ClusterExecutor, mapped", calls, lambda: list(pool.map(int, range(calls)))
        yield "ClusterExecutor, alone", None, lambda: pool.submit(int, 1).result()


def tasks(calls):
    task = ray.remote(num_cpus=1)(lambda number: int(number))
    ray.get(task.remote(1))
    yield "Ray tasks", calls // 10, lambda: ray.get([task.remote(number) for number in range(calls // 10)])


def actors(calls):
    @ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
    class Actor:
        def call(self, number):
            return int(number)

    made = [Actor.remote() for _ in range(2)]
    ray.get([each.call.remote(1) for each in made])
    count = calls // 5
    yield "Ray actors", count, lambda: ray.get([made[number % 2].call.remote(number) for number in range(count)])
    yield "Ray actor, alone", None, lambda: ray.get(made[0].call.remote(1))
    for each in made:
        ray.kill(each)


def pool(calls):
    with Pool(2) as made:
        made.map(int, range(10))
        for size in CHUNKS:
            yield f"Pool, chunks of {size}", calls, lambda: made.map(int, range(calls), chunksize=size)  # noqa: B023


def measure(contenders, calls, rounds):
    """{name: calls a second, or ms of a call alone: those of each round}"""
    found = {}
    for _ in range(rounds):
        for contender in contenders:
            for name, count, act in contender(calls):
                if count is None:
                    found.setdefault(f"{name}, p50 ms", []).append(statistics.median(map(timed, [act] * ALONE)) * 1e3)
                else:
                    found.setdefault(f"{name}, calls/s", []).append(count / timed(act))
    return found


def timed(act):
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        found = measure((submitted, tasks, actors, pool), options.calls, options.rounds)
        ray.shutdown()
    finally:
        cluster.shutdown()
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:40} {middle:12,.2f}   ({low:,.2f} to {high:,.2f})")


if __name__ == "__main__":
    main()
