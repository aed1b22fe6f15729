"""A task that imports `vmhost.guest` runs as plain Python as well, with the same results as in a VM."""

import json
import subprocess
import sys

import pytest

import vmhost
from tests.hosts import ROOT
from vmhost.bytecode.compiler import compile_sources

TASK = """
from vmhost.guest import Buffer, HostFunctionError, PermissionDenied, Stopped, deadline, host, log, resources

def run(value):
    log.info("%s: %s", value, "begun")
    buffer = Buffer((2, 3), "i")
    view = memoryview(buffer)
    view[1, 2] = 7
    said = []
    for name in ("fails", "nowhere"):
        try:
            getattr(host, name)(1)
        except HostFunctionError as error:
            said.append(str(error).partition(":")[0])
    try:
        resources.read_text("missing")
    except FileNotFoundError as error:
        said.append(error.filename)
    with resources.open("data/table.csv") as file:
        table = file.read()
    return {"table": table, "binary": list(resources.read_bytes("/data/table.csv")), "double": host.double(value),
            "said": said, "view": view.tolist(),
            "buffer": [list(buffer.shape), buffer.format, buffer.nbytes, buffer.readonly],
            "late": deadline() < 1000, "named": "data/table.csv" in resources.names(),
            "kinds": [issubclass(PermissionDenied, PermissionError), issubclass(Stopped, Exception),
                      PermissionDenied.__module__]}
"""
PLAIN = """
import json, logging
from vmhost.guest.testing import stand_in
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
import main
with stand_in(functions={"double": lambda value: value * 2, "fails": lambda value: 1 / 0}, deadline_s=60):
    print(json.dumps(main.run(21)))
from vmhost.guest import deadline, host, resources
print(deadline(), resources.names())
try:
    host.double(1)
except Exception as error:
    print(type(error).__name__, error)
try:
    print(resources.read_text("../secret"))
except FileNotFoundError:
    print("outside")
"""


def test_it_gives_what_it_gives_in_a_vm(tmp_path):
    folder = tmp_path / "task"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "table.csv").write_text("1,2\n")
    (folder / "main.py").write_text(TASK)
    (folder / "task.yaml").write_text("")  # says where the task's folder is
    (tmp_path / "secret").write_text("")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{folder}"},
    )
    assert (done.returncode, done.stderr) == (0, "vmhost.task 21: begun\n")
    plain, rest, refused, outside = done.stdout.splitlines()
    functions = {"double": lambda value: value * 2, "fails": lambda value: 1 / 0}
    with vmhost.Host(allow_unsigned=True, functions=functions) as host:
        task = host.load(
            compile_sources(
                {"main": (TASK, "main.py", False)},
                entry="main:run",
                name="task",
                version="1.0.0",
                files={"data/table.csv": b"1,2\n"},
                permissions={"host": ("double", "fails")},
            )
        )
        assert json.loads(plain) == task(21, timeout_s=60)
    assert rest == "None ['data/table.csv', 'main.py', 'task.yaml']"
    assert refused.startswith(
        "HostFunctionError PermissionDenied: host function 'double' is not there; give it to vmhost.guest.testing"
    )
    assert outside == "outside"


def test_the_stand_in_is_in_no_vm():
    bundle = compile_sources(
        {"main": ("def run(value):\n    import vmhost.guest.testing\n", "main.py", False)},
        entry="main:run",
        name="task",
        version="1",
    )
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle)
        with pytest.raises(vmhost.TaskError) as caught:
            task()
        assert caught.value.type_name == "ModuleNotFoundError"
