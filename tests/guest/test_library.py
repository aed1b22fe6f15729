"""The standard library in a process without a compiler: the same results as in CPython."""

import ast
import datetime
import importlib.util
import os
import re
import shutil
import sysconfig
from pathlib import Path

import pytest

from vmhost.bytecode import offered as offers
from vmhost.stdlib import patches
from vmhost.stdlib.patches.__main__ import main as patches_command
from vmhost.stdlib.system_texts import system_texts

LIBRARY = Path(__file__).parent / "programs" / "library.py"
OVERLAYS = Path(patches.__file__).parents[1] / "overlays"


def offered():
    """The Python modules of the standard library that VMs have."""
    return sorted(name for name in offers.offered_modules() - offers.NATIVE_MODULES if not name.startswith("vmhost"))


def test_the_library_does_what_it_does_in_cpython(programs):
    plain = programs.plain(LIBRARY).splitlines()
    assert len(plain) > 200
    assert programs.sealed(LIBRARY).splitlines() == plain


def test_with_its_texts_compiled_beforehand_too(programs):
    texts = [*programs.texts(LIBRARY), *system_texts(["urllib.parse", "functools"])]
    assert programs.sealed(LIBRARY, texts).splitlines() == programs.plain(LIBRARY).splitlines()


IMPORTS = """
import sys, warnings
warnings.simplefilter("ignore")
out, sys.stdout = sys.stdout, sys.stderr
for name in {names!r}:
    try:
        __import__(name)
        print(name, file=out)
    except ImportError as error:
        print(name, "ImportError", error.name, file=out)
"""


def test_every_module_of_a_vm_can_be_imported_without_a_compiler(programs):
    program = IMPORTS.format(names=offered())
    plain = programs.plain(program)
    assert sum("ImportError" not in line for line in plain.splitlines()) > 300
    assert programs.sealed(program) == plain


def test_no_import_makes_code_when_the_texts_of_the_system_are_there(programs):
    program = IMPORTS.format(names=offered()) + "import vmhost.guest.texts as texts\nprint(texts.counts, file=out)\n"
    texts = system_texts(offered())
    counts = programs.sealed(program, texts).splitlines()[-1]
    assert "'assembled': 0, 'evaluated': 0" in counts and "'precompiled': 0" not in counts, counts


@pytest.mark.parametrize("name", patches.patch_names())
def test_a_patch_says_why_it_is_there_and_changes_the_module_that_it_is_called_by(name):
    patch = patches.Patch(name)
    module = name.rpartition("/")[2].removesuffix(".patch")
    path = Path(os.__file__).parent / patch.target
    assert patch.reason.endswith(".") and importlib.util.find_spec(module).origin in (str(path), "frozen")
    source = path.read_text(encoding="utf-8")
    for sets in (["required"], patches.SETS):
        compile(patches.patch(module, source, sets), module, "exec")
    assert patches.patch(module, source) != source


def test_a_source_that_differs_is_refused_with_the_hunk_that_does_not_apply():
    with pytest.raises(
        patches.PatchError,
        match=r"^collections of Python 3(?s:.*)/required/collections.patch: @@ -\d+,3 \+\d+,4 @@ def namedtuple.* does "
        r"not apply: collections/__init__.py must hold .* 0 times:\n(?s:.*)\n    __new__ = eval\(code, namespace\)\n",
    ):
        patches.patch("collections", "def namedtuple(): pass\n")
    [name] = [name for name in patches.patch_names() if name.endswith("/collections.patch")]
    [hunk] = patches.Patch(name).hunks
    with pytest.raises(patches.PatchError, match="holds them 2 times"):
        patches.patch("collections", "\n".join(hunk.before * 2))
    assert patches.patch("collections", "\n".join(hunk.before)) == "\n".join(hunk.after)
    with pytest.raises(patches.PatchError, match="holds them 0 times"):  # lines, not pieces of lines
        patches.patch("collections", "x" + "\n".join(hunk.before))


DIFF = "Why.\n\n--- a/module.py\n+++ b/module.py\n@@ -3,3 +3,2 @@ def f():\n one\n\n-two\n"


def test_a_patch_is_a_unified_diff_of_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(patches, "FOLDER", str(tmp_path))

    def patch(text):
        (tmp_path / "x.patch").write_text(text)
        return patches.Patch("x.patch")

    assert (patch(DIFF).reason, patch(DIFF).target) == ("Why.", "module.py")
    assert patch(DIFF).apply("zero\none\n\ntwo\n") == ("zero\none\n\n", [])
    for text, error in {
        DIFF + " three\n": "the number of lines does not match @@",
        DIFF + "--- a/other.py\n+++ b/other.py\n": "the number of lines does not match @@",
        DIFF + "three\n": "not a line of a unified diff: 'three",
        "Why.\n": "a unified diff of one file is expected",
        DIFF.replace("+++ b/", "+++ "): "not a line of a unified diff",
    }.items():
        with pytest.raises(patches.PatchError, match=error):
            patch(text)


