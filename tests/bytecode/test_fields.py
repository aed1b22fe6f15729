"""A task's fields are defined once: only values that readers accept are written."""

from dataclasses import replace

import msgpack
import pytest

import vmhost
from tests.batches import each
from vmhost.bytecode.archive import read_archive, write_archive
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import BundleError, TaskSpecError
from vmhost.bytecode.format import Manifest, Module, bundle_in_memory, read_bundle, write_bundle

MANIFEST = Manifest(name="sample", version="1.0.0", entry="main:run")


# Value of a manifest's field -> what a reader and a writer say. None: it is right.
EDGES = [
    ("limits", {"memory_bytes": 2**63}, "limits.memory_bytes: expected 4 MiB to 256 TiB, got 9223372036854775808"),
    ("limits", {"memory_bytes": 2**64 - 1}, "limits.memory_bytes: expected 4 MiB to 256 TiB"),
    ("limits", {"memory_bytes": (1 << 48) + 1}, "limits.memory_bytes: expected"),
    ("limits", {"memory_bytes": 1 << 48}, None),
    ("limits", {"memory_bytes": (4 << 20) - 1}, "limits.memory_bytes: expected"),
    ("limits", {"memory_bytes": 4 << 20}, None),
    ("limits", {"stack_bytes": 2**63}, "limits.stack_bytes: expected 96 KiB to 256 MiB"),
    ("limits", {"stack_bytes": 256 << 20}, None),
    ("limits", {"stack_bytes": 1}, "limits.stack_bytes: expected 96 KiB to 256 MiB"),
    ("limits", {"stack_bytes": 1e6}, "limits.stack_bytes: expected int"),
    ("limits", {"wall_time_s": 1e9}, "limits.wall_time_s: expected a time above 0"),
    ("limits", {"wall_time_s": 999_999_999}, None),
    ("limits", {"cpu_time_s": float("inf")}, "limits.cpu_time_s: expected a time above 0"),
    ("limits", {"cpu_time_s": 0}, "limits.cpu_time_s: expected"),
    ("limits", {"concurrency": 1025}, "limits.concurrency: expected a whole number from 1 to 1024"),
    ("limits", {"concurrency": 1024}, None),
    ("limits", {"memory": 64 << 20}, "limits.memory: expected one of memory_bytes"),
    ("name", "", "name: expected a name"),
    ("name", "a" * 65, "name: expected a name"),
    ("name", "a" * 64, None),
    ("name", "a\n", "name: expected a name"),
    ("name", "a\0b", "name: expected a name"),
    ("name", "../a", "name: expected a name"),
    ("name", "A", "name: expected a name"),
    ("version", "1\n", "version: expected a version"),
    ("version", "", "version: expected"),
    ("version", "1" * 65, "version: expected"),
    ("version", "1.0\0", "version: expected a version"),
    ("version", "1.0-rc1", None),
    ("entry", "main:run\n", "entry: expected `module:function`"),
    ("entry", "main:run\0", "entry: expected"),
    ("entry", "m" * 255 + ":run", "entry: expected"),
    ("entry", ":run", "entry: expected"),
    ("entry", "main:", "entry: expected"),
    ("entry", "../main:run", "entry: expected"),
    (
        "permissions",
        {"read": ("data",)},
        r"permissions.read[0]: expected an absolute path, such as /var/data/**, got 'data'",
    ),
    ("permissions", {"read": ("/a", "/b\0c")}, "permissions.read[1]: expected an absolute path"),
    ("permissions", {"write": ("",)}, "permissions.write[0]"),
    ("permissions", {"write": ("/a/*/b",)}, "permissions.write[0]: expected an absolute path"),
    ("permissions", {"read": ("/a/**", "/b")}, None),
    ("permissions", {"read": ("/" + "a" * 5000,)}, "permissions.read[0]: expected"),
    ("permissions", {"read": ("/a", "/a")}, "permissions.read: expected each"),
    ("permissions", {"net": ("example.org",)}, "permissions.net[0]: expected an address"),
    ("permissions", {"net": ("example.org:65536",)}, "permissions.net[0]: expected an address"),
    ("permissions", {"listen": ("[::1]:99999",)}, "permissions.listen[0]: expected an address"),
    ("permissions", {"net": ("a\0b:1",)}, "permissions.net[0]"),
    ("permissions", {"net": ("[::1]:443", "*:*")}, None),
    ("permissions", {"env": ("A=B",)}, "permissions.env[0]: expected the name of an environment"),
    ("permissions", {"env": ("A\0",)}, "permissions.env[0]"),
    ("permissions", {"host": ("a b",)}, "permissions.host[0]: expected the name of a host function"),
    (
        "permissions",
        {"host": tuple(f"f{number}" for number in range(1025))},
        "permissions.host: expected at most 1024 items, got 1025",
    ),
    ("models", ("a/b",), "models[0]: expected the name of a model"),
    ("models", ("../a",), "models[0]"),
    ("models", ("a\0",), "models[0]"),
    ("optimize", 3, "optimize: expected a whole number from 0 to 2, got 3"),
    ("optimize", -1, "optimize: expected"),
    ("optimize", 2, None),
    ("priority", 101, "priority: expected a whole number from -100 to 100"),
    ("priority", -(2**63), "priority: expected"),
    ("priority", -100, None),
    ("priority", True, "priority: expected int"),
    ("fresh", 1, "fresh: expected bool"),
    ("architecture", "x86\0", "architecture: expected"),
    ("architecture", "a" * 65, "architecture: expected"),
    ("target", "3.14\n", "python.target: expected"),
    ("target", "3." + "1" * 1000, "python.target"),
    ("magic", b"\0", "python.magic: expected 4 bytes"),
    ("exact_python", "3.14\0", "python.exact: expected"),
]


