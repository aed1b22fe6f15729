"""Boots VMs and runs one call in each with less and less memory, and prints how each try ended. Run by
test_allocations.py.

    python -m tests.faults.allocations FIRST LAST STEP

Each try has a hard limit of so many bytes above what its VM holds when it is ready, so what fails is the first request,
or a later one, that does not fit any more. Booting is not limited: a VM's limits are in force from then on."""

import collections
import sys

from tests.hosts import bundle, until
from vmhost.errors import MemoryLimitError, from_core
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation

WORK = """
import re

class Node:
    def __init__(self, value, rest):
        self.value, self.rest = value, rest

def setup():
    global words
    words = re.findall(r"\\\\w+", "the quick brown fox " * 50)

def run(value):
    head = None
    for number in range(2000):
        head = Node({"number": number, "text": f"<{number}>"}, head)
    try:
        total = sum(node["number"] for node in chain(head))
    finally:
        import json
        text = json.dumps([total, words])
    return [total, json.loads(text)[0], sorted(set(words)), {"a": (1, 2.5, b"x" * 1000)}]

def chain(head):
    while head is not None:
        yield head.value
        head = head.rest
"""


def main(first, last, step):
    core = isolation.core()
    core.set_error_factory(from_core)
    system, store = system_code_store(core), isolation.code_store_of(bundle(WORK), core)
    ends = collections.Counter()
    for room in range(first, last, step):
        events = core.Events()
        lane = core.Lane("work", "1", store, "main:run", events)
        vm = core.VM(system, events)
        until(lambda: vm.state == "ready")
        live = vm.statistics()["live_bytes"]
        vm.set_limits(1 << 60, live + room)
        vm.attach(lane)
        call = lane.submit(None, 20)
        until(lambda: call.done() or vm.state in ("ended", "quarantined"))
        untaken = not call.done()
        lane.close(False)  # a VM that had no memory for the task's grants ends without taking its call
        try:
            call.result()
            ends["result"] += 1
        except Exception as error:
            ends["untaken" if untaken else type(error).__name__] += 1
            if not isinstance(error, MemoryLimitError) and not untaken:
                print(room, repr(error), getattr(error, "guest_traceback", None), file=sys.stderr)
        vm.retire()
        until(lambda: vm.state in ("ended", "quarantined"))
        ends[vm.state] += 1
        if vm.state == "ended":
            ends["bytes left"] += vm.statistics()["live_bytes"] != 0
    print(dict(ends), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
