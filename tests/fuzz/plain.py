"""`python -m tests.fuzz.plain SEED SECONDS NOTES`: the calls of fitting.py in this process, without a VM around
them, from two threads, for the sanitizers. Prints the number of calls. NOTES keeps the last calls of each thread."""

import faulthandler
import gc
import os
import resource
import sys
import threading
import time
from pathlib import Path

import vmhost.engine.numpy as np
from tests import networks
from tests.fuzz.fitting import Fitting
from vmhost.engine.model_parts import sizes_of_files
from vmhost.engine.onnx import compile_model

MEMORY_BYTES = 4 << 30  # of address space, beyond what a sanitizer has taken
GROWTH_BYTES = 1 << 30
HANG_S, NOTE = 120, 400


def models():
    np.linalg.svd(np.eye(2))  # finds LAPACK
    for network in (networks.small(), networks.images()):
        data = compile_model(network, "network")
        begin, end = sizes_of_files(memoryview(data))[0]
        yield lambda data=data[begin:end]: (data, 1, False, True, False, None, 0)


def status_bytes(name):
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def one_thread(number, seed, end, given, counts, notes):
    def attempt(what, function, arguments):
        text = f"{number}: {what}"[: NOTE - 1].encode("ascii", "backslashreplace")[: NOTE - 1]
        os.pwrite(notes, text.ljust(NOTE - 1) + b"\n", (counts[number] % 4 + 4 * number) * NOTE)
        counts[number] += 1
        try:
            function(*arguments)
        except Exception:
            pass

    fitting = Fitting(f"{seed}/{number}", attempt, given, plain=True)
    while time.monotonic() < end:
        fitting.step()
        if counts[number] % 100 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)


def main(seed, seconds, notes):
    given = list(models())
    resource.setrlimit(resource.RLIMIT_AS, (status_bytes("VmSize:") + MEMORY_BYTES,) * 2)
    counts, end = [0, 0], time.monotonic() + seconds
    threading.excepthook = lambda told: (sys.__excepthook__(*told[:3]), os._exit(1))
    threads = [
        threading.Thread(target=one_thread, args=(number, seed, end, given, counts, notes)) for number in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(min(5, seconds / 2))
    early = status_bytes("VmRSS:")
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    grown = status_bytes("VmRSS:") - early
    print(f"{sum(counts)} calls" if grown < GROWTH_BYTES else f"grown by {grown >> 20} MiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), os.open(sys.argv[3], os.O_RDWR | os.O_CREAT))
    os._exit(0)
