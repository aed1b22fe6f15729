"""Ctrl-C while a pipeline waits for its last calls: all is closed, and the calls are left to the next start."""

import contextlib
import os
import signal
import threading

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost.pipeline import PipelineError


def test_an_interrupt_cuts_off_the_last_calls(tmp_path):
    bundle = stream_task(tmp_path, "import time\n\n\ndef run(value):\n    time.sleep(3600)\n")
    pipeline = open_pipeline(tmp_path, bundle)
    pipeline.append_many(clicks("a", "b"))

    def interrupt():
        with contextlib.suppress(PipelineError):  # it is closed, and its lock is free: `close` waits
            while True:
                pipeline.wait_for_room(0)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.close(keep_visits=True)
    interrupting.join()
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as again:
        assert again.wait(WAIT_S)
        assert [row["visit"] for row in again.table("clicks").read()] == ["a", "b"]
