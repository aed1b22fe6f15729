"""Writing and reading bundles: round trip, trust, and every kind of bundle that must be refused."""

import hashlib
import marshal
import platform
import sys
import types

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batches import each
from vmhost.bytecode.archive import read_archive, write_archive
from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.format import (
    MAGIC,
    TARGET,
    FileRecord,
    Manifest,
    Module,
    bundle_in_memory,
    read_bundle,
    write_bundle,
)
from vmhost.bytecode.signing import TrustStore, generate_key

KEY = generate_key()
TRUST = TrustStore.of(ours=KEY.public)
MANIFEST = Manifest(
    name="sample",
    version="1.2.0",
    entry="main:run",
    limits={"memory_bytes": 64 << 20, "wall_time_s": 2.0},
    permissions={"net": ("example.org:443",)},
    models=("net",),
    priority=3,
    fresh=True,
)
MODELS = {"net": b"model"}


def code(text="def run(value): return value"):
    return marshal.dumps(compile(text, "sample@1.2.0/main.py", "exec"))


def parts():
    return (
        {"main": Module(False, code()), "pkg": Module(True, code("")), "pkg.inner": Module(False, code("x = 1"))},
        {"labels.json": b"[1, 2]", "data/table": b"\0" * 10},
        {hashlib.sha256(b"t").digest(): code("1")},
    )


def written(key=KEY, manifest=MANIFEST):
    return write_bundle(manifest, *parts(), key=key, models=MODELS)


def resigned(change, key=KEY):
    """A signed bundle whose manifest is `change` of the decoded one (the result may be anything)."""
    entries = read_archive(written(), "x")
    fields = msgpack.unpackb(entries["manifest.msgpack"])
    changed = change(fields)
    encoded = changed if isinstance(changed, bytes) else msgpack.packb(fields if changed is None else changed)
    entries["manifest.msgpack"] = encoded
    entries["signature"] = key.sign(encoded)
    return write_archive(entries)


def refused(data, message, **options):
    with pytest.raises(BundleError) as caught:
        read_bundle(data, **(options or {"trust": TRUST}))
    assert message in str(caught.value)


def test_round_trip_of_a_signed_bundle(tmp_path):
    path = tmp_path / "sample.vmb"
    path.write_bytes(written())
    bundle = read_bundle(path, TRUST)
    modules, files, texts = parts()
    assert (dict(bundle.modules), dict(bundle.files), dict(bundle.texts)) == (modules, files, texts)
    assert bundle.signed_by == "ours"
    assert bundle.where == str(path)
    manifest = bundle.manifest
    assert (manifest.name, manifest.version, manifest.entry, manifest.kind) == ("sample", "1.2.0", "main:run", "task")
    assert (manifest.target, manifest.magic, manifest.architecture) == (TARGET, MAGIC, "any")
    assert dict(manifest.limits) == {"memory_bytes": 64 << 20, "wall_time_s": 2.0}
    assert dict(manifest.permissions) == {
        "read": (),
        "write": (),
        "net": ("example.org:443",),
        "listen": (),
        "env": (),
        "host": (),
        "tables": (),
    }
    assert (manifest.models, manifest.priority, manifest.fresh) == (("net",), 3, True)
    assert bundle.models == MODELS
    assert manifest.files["files/labels.json"] == FileRecord(hashlib.sha256(b"[1, 2]").digest(), 6)
    assert bundle.digest == hashlib.sha256(read_archive(path.read_bytes(), "x")["manifest.msgpack"]).digest()


def test_same_inputs_same_bytes_and_memory_form_agrees():
    assert written() == written()
    in_memory, read = (
        bundle_in_memory(MANIFEST, *parts(), models=MODELS),
        read_bundle(written(key=None), allow_unsigned=True),
    )
    for name in ("manifest", "modules", "files", "texts", "models", "digest"):
        assert getattr(in_memory, name) == getattr(read, name), name


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}(\.[a-z]{1,5})?", fullmatch=True), st.tuples(st.booleans(), st.binary())
    ),
    st.dictionaries(
        st.from_regex(r"[a-zäß0-9 .-]{1,8}(/[a-z]{1,5})?", fullmatch=True).filter(
            lambda path: not set(path.split("/")) & {".", ".."}
        ),
        st.binary(),
    ),
    st.dictionaries(st.binary(min_size=32, max_size=32), st.binary()),
)
def test_any_content_makes_the_round_trip(modules, files, texts):
    modules = {name: Module(*module) for name, module in modules.items()} | {"main": Module(False, b"")}
    bundle = read_bundle(write_bundle(MANIFEST, modules, files, texts, KEY, MODELS), TRUST)
    assert (bundle.modules, bundle.files, bundle.texts) == (modules, files, texts)


