"""A program as people have it, with VMExecutor and with ProcessPoolExecutor: it parses log records with dateutil into
dataclasses with Decimals, in chunks and one by one, and shows its progress.

    python -m bench.log_records [--records 2000] [--workers 2] [--runs 3] [--json]

Each run is a process of its own, so that starting and compiling count; the runs of both are interleaved. CPU is that of
the process and its children.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from dateutil import parser

POOLS = ("VMExecutor", "ProcessPoolExecutor")
CHUNK = 64


@dataclass
class Record:
    at: datetime
    level: str
    user: int
    amount: Decimal
    message: str


def lines(count):
    begin = datetime(2026, 11, 1)
    for number in range(count):
        at = begin + timedelta(seconds=37 * number)
        level, amount = ("INFO", "WARNING", "ERROR")[number % 3], number % 997 / 4
        yield f"{at:%d %b %Y %H:%M:%S} {level} user={number % 101} amount={amount:.2f} a line about order {number}"


def read(line):
    day, month, year, clock, level, user, amount, message = line.split(" ", 7)
    at = parser.parse(f"{day} {month} {year} {clock}")
    return Record(at, level, int(user[5:]), Decimal(amount[7:]), message)


def progress(results, total):
    """The results as a list; shows how many there are."""
    found = []
    for result in results:
        found.append(result)
        if len(found) % 100 == 0:
            print(f"\r{len(found)} of {total}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def run(pool, records):
    """The sum of the amounts, which both pools must agree on."""
    texts = list(lines(records))
    chunks = progress(pool.map(read, texts, chunksize=CHUNK), records)
    futures = [pool.submit(read, text) for text in texts]
    singles = progress((future.result() for future in as_completed(futures)), records)
    if sorted(each.message for each in singles) != sorted(each.message for each in chunks):
        raise RuntimeError("chunks and singles differ")
    return sum(each.amount for each in chunks)


def one_run(name, workers, records):
    if name == "VMExecutor":
        from vmhost import VMExecutor as Pool
    else:
        Pool = ProcessPoolExecutor
    with Pool(workers) as pool:
        print(run(pool, records))


def measured(name, workers, records):
    """(wall seconds, CPU seconds, output) of a process that does it."""
    command = [sys.executable, "-m", "bench.log_records", "--with", name]
    command += ["--workers", str(workers), "--records", str(records)]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def main():
    options = argparse.ArgumentParser(description="Log records with VMExecutor and with ProcessPoolExecutor.")
    options.add_argument("--records", type=int, default=2000)
    options.add_argument("--workers", type=int, default=min(2, os.process_cpu_count() or 1))
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--json", action="store_true")
    options.add_argument("--with", dest="name", choices=POOLS, help=argparse.SUPPRESS)  # one run, in this process
    given = options.parse_args()
    if given.name:
        one_run(given.name, given.workers, given.records)
        return
    runs = {name: [] for name in POOLS}
    for _ in range(given.runs):
        for name in POOLS:
            runs[name].append(measured(name, given.workers, given.records))
    if len({output for each in runs.values() for *_, output in each}) != 1:
        raise RuntimeError("the pools' sums differ")
    rows = {
        name: {kind: [round(each[at], 3) for each in runs[name]] for at, kind in enumerate(("wall_s", "cpu_s"))}
        for name in POOLS
    }
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{given.records} records in chunks of {CHUNK}, and again one by one; {given.workers} workers")
    print(f"{'':22}{'wall s, median (runs)':34}CPU s, median (runs)")
    for name, row in rows.items():
        cells = [
            f"{statistics.median(row[kind]):.2f} ({', '.join(map(str, row[kind]))})" for kind in ("wall_s", "cpu_s")
        ]
        print(f"{name:22}{cells[0]:34}{cells[1]}")


if __name__ == "__main__":
    main()
