"""Tasks whose calls are recorded, and baselines made of them."""

import vmhost
from tests.hosts import bundle
from vmhost.baseline import FOREIGN, Baseline

# Reads all clocks and random generators, and calls a host function.
SOURCE = """
import datetime, os, random, secrets, time, uuid
from time import monotonic as bound_early
from vmhost.guest import host

def run(value):
    if value == "fail":
        raise ValueError(f"no: {time.time()}")
    return {
        "clocks": [time.time(), time.time_ns(), bound_early(), time.perf_counter(), time.process_time(),
                   time.clock_gettime(time.CLOCK_REALTIME)],
        "dates": [datetime.datetime.now(), datetime.datetime.now(datetime.UTC), datetime.date.today(),
                  datetime.datetime.today()],
        "texts": [time.strftime("%c"), time.asctime(), time.ctime(), tuple(time.localtime()), tuple(time.gmtime())],
        "random": [random.random(), random.Random().random(), secrets.token_hex(4), os.urandom(3), os.getrandom(3)],
        "ids": [str(uuid.uuid4()), str(uuid.uuid1()), str(uuid.uuid7())],
        "price": host.price(value),
        "value": value,
    }
"""
PERMISSIONS = {"host": ["price"]}


def task_bundle(source=SOURCE, version="1.0.0", permissions=PERMISSIONS, **options):
    return bundle(source, version=version, permissions=permissions, **options)


def host(functions=None, **options):
    return vmhost.Host(allow_unsigned=True, functions=functions or {"price": lambda value: ["is", value]}, **options)


def recorded(folder, values, source=SOURCE, functions=None, permissions=PERMISSIONS, types=None, **policy):
    """The Baseline of calls with `values`; their errors are ignored."""
    with host(functions, types=types) as running:
        task = running.load(task_bundle(source, permissions=permissions))
        running.record(task, vmhost.RecordPolicy(folder, **{"share": 1.0, **policy}))
        for value in values:
            try:
                task(value)
            except vmhost.VMHostError:
                continue
    return baseline_in(folder)


def baseline_in(folder):
    (path,) = folder.glob("*.baseline")
    return Baseline.read(path)


def replayed(baseline, source, permissions=PERMISSIONS):
    """The calls of `baseline` in a task of `source`: a list of Recorded."""
    with host(types=FOREIGN) as running:
        task = running.load(task_bundle(source, "1.1.0", permissions))
        return [task.replay(call).result() for call in baseline]