def test_all_hunks_that_do_not_apply_to_a_library_are_listed(tmp_path, capsys):
    for name in patches.patch_names():
        target = patches.Patch(name).target
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sysconfig.get_path("stdlib"), target), tmp_path / target)
    command = ["--check", str(tmp_path)]
    assert patches_command(command) == 0
    assert capsys.readouterr().out.startswith(f"all {len(patches.patch_names())} patches for Python ")

    (tmp_path / "gettext.py").unlink()
    source = (tmp_path / "traceback.py").read_text()
    (tmp_path / "traceback.py").write_text(
        source.replace("import tokenize", "import tokenise").replace("codeop", "code")
    )
    assert patches_command(command) == 1
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("vmhost/stdlib/patches/")]
    assert [re.search(r"/(\w+/\w+\.patch): (there is no|@@.* does not apply)", line).group(1) for line in listed] == [
        "required/gettext.patch",
        "required/traceback.patch",
        "startup/traceback.patch",
    ]
    assert patches_command([*command, "--version", "2.7"]) == 1
    assert "no patches for Python 2.7" in capsys.readouterr().out


def test_other_sources_are_left_as_they_are():
    assert patches.patch("json.tool", "x = 1\n") == "x = 1\n"


# Functions of a VM's standard library that still compile when they are called, and why they may stay.
STAYS = {
    ("dis", "compile"): "dis.dis takes functions; a text needs the compiler, and is refused",
    ("importlib._bootstrap", "exec"): "runs code that the importer gives it",
    ("importlib._bootstrap_external", "compile"): "imports source files; a VM has none",
    ("importlib.abc", "compile"): "imports source files; a VM has none",
    ("optparse", "exec"): "runs a file that its caller names",
    ("timeit", "compile"): "measures a text, and needs the compiler for it",
    ("timeit", "exec"): "measures a text, and needs the compiler for it",
    ("zipimport", "compile"): "imports source files; a VM has none",
    ("zipimport", "exec"): "runs code that the importer gives it",
}


@pytest.mark.parametrize("sets", [["required"], patches.SETS], ids=["required", "all"])
def test_nothing_else_in_the_library_compiles(sets):
    found = set()
    for name, (path, _) in offers.library_sources().items():
        overlay = OVERLAYS / f"{name}.py"
        source = overlay.read_text() if overlay.exists() else patches.patch(name, path.read_text("utf-8"), sets)
        if not re.search(r"\b(exec|eval|compile|CodeType) *\(|\bco_", source):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval", "compile", "CodeType"):
                found.add((name, node.func.id))
            if isinstance(node.func, ast.Attribute) and (
                node.func.attr == "CodeType" or any((word.arg or "").startswith("co_") for word in node.keywords)
            ):
                found.add((name, node.func.attr))
    assert found == set(STAYS)


def test_system_texts_are_the_same_each_time():
    modules = ["functools", "urllib.parse", "dis", "statistics"]
    texts = system_texts(modules)
    assert texts == system_texts(modules[::-1])
    assert (
        "eval",
        "lambda _cls, hits, misses, maxsize, currsize: _tuple_new(_cls, (hits, misses, maxsize, currsize))",
    ) in texts
    assert sum("def func(n)" in text for _, text in texts) >= 20


def test_a_module_that_cannot_be_imported_is_passed_over():
    assert system_texts(["no_such_module"]) == system_texts([])


TLS = """
import asyncio, ssl, sys

async def main(certificate):
    async def echo(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    client_side = ssl.create_default_context(cafile=certificate)
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_side) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname="localhost")
        writer.write(b"over TLS\\n")
        print(await reader.readline(), writer.get_extra_info("cipher") is not None)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await writer.start_tls(client_side, server_hostname="localhost")
        writer.write(b"started later\\n")
        print(await reader.readline())
        writer.close()

asyncio.run(main({certificate!r}))
"""


def certificate_in(folder):
    """The path of a key and its own certificate for localhost."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return str(path)


def test_tls_works_although_asyncio_loads_it_late(programs, tmp_path):
    program = TLS.replace("{certificate!r}", repr(certificate_in(tmp_path)))
    assert programs.sealed(program) == programs.plain(program) == "b'over TLS\\n' True\nb'started later\\n'\n"


LIGHT = """
import sys
import functools, re, json, typing, logging, dataclasses, collections, enum
@dataclasses.dataclass
class Item:
    key: int
    values: list = dataclasses.field(default_factory=list)
assert Item.__doc__ == "Item(key: int, values: list = <factory>)"
print(sorted({"ast", "_ast", "dis", "inspect", "tokenize", "ssl", "asyncio"} & set(sys.modules)))
import asyncio
print(sorted({"ast", "_ast", "dis", "inspect", "ssl", "_ssl"} & set(sys.modules)))
"""


def test_common_imports_leave_the_heavy_modules_out(programs):
    assert programs.sealed(LIGHT, programs.texts(LIGHT)) == "[]\n[]\n"


JSON = r"""
import sys
import json
import json.decoder
print(json.loads(' \r\n[1, "a", {"b": [1.5, null]}]\t '), json.dumps({"a": "\u00e9"}))
for wrong in ("", "  ", "[1] x", "[1]\t ]", "\u00a0[1]", "[1]\u00a0"):
    try:
        json.loads(wrong)
    except json.JSONDecodeError as error:
        print(error.msg, error.pos)
try:
    json.JSONDecoder().decode(b"[1]")
except TypeError:
    print("text only")
if "vmhost.guest" in sys.modules:
    assert not {"re", "enum"} & set(sys.modules)
print(json.decoder.WHITESPACE.match("  x").end(),
      json.decoder.JSONDecoder().decode(" 1 ", json.decoder.WHITESPACE.match))
print(json.decoder.py_scanstring(r'a\u0041b"', 0), json.encoder.py_encode_basestring_ascii("\u00e9\n"))
"""


def test_json_reads_and_writes_without_regular_expressions(programs):
    assert programs.sealed(JSON, programs.texts(JSON)) == programs.plain(JSON)