@each(("name", "value", "message"), EDGES)
def test_a_reader_and_a_writer_take_the_same_values(name, value, message):
    manifest = replace(MANIFEST, **{name: value})
    code = {"main": Module(False, b"")}
    if message is None:
        models = dict.fromkeys(manifest.models, b"")
        assert getattr(
            read_bundle(write_bundle(manifest, code, models=models), allow_unsigned=True).manifest, name
        ) == getattr(manifest, name)
        return
    for write in (write_bundle, bundle_in_memory):
        with pytest.raises(BundleError) as caught:
            write(manifest, code)
        assert message in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(BundleError) as caught:
        read_bundle(_forged(manifest, code), allow_unsigned=True)
    assert message in str(caught.value) and len(str(caught.value)) < 400


def _forged(manifest, code):
    """The bytes of a bundle with this manifest, written without a check."""
    from vmhost.bytecode import format as bundle_format

    entries = read_archive(write_bundle(MANIFEST, code), "x")
    files = msgpack.unpackb(bytes(entries["manifest.msgpack"]))["files"]
    return write_archive(
        {**entries, "manifest.msgpack": msgpack.packb({**bundle_format._fields_of(manifest), "files": files})}
    )


@pytest.mark.parametrize("write", [write_bundle, bundle_in_memory])
def test_what_utf8_cannot_say_is_not_written(write):
    with pytest.raises(BundleError, match=r"permissions\.read\[0\]: expected an absolute path"):
        write(replace(MANIFEST, permissions={"read": ("/x\ud800",)}), {"main": Module(False, b"")})


def test_a_bundle_in_memory_is_held_to_the_same_before_it_is_loaded():
    bundle = bundle_in_memory(MANIFEST, {"main": Module(False, b"")})
    wrong = replace(bundle, manifest=replace(MANIFEST, limits={"memory_bytes": 2**63}))
    with (
        vmhost.Host(allow_unsigned=True) as host,
        pytest.raises(vmhost.BundleError, match="limits.memory_bytes: expected 4 MiB to 256 TiB"),
    ):
        host.load(wrong)


def test_unknown_permissions_and_large_manifests_are_refused():
    with pytest.raises(BundleError, match="permissions: expected read, .*got 'root'"):
        replace(MANIFEST, permissions={"root": ("/",)})
    entries = read_archive(write_bundle(MANIFEST, {"main": Module(False, b"")}), "x")
    for name in ("manifest.msgpack", "signature"):
        with pytest.raises(BundleError, match=f"{name}: expected at most 16,777,216 bytes, got 16,777,217"):
            read_bundle(write_archive({**entries, name: bytes((16 << 20) + 1)}), allow_unsigned=True)


HUGE = "0x" + "f" * 5000


@pytest.mark.parametrize(
    "line",
    [
        f"limits: {{memory: {HUGE}}}",
        f'limits: {{memory: "{"9" * 400} MiB"}}',
        f"limits: {{wall_time: {'9' * 400}}}",
        "limits: {wall_time: .nan}",
        "limits: {concurrency: 2.0}",
        "priority: 1.0",
        "limits: {memory: 67108864.0}",
        'permissions: {read: ["/x\\ud800"]}',
        'permissions: {env: ["A\\n"]}',
        'limits: {wall_time: "5 s\\n"}',
        f"priority: {HUGE}",
        f"fresh: {HUGE}",
        'files: ["\\ud800"]',
        f"permissions: {{host: [{'a.' * 3000}b]}}",
    ],
)
def test_task_yaml_says_what_is_wrong_with_a_value_of_any_size(write_task, line):
    folder = write_task(spec='name: sample\nversion: 1.2.0\nentry: main:run\npython: "3.14"\n' + line + "\n")
    with pytest.raises(TaskSpecError) as caught:
        compile_task(folder)
    (problem,) = caught.value.problems
    assert f"task.yaml:5: {line.partition(':')[0]}" in problem and len(problem) < 500
