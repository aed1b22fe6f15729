"""Request and answer on a warm connection, contenders alternating."""

import asyncio
import os
import sys
import time

from bench.measure import Figure, Result
from bench.tunnel_peers import PEERS, Folder, mosquitto

SIZES = {"100 B": 100, "3 KB": 3_000, "30 KB": 30_000}


def round_trips(quick):
    """p50 and p99 of `ask` at each size, by contender."""
    rounds, calls = (3, 50) if quick else (9, 400)
    folder = Folder()
    try:
        measured = _measure(folder, rounds, calls)
    finally:
        folder.close()
    for size in SIZES:
        for what, at in (("p50", 0.5), ("p99", 0.99)):
            figures = {
                name: Figure(tuple(_percentile(times, at) * 1e6 for times in by_size[size]), "us", "less")
                for name, by_size in measured.items()
            }
            ours = figures.get("vmhost")
            promises = []
            if what == "p50":
                for peer, factor in (("websockets", 1.5), ("httpx, HTTP/2", 3.0), ("aiomqtt, QoS 1", 3.0)):
                    if peer in figures:
                        times = ours.advantage_over(figures[peer])
                        promises.append((f"{factor:g}x lower than {peer}: {times:.2f}x", times >= factor))
                if size == "3 KB":
                    promises.append((f"under 80 us: {ours.median:.0f}", ours.median < 80))
            yield Result(f"tunnel: request and answer, {size}, {what}", figures, tuple(promises))


def _percentile(times, at):
    return sorted(times)[min(len(times) - 1, int(len(times) * at))]


def _measure(folder, rounds, calls):
    """{contender: {size: [seconds of each call, by round]}}. Each has a loop of its own, of the kind that it needs:
    leftovers on a shared loop would slow the others."""
    running, measured = [], {}
    try:
        for made in PEERS:
            peer = made(folder)
            if peer.name.startswith("aiomqtt") and mosquitto() is None:
                print("tunnel: mosquitto is not here; `make mosquitto` unpacks Debian's", file=sys.stderr)
                continue
            runner = asyncio.Runner(loop_factory=peer.loop_factory)
            try:
                runner.run(peer.start())
            except ImportError as error:
                runner.close()
                print(f"tunnel: {peer.name} is left out: {error}; `make bench-peers` installs it", file=sys.stderr)
                continue
            running.append((runner, peer))
            measured[peer.name] = {size: [] for size in SIZES}
        for number in range(rounds + 1):  # the first warms up
            for size, count in SIZES.items():
                data = os.urandom(count)
                for runner, peer in running:
                    times = runner.run(_calls(peer, data, calls))
                    if number:
                        measured[peer.name][size].append(times)
    finally:
        for runner, peer in running:
            runner.run(peer.close())
            runner.close()
    return measured


async def _calls(peer, data, calls):
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        back = await peer.ask(data)
        times.append(time.perf_counter() - began)
    if bytes(back) != data:
        raise RuntimeError(f"{peer.name}: another answer than was sent")
    return times


ROWS = (round_trips,)
