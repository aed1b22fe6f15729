"""The one import package: what it loads and when, and the names that its folders do not have."""

import subprocess
import sys
from pathlib import Path

import pytest

import vmhost

ROOT = Path(__file__).resolve().parent.parent
LOADED = (
    "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('vmhost', 'cffi', 'numpy', 'msgpack')))"
)


def loaded(statement):
    """Names of modules, ours and heavy ones, after `statement` in a Python of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\n{LOADED}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return eval(done.stdout)


def test_nothing_is_loaded_until_a_name_is_used():
    assert loaded("import vmhost") == ["vmhost", "vmhost.supported"]
    assert loaded("import vmhost.bytecode.errors") == [
        "vmhost",
        "vmhost.bytecode",
        "vmhost.bytecode.errors",
        "vmhost.supported",
    ]
    assert loaded("from vmhost import engine") == ["vmhost", "vmhost.engine", "vmhost.supported"]
    assert "vmhost.isolation.vm" not in loaded("from vmhost.bytecode import compiler, format, verifier")
    assert "vmhost.isolation.vm" not in loaded("from vmhost import Limits, VMHostError")
    program = "import vmhost\nvmhost.Host\nprint(sorted({'psutil', 'asyncio'} & set(sys.modules))); raise SystemExit"
    assert loaded(program) == []


def test_packages_are_attributes_and_only_public_names_are_listed():
    assert loaded("import vmhost; vmhost.engine") == ["vmhost", "vmhost.engine", "vmhost.supported"]
    assert "numpy" not in loaded("import vmhost; vmhost.engine.numpy.zeros(3)")
    assert [name for name in dir(vmhost) if not name.startswith("__")] == sorted(
        [*vmhost.__all__, "bytecode", "engine"]
    )
    assert [name for name in dir(vmhost.engine) if not name.startswith("__")] == ["load", "numpy"]
    assert "__version__" in dir(vmhost) and vmhost.__version__
    with pytest.raises(AttributeError, match="module 'vmhost.engine' has no attribute 'nump'"):
        vmhost.engine.nump


def test_a_task_without_models_is_compiled_without_numpy():
    program = "from vmhost.compiler import compile_folder; compile_folder('bench/tasks/empty')"
    assert {"vmhost.compiler", "numpy"}.intersection(loaded(program)) == {"vmhost.compiler"}


def test_every_public_name_is_there_and_listed_for_readers():
    source = (ROOT / "vmhost" / "__init__.py").read_text()
    for name in vmhost.__all__:
        assert getattr(vmhost, name).__name__ == name
        assert name in source.partition("_HOMES = ")[0], f"{name}: not among the imports that tools read"
    assert set(vmhost.__all__) <= set(dir(vmhost))
    with pytest.raises(AttributeError, match="module 'vmhost' has no attribute 'Hots'"):
        vmhost.Hots


@pytest.mark.parametrize("name", ["bytecode", "engine"])
def test_the_folders_names_are_refused(name):
    """In a checkout they could be imported under both names, and each class would be there twice."""
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: {name}: this folder is the package vmhost.{name}; import that" in done.stderr
