"""Helpers for tests of running hosts: bundles from source text, waiting for a condition, and scripts in a process of
their own."""

import itertools
import os
import sys
import textwrap
import time
from pathlib import Path

import vmhost
from tests import warm
from vmhost.bytecode.compiler import compile_sources
from vmhost.limits import byte_count, seconds

_LIMITS = {
    "memory": ("memory_bytes", byte_count),
    "stack": ("stack_bytes", byte_count),
    "wall_time": ("wall_time_s", seconds),
    "cpu_time": ("cpu_time_s", seconds),
}
ROOT = Path(__file__).parents[1]

PROLOGUE = """
import os, signal, sys, threading, time
import vmhost
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy
from tests.hosts import bundle, until, wedged
"""


def bundle(source, name="task", version="1.0.0", limits=None, permissions=None):
    """An unsigned bundle in memory whose one module `main` is `source`; its entry is `main:run`. `limits` are as in
    task.yaml or a manifest."""
    source = textwrap.dedent(source)
    limits = {
        _LIMITS.get(key, (key, None))[0]: _LIMITS[key][1](value) if key in _LIMITS else value
        for key, value in (limits or {}).items()
    }
    return compile_sources(
        {"main": (source, f"{name}@{version}/main.py", False)},
        entry="main:run",
        name=name,
        version=version,
        limits=limits,
        permissions=permissions,
    )


def interrupt_at(step):
    """A trace function, for sys.settrace(), that presses Ctrl-C before instruction `step`, from 1 on, of what is called
    from here."""
    steps = itertools.count(1)

    def trace(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


def until(condition, timeout_s=60.0):
    """Returns when `condition()` holds, with what it gave; AssertionError after `timeout_s`. For what tells no
    event."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"did not come true within {timeout_s} s: {condition}"
        time.sleep(0.002)


def stopped_by_its_deadline(task, value, entry, begun):
    """The TimeLimitError of a call of `entry` that had begun, as `begun(error)` tells. On a slow machine the first
    deadlines come too early."""
    for timeout_s in (0.2, 2, 20):
        try:
            task(value, entry=f"main:{entry}", timeout_s=timeout_s)
        except vmhost.TimeLimitError as error:
            if begun(error):
                return error
    raise AssertionError(f"{entry} did not begin within {timeout_s} s")


def wedged(task, entry, is_refused):
    """Calls `entry`, which no stop ends; what `is_refused()` gives once its VM is given up."""
    for timeout_s in (0.5, 5, 50):
        try:
            task(None, entry=f"main:{entry}", timeout_s=timeout_s)
        except vmhost.VMLostError:
            return is_refused()
        except vmhost.TimeLimitError:
            try:  # the machine is so busy that the VM itself has more time, or that the call did not begin
                return until(is_refused, 20)
            except AssertionError:
                pass
    raise AssertionError(f"{entry} did not begin within {timeout_s} s")


def in_a_process(script, *arguments, timeout_s=240, **environment):
    """Runs `script`, which finds the names of PROLOGUE, in a Python of its own. Gives the CompletedProcess, text in and
    out."""
    return warm.run(
        "-c",
        PROLOGUE + textwrap.dedent(script),
        *arguments,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=timeout_s,
    )
