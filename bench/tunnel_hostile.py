"""What hostile devices cost the others: the time until a message is acknowledged, with and without 5 % of them.

Each device has a loopback address of its own. A twentieth is silent (no greeting), slow (its greeting comes a byte at a
time), poisonous (messages that its consumer refuses), lying (acknowledges what was never sent), or flooding (as many
requests as it may, without an end). One of them that is disconnected comes again.

python -m bench.tunnel_hostile --minutes 10 [--devices 1000]

prints the server's memory each minute, what waits in it, and whether it is flat.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from pathlib import Path

from bench.measure import Figure, Result
from bench.tunnel_load import PlainDevice, _files, _settled
from bench.tunnel_peers import Folder
from vmhost.tunnel import Server, Transactional, frames, status
from vmhost.tunnel.limits import USUAL
from vmhost.tunnel.tls import device_context
from vmhost.tunnel.transport import Reading

POISON = b"poison"
KINDS = ("silent", "slow", "poisonous", "lying", "flooding")
FLAT = 1.1  # how many times the most of the first half of the time may be taken in the second
_PAUSE_S = 0.5  # between messages of a device
_STORE = "hostile.sqlite"


def hostile(quick):
    """The 99th percentile of the others' times, and the server's memory before and after."""
    _files(8000)
    count, seconds = (100, 3.0) if quick else (1000, 60.0)
    folder = Folder()
    try:
        port, pid = folder.serve(_serve, folder)
        context = device_context(folder.keys / "ca.pem")
        bad = count // 20
        alone, grown_alone = asyncio.run(_times(context, port, pid, range(bad, count), seconds))
        folder.serve(_attackers, folder, port, bad)
        among, grown = asyncio.run(_times(context, port, pid, range(bad, count), seconds))
    finally:
        folder.close()
    ratio = _p99(among) / _p99(alone)
    figures = {
        "without": Figure((_p99(alone),), "ms", "less"),
        "with 5 %": Figure((_p99(among),), "ms", "less"),
        "median, without": Figure((statistics.median(alone),), "ms", "less"),
        "median, with 5 %": Figure((statistics.median(among),), "ms", "less"),
    }
    yield Result(
        f"tunnel: a message among {count:,} devices, 99th percentile, with and without hostile ones",
        figures,
        ((f"within twice: {ratio:.2f}", ratio <= 2),),
        note=f"the server grew by {grown_alone >> 20} and {grown >> 20} MiB in {seconds:g} s",
    )


def minutes_long(minutes, count):
    """Prints the server's memory each minute, and a verdict."""
    _files(8 * count)
    folder = Folder()
    try:
        port, pid = folder.serve(_serve, folder)
        bad = count // 20
        folder.serve(_attackers, folder, port, bad)
        context = device_context(folder.keys / "ca.pem")
        print(f"{count:,} devices, {bad:,} of them hostile; process {pid} serves", flush=True)

        async def run():
            watching = asyncio.create_task(_by_minute(pid, folder.path / _STORE, minutes))
            times, _ = await _times(context, port, pid, range(bad, count), minutes * 60)
            return times, await watching

        times, resident = asyncio.run(run())
    finally:
        folder.close()
    early, late = (max(some) for some in (resident[: minutes // 2 + 1], resident[minutes // 2 + 1 :]))
    print(f"acknowledged: {len(times):,} messages of the others, 99th percentile {_p99(times):.0f} ms")
    print(
        f"{'flat' if late <= early * FLAT else 'NOT flat'}: at most {early >> 20} MiB in the first half of the time, "
        f"{late >> 20} MiB in the second; up to {FLAT:g} times as much is flat"
    )


async def _by_minute(pid, store, minutes):
    """[resident bytes], from the beginning on."""
    loop, found = asyncio.get_running_loop(), []
    began = loop.time()
    for minute in range(minutes + 1):
        await asyncio.sleep(began + minute * 60 - loop.time())
        found.append(_resident(pid))
        said = await asyncio.to_thread(status.of_processes, store)
        more = (
            f"{said[0]['connections']:,} connections, {said[0]['pending_bytes'] / (1 << 20):.1f} MiB of messages wait, "
            f"{said[0]['counts']['messages']:,} came, {said[0]['counts']['given_up']:,} were refused"
            if said
            else "it does not say more"
        )
        print(f"minute {minute:2}: {found[-1] >> 20:4} MiB; {more}", flush=True)
    return found


def _serve(ready, folder):
    server = Server(
        folder.path / _STORE,
        certificate=folder.keys / "server.pem",
        key=folder.keys / "server.key",
        identify=lambda token: token,
        max_connections=4000,
    )

    def take(connection, messages):
        if any(each.body == POISON for each in messages):
            raise ValueError("poison")
        connection.executemany("INSERT INTO taken VALUES (?, ?)", [(each.peer, each.body) for each in messages])

    server.consume("*", Transactional(take, ("taken", ("CREATE TABLE taken (peer TEXT, body BLOB)",))))
    server.answer("echo", lambda request: request.value)
    server.run("127.0.0.1:0", ready=lambda addresses: ready.put(addresses[0][1]))


def _p99(times):
    return statistics.quantiles(times, n=100)[98]


def _resident(pid):
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith("Rss:")) * 1024


def _local(number):
    return f"127.0.{1 + number // 250}.{1 + number % 250}", 0


async def _connected(loop, context, reading, port, number, **more):
    device = PlainDevice(loop, context, reading, f"device-{number}", **more)
    await loop.create_connection(lambda: device.transport, "127.0.0.1", port, local_addr=_local(number))
    await device.welcomed
    return device


async def _times(context, port, pid, numbers, seconds):
    """([ms of each message], bytes that the server grew by after a third of the time)."""
    loop = asyncio.get_running_loop()
    reading = Reading(loop)
    times, sent_at, devices = [], {}, []

    def on_kept(device, number):
        if number == device.sent and device in sent_at:
            times.append((time.perf_counter() - sent_at.pop(device)) * 1000)

    for start in range(0, len(numbers), 50):
        some = numbers[start : start + 50]
        devices += await asyncio.gather(
            *(_connected(loop, context, reading, port, number, on_kept=on_kept) for number in some)
        )
    end, before, body = loop.time() + seconds, None, os.urandom(128)
    while loop.time() < end:
        for at, device in enumerate(devices):
            if device not in sent_at and not device.transport.closed:
                sent_at[device] = time.perf_counter()
                device.send([body])
            if at % 20 == 19:
                await asyncio.sleep(_PAUSE_S * 20 / len(devices))
        if before is None and loop.time() > end - seconds * 2 / 3:
            before = _resident(pid)
    grown = _resident(pid) - before
    for device in devices:
        _settled(device.transport)
    await asyncio.sleep(0.1)
    return times, grown


# ---- the hostile ones, in a process of their own


def _attackers(ready, folder, port, count):
    os.nice(19)  # they stand for other machines: what they cost is the server's work, not a processor of this one

    async def attack():
        loop, context = asyncio.get_running_loop(), device_context(folder.keys / "ca.pem")
        reading = Reading(loop)

        def connected(number):
            # what it may, it sends at once
            return _connected(loop, context, reading, port, number, flight_bytes=USUAL.window_bytes)

        attacks = [_again(_attack, KINDS[number % len(KINDS)], number, port, connected) for number in range(count)]
        ready.put("attacking")
        await asyncio.gather(*attacks)

    asyncio.run(attack())


async def _again(attack, *given):
    while True:
        with contextlib.suppress(OSError, ConnectionError):
            await attack(*given)
        await asyncio.sleep(0.2)


async def _attack(kind, number, port, connected):
    if kind in ("silent", "slow"):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=_local(number))
        try:
            for byte in b"\x16\x03\x01\x02\x00" * 20:
                await asyncio.sleep(1.0)
                if writer.is_closing():
                    return
                if kind == "slow":
                    writer.write(bytes((byte,)))
                    await writer.drain()
        finally:
            writer.transport.abort()
        return
    device = await connected(number)
    transport = device.transport
    try:
        while not transport.closed:
            connection = transport.connection
            if kind == "poisonous":
                if connection.positions().get("features", (0, True))[1]:
                    device.send([POISON] * 500)
            elif kind == "lying":
                connection._send_control(frames.ACK, 0, 1 << 40)
            else:
                with contextlib.suppress(Exception):
                    for _ in range(200):
                        connection.request("echo", b"x" * 1000)
            transport.flush()
            await asyncio.sleep(0.02)
    finally:
        transport.abort("the attack is over")


ROWS = (hostile,)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m bench.tunnel_hostile", description="The memory of a server under attack."
    )
    parser.add_argument("--minutes", type=int, default=10, help="how long, at least 2; default: 10")
    parser.add_argument("--devices", type=int, default=1000, help="a twentieth of them are hostile; default: 1000")
    options = parser.parse_args()
    if options.minutes < 2 or options.devices < 100:
        parser.error("expected at least 2 minutes and 100 devices")
    minutes_long(options.minutes, options.devices)


if __name__ == "__main__":
    main()
