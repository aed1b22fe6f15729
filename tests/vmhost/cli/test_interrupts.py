"""Ctrl-C ends a wait even if it does not interrupt the main thread's sleep."""

import subprocess
import sys

from vmhost.cli import interrupts

SCRIPT = """
import signal, sys, threading, time
from vmhost.cli import interrupts

def interrupt():
    while sys._current_frames()[threading.main_thread().ident].f_code is not interrupts.sleep.__code__:
        time.sleep(0.001)
    time.sleep(0.1)  # now the main thread sleeps, and the signal reaches this thread
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    interrupts.sleep()
except KeyboardInterrupt:
    print("ended")
"""


def test_a_signal_that_another_thread_receives_ends_the_sleep():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_sleep_ends_by_itself():
    interrupts.sleep(0.01)
