"""A device image: it runs the same tasks as the full host, holds no compiler, and names its damage."""

import _tokenize
import errno
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from compression import zstd
from pathlib import Path

import pytest

import vmhost
from tests import networks
from tests.hosts import ROOT
from tests.tasks import test_numerical_scripts as numerical
from vmhost.bytecode import signing
from vmhost.cli import failures, main
from vmhost.compiler import compile_folder
from vmhost.image import absent_modules, folder, link
from vmhost.lines import json_values

sys.path.insert(0, str(ROOT / "tasks"))
import cases  # noqa: E402

sys.path.remove(str(ROOT / "tasks"))

COMPILER = (
    "_PyPegen_",
    "_PyParser_AST",
    "_PyTokenizer_From",
    "_PyTokenizer_Get",
    "_PyAST_Compile",
    "_PySymtable_Build",
    "_PyCodegen_",
    "_PyCfg_",
    "_PyAssemble_",
    "PyInit__ast",
    "PyInit__symtable",
    "PyInit__tokenize",
)


@pytest.mark.parametrize("name", ["digits", "forest", "neighbours", "strokes", *numerical.SCRIPTS])
def test_shipped_tasks_give_the_answers_of_the_full_host(vmrun, engine_image, tmp_path, name):
    bundle, asked = tmp_path / f"{name}.vmb", tmp_path / "input.json"
    bundle.write_bytes(compile_folder(ROOT / "tasks" / name).to_bytes())
    given = json_values.to_plain(
        numerical.value(name) if name in numerical.SCRIPTS else next(iter(cases.cases(name)))[0]
    )
    asked.write_text(json.dumps(given))
    with vmhost.Host(allow_unsigned=True) as host:
        expected = host.load(bundle)(json_values.from_plain(given))
    done = vmrun("run", bundle, "--allow-unsigned", "--input", asked, folder=engine_image)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json_values.to_plain(expected)


def test_a_task_that_needs_the_engine_is_told_how_to_get_it(vmrun, task, tmp_path):
    bundle = task("import vmhost.engine.numpy as np\ndef run(value):\n    return float(np.sum(np.arange(value)))\n")
    done = vmrun("run", bundle, "--allow-unsigned", "--input", "4")
    assert done.returncode == failures.TASK_FAILED and "--with-engine" in done.stderr
    out = tmp_path / "with"
    assert main(["image", str(out), "--bundle", str(bundle)]) == 0
    assert "engine yes\n" in (out / "manifest").read_text()
    assert vmrun("run", bundle, "--allow-unsigned", "--input", "4", folder=out).stdout == "6.0\n"


MODEL = """
from vmhost import engine
import vmhost.engine.numpy as np

def run(value):
    return {name: found.tolist()
            for name, found in engine.load("net")({"input": np.full((1, 3, 32, 32), value, np.float32)}).items()}
"""


