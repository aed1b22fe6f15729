"""Small stream tasks, and events for them."""

import queue
import threading

from vmhost.bytecode.compiler import compile_task
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import Pipeline

WAIT_S = 60
SPEC = """\
name: {name}
version: {version}
entry: main:run
python: "3.14"
limits: {{concurrency: {concurrency}{limits}}}
permissions: {{host: [{functions}]}}
priority: {priority}
trigger: {{{trigger}}}
table: {{{table}}}
"""
TABLE = "columns: {visit: text, count: integer}"


def stream_task(folder, source, trigger="on: [click]", name="clicks", version="1.0.0", **options):
    """The bytes of a stream task's bundle. `options`: table, concurrency, functions, limits, priority."""
    task = folder / name
    task.mkdir(exist_ok=True)
    (task / "main.py").write_text(source)
    options = {"table": TABLE, "concurrency": 1, "functions": "", "limits": "", "priority": 0} | options
    (task / "task.yaml").write_text(SPEC.format(name=name, trigger=trigger, version=version, **options))
    return compile_task(task).to_bytes()


def clicks(*visits, begin_ms=1_790_000_000_000):
    return [Event("click", begin_ms + n, "item", visit, n, key=visit) for n, visit in enumerate(visits)]


def open_pipeline(folder, *bundles, **options):
    return Pipeline(folder / "data", bundles, allow_unsigned=True, **options)


ROWS = 'def run(value):\n    return {"visit": value["visit"], "count": len(value["events"])}\n'


class Gate:
    """The host function `gate`, for tasks made of GATED: their calls tell their visit, and end when they are let go."""

    def __init__(self):
        self.arrived, self._open = queue.SimpleQueue(), threading.Event()

    def __call__(self, visit):
        self.arrived.put(visit)
        self._open.wait(WAIT_S)

    def open(self):
        self._open.set()

    def wait_for(self, count):
        return {self.arrived.get(timeout=WAIT_S) for _ in range(count)}


GATED = f"from vmhost.guest import host\n\n\n{ROWS.replace('return', 'host.gate(value["visit"])\n    return')}"
