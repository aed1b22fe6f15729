"""Calls with arguments that fit, one of them bent: neither a VM nor the process dies of any. `make fuzz` does the same
for an hour, .ci/run for a minute; VMHOST_FITTING_SECONDS says for how long here."""

import os
import subprocess
import sys
from pathlib import Path

import vmhost
from tests.fuzz import fitting, plain
from vmhost.bytecode.compiler import compile_sources
from vmhost.engine import _array

SECONDS = os.environ.get("VMHOST_FITTING_SECONDS", "2")
SEED = os.environ.get("VMHOST_FITTING_SEED", "17")
ONLY_IN_VMS = {"_embedding_open"}  # what it opens


def test_each_private_function_has_arguments_that_fit():
    known = fitting.examples(list(plain.models()))
    expected = set(_array._kinds()) - set(fitting.NEVER) - ONLY_IN_VMS
    assert set(known) == expected, f"examples of fitting.py: {set(known) ^ expected}"
    for name, makers in known.items():
        for made in makers:
            getattr(_array, name)(*made())


def test_what_fits_has_the_kinds_of_the_table():
    given = {"integer": int, "real": float, "truth": bool, "text": str, "bytes": bytes, "dict": dict, "list": list}
    for name, makers in fitting.examples(list(plain.models())).items():
        for made in makers:
            arguments = made()
            assert len(arguments) <= len(_array._kinds()[name]), name
            for value, (parameter, kind, or_none, bounds, _) in zip(arguments, _array._kinds()[name]):
                assert (or_none and value is None) or isinstance(value, given.get(kind, object)), (name, parameter)
                assert bounds is None or bounds[0] <= value <= bounds[1], (name, parameter)


RUNTIME = """
def run(_):
    import types
    import _vmhost
    import fitting
    known = fitting.runtime()
    natives = {name for name, one in vars(_vmhost).items() if isinstance(one, types.BuiltinFunctionType)}
    for name, (function, makers) in known.items():
        for made in makers:
            function(*made())
    return sorted((natives | {"Buffer"}) ^ set(known))
"""


def test_each_function_of_the_guest_runtime_has_arguments_that_fit():
    """And they do: none of the calls raises."""
    sources = {
        "main": (RUNTIME, "main.py", False),
        "fitting": (Path(fitting.__file__).read_text(), "fitting.py", False),
    }
    task = compile_sources(sources, entry="main:run", name="task", version="1", permissions={"host": ["echo"]})
    with vmhost.Host(allow_unsigned=True, functions={"echo": lambda value: value}) as host:
        assert host.load(task)(None) == []


def test_the_process_survives_what_almost_fits(tmp_path):
    notes = tmp_path / "notes"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.plain", SEED, SECONDS, notes],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=float(SECONDS) + 300,
    )  # fmt: skip
    said = "\n".join(line.strip() for line in notes.read_text().splitlines())
    assert done.returncode == 0 and done.stdout.endswith(" calls\n"), f"{done.stdout}{done.stderr[-8000:]}\n{said}"
    assert int(done.stdout.split()[0]) > 100


def test_vms_and_their_host_survive_it():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--fitting", "--seconds", SECONDS, "--seed", SEED],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=float(SECONDS) + 300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