def test_a_bundle_with_a_model_gives_the_answer_of_the_full_host(vmrun, engine_image, tmp_path):
    folder, bundle = tmp_path / "task", tmp_path / "vision.vmb"
    folder.mkdir()
    (folder / "main.py").write_text(MODEL)
    (folder / "net.onnx").write_bytes(networks.small())
    (folder / "task.yaml").write_text(
        'name: vision\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    compiled = compile_folder(folder)
    bundle.write_bytes(compiled.to_bytes())
    with vmhost.Host(allow_unsigned=True) as host:
        expected = host.load(bundle)(0.25)
    done = vmrun("run", bundle, "--allow-unsigned", "--input", "0.25", folder=engine_image)
    assert (done.returncode, done.stderr) == (0, "")
    # each measured which algorithms are fastest here, and algorithms round differently
    assert json.loads(done.stdout)["output"] == [pytest.approx(expected["output"][0], rel=0, abs=1e-5)]
    refused = vmrun("run", bundle, "--allow-unsigned", "--input", "0.25")
    assert (
        refused.returncode == failures.REFUSED and "model net" in refused.stderr and "--with-engine" in refused.stderr
    )


@pytest.mark.parametrize("kind", ["image", "sqlite_image"])
def test_no_member_of_the_compiler_is_linked_in(kind, tools, request):
    image = request.getfixturevalue(kind)
    stripped = (image / "vmrun").read_bytes()
    linked = next(
        path.with_name("vmrun") for path in link.OBJECTS.glob("*/*/stripped") if path.read_bytes() == stripped
    )  # with its names
    names = subprocess.run(
        [tools.nm, "--defined-only", linked], capture_output=True, text=True, check=True
    ).stdout.split()
    refusing = {"_PyParser_ASTFromString", "_PyParser_ASTFromFile", "_PyAST_Compile"}  # absent.c
    assert [name for name in names if name.startswith(COMPILER) and name not in refusing] == []
    assert "_PyEval_EvalFrameDefault" in names, "this is no Python at all"
    for words in (
        b"invalid syntax",
        b"unterminated string literal",
        b"'return' outside function",
        b"too many statically nested blocks",
    ):
        assert words not in stripped


def test_nothing_compiles_in_the_main_interpreter_and_no_source_is_there(vmrun, image):
    done = vmrun("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no compiler: as it should be")
    assert sorted(path.name for path in image.rglob("*")) == ["host.vmb", "manifest", "stdlib.vmb", "vmrun"]


PROMISED = """
import asyncio, collections, concurrent.futures, contextlib, csv, dataclasses, datetime, decimal, enum, functools
import hashlib, heapq, json, logging, random, re, statistics, typing, urllib.parse, zlib
import ast

@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.5

Pair = collections.namedtuple("Pair", "left right")

def run(value):
    async def later():
        await asyncio.sleep(0)
        return "awaited"
    hashes = {name: getattr(hashlib, name)(b"abc").hexdigest() for name in
              ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_224", "sha3_256", "sha3_384", "sha3_512",
               "blake2b", "blake2s")}
    hashes["shake"] = hashlib.shake_128(b"abc").hexdigest(40) + hashlib.shake_256(b"").hexdigest(7)
    hashes["keyed"] = hashlib.blake2b(b"abc" * 99, key=b"key", salt=b"salt", person=b"person", digest_size=20, fanout=3,
                                      depth=2, leaf_size=9, node_offset=5, node_depth=1, inner_size=8,
                                      last_node=True).hexdigest()
    hashes["small"] = hashlib.blake2s(b"abc" * 99, key=b"key", salt=b"salt", person=b"person", digest_size=20, fanout=3,
                                      depth=2, leaf_size=9, node_offset=5, node_depth=1, inner_size=8).hexdigest()
    running = hashlib.sha256(b"a")
    before = running.hexdigest()
    running.update(b"b" * 200)
    return {"point": repr(Point(1)), "pair": repr(Pair(1, right=2)), "async": asyncio.run(later()), "hashes": hashes,
            "running": [before, running.hexdigest()], "decimal": str(decimal.Decimal("1.1") / 3),
            "date": datetime.date(2026, 11, 21).isoformat(), "random": random.Random(7).random(),
            "literal": ast.literal_eval("{'a': [1, -2.5, (None, b'x')]}")["a"][1],
            "node": repr(ast.Name("x").ctx.__class__.__name__), "re": re.sub(r"(a+)b", r"<\\\\1>", "aab"),
            "url": urllib.parse.quote("a b"), "mean": statistics.mean([1, 2, 4]),
            "typed": typing.get_type_hints(Point)["y"].__name__, "crc": zlib.crc32(b"abc"), "sum": value}
"""


def test_the_library_works_as_on_the_full_host(vmrun, task):
    bundle = task(PROMISED)
    with vmhost.Host(allow_unsigned=True) as host:
        expected = host.load(bundle)([1, 2])
    done = vmrun("run", bundle, "--allow-unsigned", "--input", "[1, 2]")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    "text", ["(a, /, b=1.5, *c, d='x', $e=<f>) -> int", "($self, x=1e-5, y=0x1f, z=.5)", r'(a="q\"r", b=...)']
)
def test_words_of_one_line_are_told_apart_as_by_cpython(text):
    names = {}
    exec(absent_modules._TOKENIZE.decode(), names)

    def lines():
        yield text
        while True:
            yield ""

    mine, cpythons = (
        list(kind(lines().__next__, extra_tokens=True)) for kind in (names["TokenizerIter"], _tokenize.TokenizerIter)
    )
    assert mine == cpythons
    with pytest.raises(RuntimeError, match="no tokenizer"):
        names["TokenizerIter"](iter(["a\n", "b\n"]).__next__)