def test_pyc_files_load_with_cpythons_own_importer(tmp_path):
    entries = read_archive(written(), "x")
    (tmp_path / "from_bundle.pyc").write_bytes(entries[f"code/{TARGET}/main.pyc"])
    sys.path.insert(0, str(tmp_path))
    try:
        import from_bundle

        assert from_bundle.run(7) == 7
        assert from_bundle.run.__code__.co_filename == "sample@1.2.0/main.py"
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("from_bundle", None)


def test_every_single_changed_byte_is_refused():
    data = written()
    for at in range(len(data)):
        with pytest.raises(BundleError):
            read_bundle(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :], TRUST)


def test_every_truncation_is_refused():
    data = written()
    for size in range(len(data)):
        with pytest.raises(BundleError):
            read_bundle(data[:size], TRUST)


def test_reading_never_unmarshals(monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("unmarshalled while reading")

    data = written()
    monkeypatch.setattr(marshal, "loads", forbidden)
    monkeypatch.setattr(marshal, "load", forbidden)
    read_bundle(data, TRUST)


def test_unsigned_needs_the_explicit_flag():
    data = written(key=None)
    refused(data, "not signed; compile it with --sign KEY")
    assert read_bundle(data, TRUST, allow_unsigned=True).signed_by is None
    assert read_bundle(data, allow_unsigned=True).signed_by is None


def test_keys_that_are_not_trusted():
    stranger = generate_key()
    data = written(key=stranger)
    refused(data, "does not trust (it trusts: ours)")
    refused(data, "this host has no trust store", trust=None)
    assert read_bundle(data, TRUST, allow_unsigned=True).signed_by is None
    assert read_bundle(written(), TRUST, allow_unsigned=True).signed_by == "ours"


def test_bad_signature_is_refused_even_where_unsigned_bundles_are_allowed():
    entries = read_archive(written(), "x")
    signature = bytes(entries["signature"])
    entries["signature"] = signature[:-1] + bytes([signature[-1] ^ 1])
    for options in ({"trust": TRUST}, {"allow_unsigned": True}):
        refused(write_archive(entries), "the signature does not belong to this manifest", **options)


def test_swapped_signature_files_and_code():
    ours = read_archive(written(), "x")
    other = read_archive(write_bundle(MANIFEST, {"main": Module(False, code("evil = 1"))}, key=KEY), "x")
    refused(write_archive({**ours, "signature": other["signature"]}), "the signature does not belong to this manifest")
    path = f"code/{TARGET}/main.pyc"
    refused(write_archive({**ours, path: other[path]}), f"{path}: altered: expected")
    same_size = bytes(len(ours["files/labels.json"]))
    refused(write_archive({**ours, "files/labels.json": same_size}), "files/labels.json: altered: expected SHA-256")


def test_added_and_missing_files():
    entries = read_archive(written(), "x")
    refused(write_archive({**entries, "files/extra": b""}), "files/extra: in the bundle but not in its manifest")
    entries.pop("files/labels.json")
    refused(write_archive(entries), "files/labels.json: in the manifest but not in the bundle")


def test_wrong_python_format_architecture_say_what_to_do():
    refused(
        resigned(lambda fields: fields["python"].update(target="3.15")),
        f"compiled for Python 3.15, this host runs {TARGET}; compile again with --target {TARGET}",
    )
    refused(resigned(lambda fields: fields["python"].update(magic=b"\0\0\r\n")), "bytecode magic 00000d0a")
    refused(
        resigned(lambda fields: fields["python"].update(exact="3.14.0")),
        f"made for exactly Python 3.14.0, this host runs {platform.python_version()}; build it again",
    )
    refused(resigned(lambda fields: fields.update(format_version=2)), "bundle format 2, this host reads format 1")
    refused(resigned(lambda fields: fields.update(format_version=True)), "bundle format True")
    refused(
        resigned(lambda fields: fields.update(architecture="pdp11")),
        f"compiled for pdp11, this host is {platform.machine()}; compile it again",
    )


@each(
    ("change", "message"),
    [
        (lambda fields: b"", "manifest.msgpack: not MessagePack"),
        (lambda fields: b"\xc1", "manifest.msgpack: not MessagePack"),
        (lambda fields: b"\x91" * 5000, "manifest.msgpack: not MessagePack"),
        (lambda fields: b"\xdf\xff\xff\xff\xff", "manifest.msgpack: not MessagePack"),
        (lambda fields: [], "not a bundle's manifest"),
        (lambda fields: {"format": "other"}, "not a bundle's manifest"),
        (lambda fields: fields.update(name=7), "name: expected str, got 7"),
        (lambda fields: fields.update(entry="main"), "entry: expected `module:function`, got 'main'"),
        (lambda fields: fields.update(entry="gone:run"), "entry gone:run: the bundle has no such module"),
        (lambda fields: fields.update(kind="virus"), "kind: expected one of task, stdlib"),
        (lambda fields: fields.update(kind="stdlib"), "entry: expected NoneType"),
        (lambda fields: fields.update(limits=[]), "limits: expected dict"),
        (
            lambda fields: fields["limits"].update(memory_bytes=-1),
            "limits.memory_bytes: expected 4 MiB to 256 TiB, got -1",
        ),
        (lambda fields: fields["limits"].update(memory_bytes=2.5), "limits.memory_bytes: expected int"),
        (
            lambda fields: fields["limits"].update(wall_time_s=float("nan")),
            "limits.wall_time_s: expected a time above 0",
        ),
        (lambda fields: fields["limits"].update(wall_time_s=True), "limits.wall_time_s: expected int or float"),
        (lambda fields: fields["limits"].update(speed=1), "limits.speed: expected one of memory_bytes"),
        (lambda fields: fields["permissions"].update(net="all"), "permissions.net: expected list"),
        (lambda fields: fields["permissions"].update(read=[1]), "permissions.read[0]: expected an absolute path"),
        (lambda fields: fields["permissions"].__delitem__("env"), "permissions.env: expected list, got None"),
        (lambda fields: fields["permissions"].update(root=[]), "permissions.root: expected one of read"),
        (lambda fields: fields.update(priority="high"), "priority: expected int"),
        (lambda fields: fields.update(fresh=1), "fresh: expected bool"),
        (lambda fields: fields.update(extra=1), "extra: expected one of format"),
        (lambda fields: fields["files"].update(x=[b"short", 1]), "files: 'x': expected a SHA-256 and a size"),
        (
            lambda fields: fields["files"]["files/labels.json"].__setitem__(1, 7),
            "files/labels.json: altered: expected 7 bytes, got 6",
        ),
        (lambda fields: fields["files"].update({b"x": [bytes(32), 1]}), "expected a SHA-256 and a size"),
        (
            lambda fields: b"\xde\x00\x10" + msgpack.packb(fields)[1:] + b"\xa4name\xa1x",
            "not as the compiler writes it (a key twice?)",
        ),
    ],
)
def test_malformed_manifests_signed_by_a_trusted_key(change, message):
    refused(resigned(change), message)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.binary(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(sorted(msgpack.unpackb(read_archive(written(), "x")["manifest.msgpack"]))), json_like)
def test_any_value_in_any_field_gives_a_bundle_or_bundle_error(name, value):
    try:
        read_bundle(resigned(lambda fields: fields.update({name: value})), TRUST)
    except BundleError as error:
        assert str(error).startswith("<bundle in memory>: ")


@given(json_like)
def test_any_manifest_gives_bundle_error(value):
    with pytest.raises(BundleError):
        read_bundle(resigned(lambda fields: msgpack.packb(value)), TRUST)


def hand_made(extra):
    """A signed bundle with `extra` entries that the writer would refuse, listed in the manifest unchanged."""
    entries = read_archive(written(), "x")
    fields = msgpack.unpackb(entries["manifest.msgpack"])
    for path, content in extra.items():
        fields["files"][path] = [hashlib.sha256(content).digest(), len(content)]
        entries[path] = content
    entries["manifest.msgpack"] = msgpack.packb(fields)
    entries["signature"] = KEY.sign(entries["manifest.msgpack"])
    return write_archive(entries)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"readme.txt": b""}, f"readme.txt: expected code/{TARGET}/….pyc, files/…, texts/… or models/…"),
        ({"code/3.15/main.pyc": b""}, "code/3.15/main.pyc: expected code/"),
        ({f"code/{TARGET}/a-b.pyc": MAGIC}, "a-b.pyc: not the path of a module"),
        ({f"code/{TARGET}/main/__init__.pyc": MAGIC + b"\1\0\0\0" + bytes(8)}, "module main is there twice"),
        ({f"code/{TARGET}/x.pyc": MAGIC + bytes(12)}, "x.pyc: expected the header of a .pyc"),
        ({f"code/{TARGET}/x.pyc": b""}, "x.pyc: expected the header of a .pyc"),
        ({"texts/abc": b""}, "texts/abc: expected texts/ and 64 hex digits"),
        ({"texts/" + "A" * 64: b""}, "expected texts/ and 64 hex digits"),
    ],
)
def test_wrong_paths_in_a_signed_bundle(extra, message):
    refused(hand_made(extra), message)


