"""A host that traces its memory makes VMs like any other. CPython holds its lock of thread states while it makes an
interpreter; tracemalloc wants that lock for an allocation of a thread that has no thread state."""

import subprocess
import sys
import textwrap

from tests.hosts import ROOT


def test_vms_boot_while_the_host_traces_its_memory():
    program = textwrap.dedent("""
        import tracemalloc
        tracemalloc.start()
        import vmhost
        from tests.hosts import bundle
        with vmhost.Host(allow_unsigned=True) as host:
            tasks = [host.load(bundle("def run(value):\\n    return value\\n", name=f"task{at}")) for at in range(4)]
            print(*(task(at) for at, task in enumerate(tasks)))
        print(tracemalloc.get_traced_memory()[0] > 0)
    """)
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "0 1 2 3\nTrue\n"), ended.stderr
