"""`vmhost run`: one bundle, one call, or one call for each of many values; results as JSON on stdout.

What the task prints or logs goes to stderr, as the host logs it. Ctrl-C ends the wait for a call.
"""

import contextlib
import logging
import sys
import time
from pathlib import Path

import click

from vmhost.cli import failures, inspect, keys, quantities, tracebacks
from vmhost.lines import json_values

_PROFILE_HZ = 500  # a single call may be short


@click.command(short_help="Call BUNDLE's entry point and print the result.")
@click.argument("path", type=click.Path(path_type=Path), metavar="BUNDLE")
@click.option(
    "--input",
    "given",
    metavar="FILE|JSON|-",
    help="The value to call with: a JSON file, JSON itself, or - for stdin. [default: null]",
)
@click.option(
    "--each", is_flag=True, help="The input is a list: one call for each item, several at a time, results in order."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=quantities.Time(),
    help='Give up after this long, as in "2 s" or "500 ms". [default: the task\'s limit]',
)
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to trust. [default: vmhost keys trust]"
)
@click.option("--allow-unsigned", is_flag=True, help="Also run an unsigned bundle.")
@click.option("--settings", "settings_file", type=click.Path(path_type=Path), help="A host.yaml for the host.")
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="The task's folder, for source lines in tracebacks. [default: found]",
)
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(path_type=Path),
    help="Write a profile: a flame graph (.svg), .speedscope, .pprof or .folded.",
)
@failures.command
def command(output, path, given, each, timeout_s, trust, allow_unsigned, settings_file, source, profile_path):
    """Call BUNDLE's entry point in a VM and print what it returns."""
    import vmhost

    inspect.existing(path)
    check_settings(settings_file, trust, allow_unsigned)
    try:
        value = json_values.read(given)
    except ValueError as error:
        raise failures.Failure(str(error)) from error
    if each and not isinstance(value, list):
        raise failures.Failure(f"--each: expected a list of values as input, got {type(value).__name__}")
    if profile_path is not None:
        from vmhost.operations import flames

        try:
            flames.form_of(profile_path)
        except ValueError as error:
            raise failures.Failure(f"--profile: {error}") from error
    with contextlib.ExitStack() as stack:
        stack.enter_context(guest_log(output))
        host = stack.enter_context(open_host(settings_file, trust, allow_unsigned, memory_lines=True))
        task = host.load(path)
        if profile_path is not None:
            stack.enter_context(_profiled(host, profile_path))
        started = time.perf_counter()
        try:
            result = _call_each(output, task, value, timeout_s) if each else _call(output, task, value, timeout_s)
        except Exception as error:
            _add_source_lines(error, path, source)
            if given is None and isinstance(error, vmhost.TaskError):
                error.advice = ["without --input, the task is called with null"]
            raise
        elapsed_s = time.perf_counter() - started
    try:
        plain = json_values.to_plain(result)
    except TypeError as error:
        raise failures.Failure(f"{path}: the task returned a value that JSON cannot express: {error}") from error
    if output.as_json:
        output.document({"task": f"{task.name} {task.version}", "result": plain, "elapsed_s": elapsed_s})
    else:
        output.json_text(plain)


def check_settings(settings_file, trust, allow_unsigned, state=None):
    """Refuses options that a host.yaml decides, if there is one."""
    options = (
        ("--trust", trust, "trust: FOLDER"),
        ("--allow-unsigned", allow_unsigned, "allow_unsigned: true"),
        ("--state", state, "state: FOLDER"),
    )
    for option, given, key in options if settings_file is not None else ():
        if given:
            raise failures.Failure(f"{option}: with --settings, say so in that file: `{key}`")


def open_host(settings_file, trust, allow_unsigned, state=None, memory_lines=False):
    """A Host for the command's options. `state`: a state folder; `memory_lines`: as in TaskPolicy; both apply unless a
    host.yaml sets them."""
    import vmhost
    from vmhost.runtime.codec import PARTS

    try:
        if settings_file is not None:
            return vmhost.Host.from_file(settings_file, types=PARTS)
        policy = vmhost.Policy(task=vmhost.TaskPolicy(memory_lines=memory_lines))
        trusted = keys.trust_store(trust)
        return vmhost.Host(trust=trusted, allow_unsigned=allow_unsigned, state=state, policy=policy, types=PARTS)
    except ImportError as error:
        raise failures.Failure(str(error), failures.HOST_FAILED, "ImportError") from error


@contextlib.contextmanager
def _profiled(host, path):
    """Writes a profile of the block to `path`, however the block ends."""
    from vmhost.operations import flames

    profiling = host.profile(_PROFILE_HZ)
    try:
        yield
    finally:
        try:
            flames.write(profiling.stop(), path)
        except OSError as error:
            raise failures.Failure(f"--profile: {error}") from error


def _call(output, task, value, timeout_s):
    with _waiting(output, f"running {task.name} {task.version}"):
        return task.submit(value, timeout_s=timeout_s).result()


def _call_each(output, task, items, timeout_s):
    results = []
    with output.progress() as progress:
        called = task.map(items, timeout_s=timeout_s)
        try:
            for result in progress.track(called, total=len(items), description=f"{task.name} {task.version}"):
                results.append(result)
        except Exception as error:
            error.item = len(results)
            raise
    return results


@contextlib.contextmanager
def _waiting(output, text):
    """A spinner on stderr while the call runs, if it is a terminal."""
    if output.as_json or not output.remarks.is_terminal:
        yield
    else:
        with output.remarks.status(text):
            yield


@contextlib.contextmanager
def guest_log(output):
    """Lets lines that tasks print or log appear on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("vmhost")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _add_source_lines(error, path, source):
    """Adds the task's source lines to the error's traceback, if the folder of the bundle is found."""
    from vmhost.bytecode.format import read_bundle

    if getattr(error, "guest_traceback", None):
        folder = tracebacks.source_folder(read_bundle(path, allow_unsigned=True), source)
        if folder is not None:
            error.guest_traceback = tracebacks.with_source(error.guest_traceback, folder)
