"""The check that wraps every test finds VMs, threads and files that a test leaves behind."""

import os
import threading

import vmhost
from tests.conftest import Belongings
from tests.hosts import bundle, until


def test_a_thread_a_file_and_a_vm_are_found():
    before = Belongings()
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="left over")
    thread.start()
    file = os.open("/dev/null", os.O_RDONLY)
    host = vmhost.Host(allow_unsigned=True)
    try:
        for name in ("one", "two", "three"):  # more VMs than threads of the test before that may just be ending
            assert host.load(bundle("def run(value): return value\n", name))(1) == 1
        for what in ("thread left over", "/dev/null", "native threads of VMs", "thread vmhost-service"):
            assert what in "; ".join(Belongings().left_since(before))
    finally:
        over.set()
        thread.join()
        os.close(file)
        host.close()
    until(lambda: Belongings().left_since(before) == [])