def test_limits_hold(vmrun, task):
    done = vmrun("run", task("def run(value):\n    while True: pass\n"), "--allow-unsigned", "--timeout", "0.2")
    assert done.returncode == failures.LIMIT
    assert "did not end within its time" in done.stderr


def test_signatures_are_checked(vmrun, task, tmp_path):
    key, other = signing.generate_key(), signing.generate_key()
    for name, signing_key in (("signer", key), ("other", other)):
        (tmp_path / f"{name}.pub").write_text(signing.format_public_key(name, signing_key.public))
    bundle = task("def run(value):\n    return 'signed'\n", key=key)
    assert vmrun("run", bundle, "--trust", tmp_path / "signer.pub").stdout == '"signed"\n'
    refused = vmrun("run", bundle, "--trust", tmp_path / "other.pub")
    assert refused.returncode == failures.REFUSED and "which this host does not trust" in refused.stderr
    data = bytearray(bundle.read_bytes())
    at = data.index(key.public) + 40  # in the signature itself
    data[at] ^= 1
    (tmp_path / "forged.vmb").write_bytes(data)
    forged = vmrun("run", tmp_path / "forged.vmb", "--trust", tmp_path / "signer.pub")
    assert forged.returncode == failures.REFUSED
    unsigned = vmrun("run", task("def run(value): pass\n", "unsigned"))
    assert unsigned.returncode == failures.REFUSED and "not signed" in unsigned.stderr


def test_a_module_that_was_cut_away_is_named_with_the_command_that_adds_it(vmrun, task):
    bundle = task("def run(value):\n    import colorsys\n")
    done = vmrun("run", bundle, "--allow-unsigned")
    assert done.returncode == failures.TASK_FAILED
    assert "colorsys is not in this image" in done.stderr and "--module colorsys" in done.stderr


def test_a_module_that_no_image_has_is_named_when_the_image_is_made_and_when_it_is_imported(
    vmrun, task, tmp_path, capsys
):
    bundle = task("""
def run(value):
    try:
        import lzma
    except ImportError:
        if value:
            raise
    return "without"
""")
    out = tmp_path / "out"
    assert main(["image", str(out), "--bundle", str(bundle)]) == 0
    warned = capsys.readouterr().err
    assert str(bundle) in warned and "_lzma" in warned and "ModuleNotFoundError" in warned
    assert vmrun("run", bundle, "--allow-unsigned", folder=out).stdout == '"without"\n'
    message = vmrun("run", bundle, "--allow-unsigned", "--input", "1", folder=out).stderr
    assert "no image has _lzma" in message and "full host" in message and "--module" not in message


def test_an_image_for_a_bundle_has_what_it_imports_and_not_more(image, task, tmp_path, vmrun, tools):
    bundle = task("import colorsys\ndef run(value):\n    return colorsys.rgb_to_hsv(1, 1, 1)[2]\n")
    out = tmp_path / "small"
    assert main(["image", str(out), "--bundle", str(bundle)]) == 0
    assert vmrun("run", bundle, "--allow-unsigned", folder=out).stdout == "1\n"
    other = task("def run(value):\n    import sched\n", "other")
    assert "sched is not in this image" in vmrun("run", other, "--allow-unsigned", folder=out).stderr
    for folder in (image, out):  # these images have no engine
        assert "engine no\n" in (folder / "manifest").read_text()


