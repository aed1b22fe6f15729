"""The policy's table against the native modules: it lists every callable of every module that a VM can load.

And the VM has exactly what is filed.
"""

import subprocess
import sys

import pytest

import vmhost
from tests.batches import each
from vmhost.bytecode.compiler import compile_sources
from vmhost.stdlib.policy import ABSENT, POLICY

# Lists the names of a native module that are not plain constants, and the methods of types that are filed one by one.
LISTING = """
PLAIN = (int, float, complex, str, bytes, tuple, frozenset, type(None))

def listing(module, types):
    names = {name for name, value in vars(module).items() if not isinstance(value, PLAIN)} - {"__loader__", "__spec__"}
    for name in types:
        kind = vars(module).get(name)
        if isinstance(kind, type):
            names |= {f"{name}.{method}" for method, value in vars(kind).items()
                      if not method.startswith("__")
                      and type(value).__name__ in ("method_descriptor", "classmethod_descriptor")}
    return sorted(names)
"""

SOURCE = (
    LISTING
    + """
import importlib

def run(asked):
    module, types = asked
    try:
        return listing(importlib.import_module(module), types)
    except ImportError:
        return None

def refused(name):
    import vmhost.guest
    module, name = name
    try:
        getattr(importlib.import_module(module), name)()
    except vmhost.guest.PermissionDenied as error:
        return str(error)
"""
)


def types_of(rules):
    names = rules.allowed | rules.gated | rules.refused | rules.absent
    return sorted({name.partition(".")[0] for name in names if "." in name})


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(
            compile_sources({"main": (SOURCE, "main.py", False)}, entry="main:run", name="policy", version="1")
        )


@pytest.fixture(scope="module")
def plain():
    """CPython's own names, {module: names}, from a process without imports."""
    asked = {module: types_of(rules) for module, rules in POLICY.items()}
    program = (
        LISTING
        + f"""
import importlib
found = {{}}
for module, types in {asked!r}.items():
    try:
        found[module] = listing(importlib.import_module(module), types)
    except ImportError:
        pass
print(found)
"""
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return eval(done.stdout)


def test_no_name_is_filed_twice():
    for module, rules in POLICY.items():
        sets = [rules.allowed, rules.gated, rules.refused, rules.absent]
        assert sum(map(len, sets)) == len(frozenset().union(*sets)), module


def test_no_module_is_both_there_and_absent():
    assert not POLICY.keys() & ABSENT.keys()


@each("module", POLICY)
def test_every_callable_is_filed(plain, module):
    unfiled = [name for name in plain.get(module, ()) if POLICY[module].verdict(name) is None]
    assert not unfiled, f"{module}: new in this Python; file them in vmhost/stdlib/policy.py: {' '.join(unfiled)}"


@each("module", POLICY)
def test_a_vm_has_what_is_filed_and_nothing_else(task, plain, module):
    if module not in plain:
        return  # this Python was built without it
    names = task((module, types_of(POLICY[module])))
    assert names is not None, f"{module} cannot be imported in a VM"
    rules = POLICY[module]
    wanted = {name for name in plain[module] if rules.verdict(name) in ("allowed", "gated", "refused")}
    if module == "sys":
        wanted -= {"stdin", "__stdin__"}  # None in a VM
    if module == "select":
        wanted |= {"poll"}  # one of our own: polling.py
    assert set(names) == wanted


@each(
    "module, name",
    [
        (module, name)
        for module, rules in POLICY.items()
        for name in sorted(rules.refused)
        # in place of the compiler is a function of the guest runtime, which finds recorded texts (test_recording.py)
        if "." not in name and (module, name) != ("builtins", "compile")
    ],
)
def test_what_is_refused_raises(task, plain, module, name):
    if name in plain.get(module, ()):
        assert f"{module}.{name}" in task((module, name), entry="main:refused")
