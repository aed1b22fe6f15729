"""ONNX Runtime in a process and a home of its own: it opens files, starts threads that it keeps, and counts its uses.

A test process has one such process, from when it is first needed until it ends. Starting one for each model took longer
than what it computes."""

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests import warm

ROOT = Path(__file__).resolve().parents[1]

_server = None  # its standard input and output


def answers(cases, *, exact=False, quiet=False):
    """For each (model, [{name: array}, …]) of `cases`, and each of its inputs: the names and values of the outputs, as
    pairs. `exact`: products of 8-bit integers do not saturate, as they do where a CPU has no VNNI. `quiet`: only fatal
    errors are logged."""
    global _server
    if _server is None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.onnx_runtime"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.returncode = 0  # it ends with this process, which does not wait for it
        _server = process.stdin, process.stdout
        warm.keep(*_server)
        for pipe in _server:
            atexit.register(pipe.close)
    asked, told = _server
    try:
        pickle.dump((cases, exact, quiet), asked)
        asked.flush()
        found, error = pickle.load(told)
    except (EOFError, OSError) as ended:
        _server = None
        warm.let_go(asked, told)
        raise RuntimeError("ONNX Runtime's process has ended") from ended
    if error is not None:
        raise RuntimeError(f"ONNX Runtime refuses the model:\n{error}")
    return found


def _answer(cases, exact, quiet):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4 if quiet else 2)
    found = []
    for model, inputs in cases:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # more wait for each other in loops, while other workers need the cores
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_outputs()]
        found.append([list(zip(names, session.run(names, given))) for given in inputs])
    return found


def _serve():
    asked, told = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        os.chdir(home)
        while True:
            try:
                job = pickle.load(asked)
            except EOFError:
                return
            try:
                done = _answer(*job), None
            except Exception:
                done = None, traceback.format_exc()
            pickle.dump(done, told)
            told.flush()


if __name__ == "__main__":
    _serve()
