"""A host's threads are native ones where a program has replaced Python's, as gevent's monkey patches do: a greenlet
would run only while the thread that made it waits in gevent. `make environments` has gevent itself."""

import subprocess
import sys
import textwrap

import pytest

from tests.hosts import PROLOGUE, ROOT

PATCHES = """
import _thread, queue, threading

def never_runs(*_, **__):
    return 1

real_get_ident = threading.get_ident
def patch():
    for module in (_thread, threading):
        for name in ("start_new_thread", "_start_new_thread", "start_joinable_thread", "_start_joinable_thread"):
            if hasattr(module, name):
                setattr(module, name, never_runs)
        module.get_ident = lambda: real_get_ident() + 1
    _thread.allocate_lock = lambda: None
    queue.SimpleQueue = None
"""

USES = """
host = vmhost.Host(allow_unsigned=True, functions={"double": lambda value: 2 * value})
task = host.load(bundle('''
    from vmhost.guest import host
    def run(value):
        return host.double(value)
''', permissions={"host": ["double"]}))
done = []
future = task.submit(4)
future.add_done_callback(lambda future: done.append(future.result()))
print(task(21), future.result())
print(host.close(), done)
"""


@pytest.mark.parametrize("order", ["before vmhost is imported", "after"])
def test_calls_functions_and_callbacks_run_where_threads_were_replaced(order):
    first = order != "after"
    steps = ["patch()\n", PROLOGUE] if first else [PROLOGUE, "patch()\n"]
    program = "".join([PATCHES, *steps, textwrap.dedent(USES)])
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, "42 8\n() [8]\n"), ended.stderr
