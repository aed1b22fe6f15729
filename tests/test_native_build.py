"""setup.py on a checkout with very little C: what is compiled again when, and when a warning is an error."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PIPELINE = tuple(f"vmhost/pipeline/{room}" for room in ("features", "passes", "patterns", "triggers"))
HEADERS = {
    "vme.h": "#ifndef VME_H\n#define VME_H\n#define VME_API\nVME_API int vmh_one(void);\n#endif\n",
    "vme_search.h": '#include "vme.h"\n',
    "vme_foreign.h": '#include "vme.h"\n',
    "vme_operators.h": "",
}
WITH_A_WARNING = "int vmh_answer(void);\nint vmh_answer(void) { int unused; return 42; }\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A checkout whose folders hold one C file each, built once. The engine has one function: to read all headers for
    the binding and to compile it takes longer than the rest of a build."""
    checkout = tmp_path_factory.mktemp("a checkout")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "tools").mkdir()
    tool = (ROOT / "tools" / "native_build.py").read_text()
    assert "-O2" in tool and "-O3" in tool
    tool = tool.replace("-O2", "-O0").replace("-O3", "-O0")  # nothing here runs what it makes
    (checkout / "tools" / "native_build.py").write_text(tool)
    (checkout / "engine" / "include").mkdir(parents=True)
    for name, text in HEADERS.items():
        (checkout / "engine" / "include" / name).write_text(text)
    shutil.copytree(ROOT / "engine" / "src" / "vendor", checkout / "engine" / "src" / "vendor")
    for name in ("__init__.py", "declarations.py"):
        shutil.copy(ROOT / "engine" / name, checkout / "engine")
    for folder in ("vmhost/isolation", *PIPELINE, "engine/src", "engine/arrays"):
        (checkout / folder).mkdir(parents=True, exist_ok=True)
        (checkout / folder / "one.c").write_text("int vmh_one(void);\nint vmh_one(void) { return 1; }\n")
    (checkout / "vmhost" / "engine").symlink_to("../engine")
    (checkout / "vmhost" / "stdlib").mkdir()
    shutil.copy(ROOT / "vmhost" / "stdlib" / "policy.py", checkout / "vmhost" / "stdlib")
    shutil.copy(ROOT / "vmhost" / "supported.py", checkout / "vmhost")
    for folder in ("vmhost", "vmhost/isolation", "vmhost/pipeline", *PIPELINE):
        (checkout / folder / "__init__.py").touch()
    status, output, compiled = build(checkout, VMHOST_WERROR="")
    assert status == 0, output
    assert len(compiled) == 8
    return checkout


def build(checkout, **environment):
    """Builds in place: (exit status, what it said, names of the C files that were compiled)."""
    before = objects(checkout)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=checkout,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    after = objects(checkout)
    return done.returncode, done.stdout, {name for name in after if after[name] != before.get(name)}


def objects(checkout):
    return {
        path.relative_to(checkout / "build").as_posix().partition("/")[2]: path.stat().st_mtime_ns
        for path in (checkout / "build").rglob("*.o")
    }


def test_a_warning_is_an_error_only_where_that_is_asked_for_and_object_files_are_shared(built):
    assert build(built, VMHOST_WERROR="") == (0, "", set()), "nothing changed"
    source = built / "vmhost" / "isolation" / "one.c"
    source.write_text(WITH_A_WARNING)
    status, output, compiled = build(built, VMHOST_WERROR="")
    assert (status, compiled) == (0, {"vmhost/isolation/one.o"}) and "unused" in output
    status, output, _ = build(built, VMHOST_WERROR="1")
    assert status != 0 and "Werror" in output, "what had compiled with a warning is not taken"
    source.write_text(WITH_A_WARNING.replace("int unused; ", ""))
    status, output, compiled = build(built, VMHOST_WERROR="1")
    assert (status, len(compiled)) == (0, 8), output
    assert build(built, VMHOST_WERROR="1") == (0, "", set())
    assert build(built, VMHOST_WERROR="") == (0, "", set()), "what compiles without a warning serves any build"


def test_progress_is_told_to_who_asks(built):
    (built / "vmhost" / "isolation" / "one.c").touch()
    _, output, _ = build(built, VMHOST_PROGRESS="1")
    counts = re.findall(r"^set-up:   (\d+) of (\d+) C files$", output, re.MULTILINE)
    assert len(counts) == 4 and counts[-1][0] == counts[-1][1] and {of for _, of in counts} == {counts[-1][1]}, output
    (built / "vmhost" / "isolation" / "one.c").touch()
    assert build(built, VMHOST_PROGRESS="")[1] == ""


def test_only_who_asks_gets_symbols_for_debuggers(built):
    """Debug symbols were four fifths of the installed size. Their sections of an ELF file have these names."""
    library = built / "engine" / "libvme.so"
    for asked, there in (("1", True), ("", False)):
        status, output, compiled = build(built, VMHOST_SYMBOLS=asked, VMHOST_WERROR="")
        assert (status, compiled) == (0, set()), output
        assert [word in library.read_bytes() for word in (b"\0.symtab\0", b"\0.debug_info\0")] == [there, there]
        assert b"vmh_one" not in library.read_bytes() or there
