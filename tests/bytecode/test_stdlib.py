"""The standard-library bundle: what is in it, that it loads, and how the guest runtime shapes it."""

import inspect
import marshal
import opcode
import platform
import sys
import types

import pytest

from vmhost.bytecode import offered
from vmhost.bytecode.acceptance import is_accepted
from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.format import read_bundle
from vmhost.stdlib import build, policy
from vmhost.stdlib.patches import patch


def unshaped(patcher, guest):
    """The library unchanged: nothing edited, cut or replaced, and the guest runtime in the folder `guest`."""
    patcher.setattr(build, "guest_sources", lambda: offered.guest_sources(guest))
    patcher.setattr(build, "_OVERLAYS", guest / "overlays")
    patcher.setattr(build, "patch", lambda name, source: source)
    patcher.setattr(build, "split", lambda name, source: (source, {}))
    patcher.setattr(build, "system_texts", lambda names: [])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patcher:
        unshaped(patcher, tmp_path_factory.mktemp("no_guest"))
        return read_bundle(build.build_stdlib(), allow_unsigned=True)


@pytest.fixture
def guest(tmp_path, monkeypatch):
    """A folder like vmhost/guest, and a standard library of three modules, so that building takes no time."""
    sources = offered.library_sources()
    few = {name: sources[name] for name in ("keyword", "json", "json.tool")}
    unshaped(monkeypatch, tmp_path)
    monkeypatch.setattr(build, "library_sources", lambda: few)
    monkeypatch.setattr(build, "engine_sources", dict)
    return tmp_path


def test_it_is_a_library_for_exactly_this_python(bundle):
    manifest = bundle.manifest
    assert (
        manifest.kind,
        manifest.name,
        manifest.version,
        manifest.exact_python,
        manifest.optimize,
        manifest.entry,
    ) == ("stdlib", "stdlib", platform.python_version(), platform.python_version(), 0, None)


@pytest.mark.parametrize(
    "name",
    [
        "asyncio",
        "collections",
        "concurrent.futures",
        "contextlib",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "functools",
        "json",
        "logging",
        "re",
        "sqlite3",
        "statistics",
        "typing",
        "urllib.parse",
        "encodings.utf_8",
        "importlib.resources",
    ],
)
def test_what_tasks_use_is_in_it(bundle, name):
    assert name in bundle.modules


@pytest.mark.parametrize(
    "name",
    [
        "tkinter",
        "idlelib.idle",
        "test",
        "test.support",
        "ensurepip",
        "venv",
        "multiprocessing",
        "ctypes",
        "curses",
        "pip",
        "site",
        "turtle",
        "sitecustomize",
        "json.__main__",
        "concurrent.futures.process",
        "lib2to3",
    ],
)
def test_what_a_vm_cannot_use_is_not(bundle, name):
    assert name not in bundle.modules


def test_every_module_is_code_named_after_the_library(bundle):
    for name, module in bundle.modules.items():
        code = marshal.loads(module.code)
        path = name.replace(".", "/") + ("/__init__.py" if module.is_package else ".py")
        assert code.co_filename == f"stdlib@{platform.python_version()}/{path}", name
    json = marshal.loads(bundle.modules["json"].code)
    space = types.ModuleType("json").__dict__
    space["__package__"], space["__name__"] = "json", "json"
    exec(json, space)
    assert space["loads"]("[1]") == [1]
    assert space["loads"].__doc__ is None


def test_asserts_stay_and_docstrings_go(bundle):
    asserting = bytes((opcode.opmap["LOAD_COMMON_CONSTANT"], opcode._common_constants.index(AssertionError)))
    documented, checking = set(), set()
    for name, module in bundle.modules.items():
        pending = [marshal.loads(module.code)]
        for code in pending:
            pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            if code.co_flags & inspect.CO_HAS_DOCSTRING:
                documented.add((name, code.co_qualname))
            if asserting in {code.co_code[at : at + 2] for at in range(0, len(code.co_code), 2)}:
                checking.add(name)
    assert documented == set()
    assert {"wsgiref.handlers", "threading", "argparse"} <= checking and len(checking) > 60


def test_what_is_imported_unconditionally_is_offered_too(bundle):
    """No module of the bundle needs, at its top level, a module that is missing in the tables."""
    import ast
    import warnings

    warnings.simplefilter("ignore", SyntaxWarning)
    known = offered.offered_modules() | offered.ALIASES | {"_frozen_importlib", "_frozen_importlib_external"}
    imp = {"_imp"}  # loaded before a VM is sealed, so these find it without an importer
    needed_anyway = {
        "zipimport": imp,
        "importlib": imp,
        "importlib._bootstrap_external": imp,
        "importlib.util": imp,
        "xmlrpc.server": {"pydoc"},
    }  # put off by vmhost/stdlib/patches/
    for name, (path, is_package) in offered.library_sources().items():
        overlay = build._OVERLAYS / f"{name}.py"
        for node in ast.parse((overlay if overlay.exists() else path).read_bytes()).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else ([node.module] if isinstance(node, ast.ImportFrom) and not node.level else [])
            )
            missing = set(names) - known - needed_anyway.get(name, set())
            assert not missing, f"{name} imports {missing}"