def test_the_same_inputs_give_the_same_bytes(image, tmp_path, monkeypatch):
    (tmp_path / "build").mkdir()
    for kept in ("objects", "notes"):  # what was compiled
        (tmp_path / "build" / kept).symlink_to(link.OBJECTS / kept)
    monkeypatch.setattr(link, "OBJECTS", tmp_path / "build")  # linked again, at another place
    assert main(["image", str(tmp_path / "again")]) == 0
    for path in image.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["host.vmb", "stdlib.vmb"])
def test_a_damaged_image_says_so(image, vmrun, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(image, copy)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    done = vmrun("check", folder=copy)
    assert done.returncode == failures.HOST_FAILED
    assert f"{name}: altered or damaged: expected SHA-256" in done.stderr
    (copy / name).write_bytes(data[:-1])
    assert f"expected {len(data)} bytes, got {len(data) - 1}" in vmrun("check", folder=copy).stderr
    (copy / name).unlink()
    missing = vmrun("check", folder=copy)
    assert (
        missing.returncode == failures.HOST_FAILED
        and "No such file" in missing.stderr
        and "vmhost image" in missing.stderr
    )


def test_an_altered_executable_is_found_by_check(image, vmrun, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(image, copy)
    with open(copy / "vmrun", "ab") as file:
        file.write(b"more")
    done = vmrun("check", folder=copy)
    assert done.returncode == failures.UNHEALTHY and "vmrun: altered or damaged" in done.stderr


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: data[:400] + b"\xff" + data[401:], lambda data: data + b"\n"]
)
def test_a_damaged_manifest_says_so(image, vmrun, tmp_path, damage):
    copy = tmp_path / "copy"
    shutil.copytree(image, copy)
    (copy / "manifest").write_bytes(damage((copy / "manifest").read_bytes()))
    done = vmrun("--version", folder=copy)
    assert (
        done.returncode == failures.HOST_FAILED
        and "manifest: altered or damaged" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_the_executable_is_not_laid_out_for_large_pages(image):
    """Mapped by pages of 2 MiB where the file system keeps it so, an idle host holds megabytes that it does not
    touch."""
    data = (image / "vmrun").read_bytes()
    at, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQ", data, at + size * number) for number in range(count)]
    loaded = [(offset, address) for kind, _, offset, address in segments if kind == 1]
    assert loaded and all((address - offset) % 2**21 for offset, address in loaded)


@pytest.mark.parametrize("line", ["python 3.14", "machine "])
def test_files_of_an_image_for_another_python_or_machine_are_refused(image, vmrun, tmp_path, line):
    copy = tmp_path / "copy"
    shutil.copytree(image, copy)
    manifest = (copy / "manifest").read_text()
    (copy / "manifest").write_text(manifest.replace(line, f"{line}other", 1))
    done = vmrun("run", "nothing.vmb", folder=copy)
    assert (
        done.returncode == failures.HOST_FAILED
        and "expected an image for Python" in done.stderr
        and "vmhost image" in done.stderr
    )
    (copy / "manifest").write_text("")
    assert "is empty" in vmrun("run", "nothing.vmb", folder=copy).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: vmrun"),
        (["frobnicate"], "no such command"),
        (["run"], "expected BUNDLE"),
        (["run", "nothing.vmb"], "nothing.vmb: no such bundle"),
        (["run", "nothing.vmb", "--input"], "--input: expected a value"),
        (["run", "nothing.vmb", "--input", "{"], "not JSON"),
        (["run", "nothing.vmb", "--color"], "--color: no such option"),
        (["run", "--help"], "usage: vmrun"),
    ],
)
def test_wrong_input_gets_one_clear_error(vmrun, arguments, message):
    done = vmrun(*arguments)
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_result_that_cannot_be_printed_and_an_input_that_cannot_be_read_get_one_clear_error(image, task):
    command = [image / "vmrun", "run", task("def run(value):\n    return '\\ud800'\n"), "--allow-unsigned"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        failures.HOST_FAILED,
        "vmrun: stdout: cannot be written: No space left on device\n",
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([image / "vmrun", "check"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        failures.HOST_FAILED,
        "vmrun: stdout: cannot be written: No space left on device\n",
    )
    done = subprocess.run(
        ["sh", "-c", '"$@" --input - <&-', "sh", *command], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (
        failures.WRONG_INPUT,
        "vmrun: -: cannot read the input: stdin is closed\n",
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, '"\\ud800"\n')


def test_a_full_disk_leaves_nothing_half_made(image, tmp_path, monkeypatch, capsys):
    written = Path.write_bytes

    def until_full(path, data):
        if path.name == "vmrun" and path.parent.parent == tmp_path:
            written(path, data[:1000])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, data)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    monkeypatch.setattr(
        folder, "_contents", lambda out, *_: (None, {path.name: path.read_bytes() for path in image.iterdir()})
    )  # which takes long
    assert main(["image", str(tmp_path / "out")]) == failures.REFUSED
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_image_is_not_replaced(tmp_path, capsys):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "letter.txt").write_text("dear")
    assert main(["image", str(tmp_path / "kept")]) == failures.REFUSED
    assert "is there already and is no image" in capsys.readouterr().err
    assert (tmp_path / "kept" / "letter.txt").read_text() == "dear"


def test_a_place_that_cannot_be_written_is_named(image, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["image", str(tmp_path / "file" / "out")]) == failures.REFUSED
    assert "file/out: cannot be written: " in capsys.readouterr().err


def test_the_size_page_tells_sizes_and_the_command(image, tmp_path, capsys, monkeypatch):
    page, levels = tmp_path / "size.md", set()
    compress = zstd.compress

    def compressed_fast(data, *, level):
        levels.add(level)
        return compress(data, level=1)

    monkeypatch.setattr(zstd, "compress", compressed_fast)
    assert main(["image", str(tmp_path / "out"), "--sizes", str(page)]) == 0
    assert levels == {19}
    assert "zstd -19" in capsys.readouterr().out
    text = page.read_text()
    assert f"| `vmrun` | {(image / 'vmrun').stat().st_size / 1e6:.2f} |" in text
    assert "Made by `vmhost image OUT --sizes docs/size.md`" in text
    tables = text.split("The same with ")
    assert [part.partition(":")[0] for part in tables[1:]] == ["`--with-engine`", "`--module sqlite3`"]
    assert (
        all("Native modules: " in part for part in tables)
        and "_sqlite3" in tables[2]
        and "`_sqlite3.so`" not in tables[0]
    )


def test_a_folder_is_served_until_ctrl_c_and_every_call_is_answered(image, task, tmp_path):
    served = tmp_path / "served"
    served.mkdir()
    shutil.copy(task("def run(value):\n    return value + 1\n", "adds"), served / "adds.vmb")
    shutil.copy(task("def run(value):\n    while True: pass\n", "spins"), served / "spins.vmb")
    (served / "wrong.vmb").write_bytes(b"no bundle")
    with subprocess.Popen(
        [image / "vmrun", "serve", served, "--allow-unsigned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={},
    ) as process:
        process.stdin.write('{"id": 1, "task": "adds", "input": 41}\n')
        assert json.loads(process.stdout.readline()) == {"id": 1, "result": 42}
        process.stdin.write('{"id": 2, "task": "spins"}\n{"id": 3, "task": "nobody"}\n')
        assert json.loads(process.stdout.readline())["error"]["message"] == "no task 'nobody'; loaded are: adds, spins"
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        output = "".join(itertools.takewhile(lambda line: "a second Ctrl-C" not in line, lines))
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=60)
        output += rest
    assert process.returncode == failures.INTERRUPTED
    assert json.loads(out)["id"] == 2 and json.loads(out)["error"]["type"] == "ClosedError"
    assert "wrong.vmb" in output and "Traceback" not in output


def test_what_is_no_folder_is_not_served(vmrun, tmp_path):
    done = vmrun("serve", tmp_path / "nowhere")
    assert (
        "expected a folder of bundles, got No such file" in done.stderr
        and "Traceback" not in done.stderr
        and done.returncode != failures.DONE
    )