def test_not_a_bundle_at_all(tmp_path):
    refused(b"", "truncated: expected at least 22 bytes, got 0")
    refused(b"#!/usr/bin/env python\nprint(1)", "not a bundle: expected a zip file")
    refused(write_archive({"a": b""}), "it has no manifest.msgpack")
    refused(tmp_path / "nothing.vmb", "nothing.vmb: no such bundle; a relative path begins at the working folder")
    refused(b"# notes", "not a bundle: expected a zip file")
    refused(tmp_path, "can't read the bundle: Is a directory")


def test_writing_refuses_what_could_not_be_read():
    with pytest.raises(BundleError, match="module 'a-b': expected a dotted name"):
        write_bundle(MANIFEST, {"a-b": Module(False, b"")})
    with pytest.raises(BundleError, match="expected a relative path"):
        write_bundle(MANIFEST, {}, {"../x": b""})


def test_bundle_is_frozen():
    bundle = read_bundle(written(), TRUST)
    for change in (
        lambda: bundle.modules.clear(),
        lambda: setattr(bundle, "digest", b""),
        lambda: bundle.manifest.permissions.update(net=["*:*"]),
        lambda: setattr(bundle.manifest, "name", "x"),
    ):
        with pytest.raises(AttributeError):
            change()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "module main: not marshalled code"),
        (b"\xe3", "module main: not marshalled code"),
        (b"?", "module main: not marshalled code"),
        (marshal.dumps([1]), "module main: not marshalled code"),
    ],
)
def test_verify_names_the_module_that_is_not_code(content, message):
    bundle = bundle_in_memory(MANIFEST, {"main": Module(False, content)})
    with pytest.raises(BundleError, match=f"sample@1.2.0: {message}"):
        bundle.verify()


def test_verify_covers_modules_and_texts(monkeypatch):
    verifier = types.ModuleType("vmhost.bytecode.verifier")
    seen = []
    verifier.load = lambda data, *, where: marshal.loads(data)
    verifier.verify = lambda code, *, where: seen.append((code.co_filename, where))
    monkeypatch.setitem(sys.modules, "vmhost.bytecode.verifier", verifier)
    bundle_in_memory(MANIFEST, *parts()).verify()
    assert [where.partition(": ")[2].split()[0] for _, where in seen] == ["module", "module", "module", "text"]
    assert {name for name, _ in seen} == {"sample@1.2.0/main.py"}


def test_models_that_the_manifest_does_not_name_are_refused():
    refused(
        write_bundle(MANIFEST, *parts(), key=KEY, models={"other": b""}),
        "the manifest names the models ['net'], the bundle has ['other']",
    )