def test_building_twice_gives_the_same_bytes(guest):
    assert build.build_stdlib() == build.build_stdlib()


def test_guest_runtime_overlays_and_patches(guest, monkeypatch):
    (guest / "__init__.py").write_text("import sys")
    (guest / "boot.py").write_text("ready = True")
    (guest / "testing.py").write_text("for plain Python")
    (guest / "overlays").mkdir()
    (guest / "overlays" / "json.py").write_text("overlaid = True")
    (guest / "overlays" / "subprocess.py").write_text("stand_in = True")
    asked = []
    monkeypatch.setattr(
        build, "patch", lambda name, source: source + "\npatched = True\n" if name == "keyword" else source
    )
    monkeypatch.setattr(build, "system_texts", lambda names: asked.extend(names) or [("eval", "lambda: 42")])
    bundle = read_bundle(build.build_stdlib(), allow_unsigned=True)
    assert set(bundle.modules) == {
        "json",
        "json.tool",
        "keyword",
        "subprocess",
        "vmhost",
        "vmhost.guest",
        "vmhost.guest.boot",
    }
    assert bundle.modules["json"].is_package
    assert bundle.modules["vmhost"].is_package

    def run(name):
        space = {}
        exec(marshal.loads(bundle.modules[name].code), space)
        return space

    assert run("json")["overlaid"]
    assert run("subprocess")["stand_in"]
    assert run("keyword")["patched"]
    assert run("vmhost.guest.boot")["ready"]
    assert sorted(asked) == ["json", "json.tool", "keyword", "subprocess"]
    assert [eval(marshal.loads(code))() for code in bundle.texts.values()] == [42]


def test_command_line_writes_the_file(guest, tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "stdlib.vmb"
    assert build.main([str(out)]) == 0
    assert read_bundle(out, allow_unsigned=True).manifest.kind == "stdlib"
    assert sorted(path.name for path in out.parent.iterdir()) == ["stdlib.vmb", "stdlib.vmb.accepted"]
    assert is_accepted(read_bundle(out, allow_unsigned=True), out), "what was just compiled is not verified by hosts"
    assert "stdlib.vmb: " in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert build.main([str(tmp_path / "file" / "stdlib.vmb")]) == 1
    assert "error: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        build.main([])
    assert caught.value.code == 2


def test_command_line_says_which_patch_does_not_apply(guest, tmp_path, monkeypatch, capsys):
    (tmp_path / "gettext.py").write_text("def c2py(plural): pass\n")
    sources = {"gettext": (tmp_path / "gettext.py", False)}
    monkeypatch.setattr(build, "library_sources", lambda: sources)
    monkeypatch.setattr(build, "patch", patch)
    assert build.main([str(tmp_path / "stdlib.vmb")]) == 1
    output = capsys.readouterr().err
    assert output.startswith("error: gettext of Python 3") and "/required/gettext.patch: @@ -" in output
    assert not (tmp_path / "stdlib.vmb").exists()


def test_library_of_another_python_is_refused(guest, monkeypatch):
    data = build.build_stdlib()
    monkeypatch.setattr(sys, "version", sys.version.replace(platform.python_version(), "3.14.99", 1))
    with pytest.raises(BundleError, match="made for exactly Python .*, this host runs 3.14.99; build it again with"):
        read_bundle(data, allow_unsigned=True)


def test_native_modules_exist_in_this_python():
    import importlib.util

    unknown = {
        name
        for name in offered.NATIVE_MODULES
        if name not in sys.builtin_module_names and importlib.util.find_spec(name) is None
    }
    assert not unknown


def test_native_modules_are_those_that_the_walls_know():
    """The compiler lets a task import the modules in the isolation layer's tables, and no others."""
    only_for_the_library = {name for name in policy.POLICY if offered.left_out(name)}
    assert set(policy.POLICY) - only_for_the_library == offered.NATIVE_MODULES


def test_tables_do_not_contradict_each_other():
    assert not offered.NATIVE_MODULES & offered.LEFT_OUT.keys()
    assert not offered.REFUSED.keys() & offered.LEFT_OUT.keys()
    known = offered.offered_modules()
    for name in offered.REFUSED_NAMES:
        assert name.rpartition(".")[0] in known, name
