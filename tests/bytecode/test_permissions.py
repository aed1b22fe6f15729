"""The kinds of permissions are in one list; files that cannot import it agree with it, and bundles from before
`listen` load."""

import json
import marshal
import re
from pathlib import Path

import msgpack
import pytest

import vmhost
from vmhost.bytecode.archive import read_archive, write_archive
from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.fields import EVERYTHING, GRANTS, LATER_GRANTS, PATH
from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle

ROOT = Path(__file__).parent.parent.parent
KINDS = tuple(GRANTS)


def described(text):
    return tuple(re.search(r"(?:any|one) of ([\w, ]+)", text)[1].split(", "))


def test_the_schemas_name_the_same_kinds():
    task = json.loads((ROOT / "bytecode" / "task.schema.json").read_text())["properties"]["permissions"]
    allow = json.loads((ROOT / "vmhost" / "host.schema.json").read_text())["properties"]["allow"]
    # channels of the tunnel are host functions in bundles
    assert tuple(task["properties"]) == described(task["description"]) == (*KINDS, "tunnel")
    assert tuple(allow["items"]["enum"]) == described(allow["items"]["description"]) == KINDS
    assert described(allow["description"]) == KINDS == vmhost.Policy().allow


def test_the_core_fills_a_list_of_each_kind_but_host_and_tables():
    text = (ROOT / "vmhost" / "isolation" / "seal" / "grants.c").read_text()
    filled = re.findall(r'list_fill\(seal, &seal->(\w+), permissions, "\1", (paths|NAMES)\)', text)
    kinds = [(kind, "paths" if GRANTS[kind][0] is PATH else "NAMES") for kind in EVERYTHING]
    assert filled == [*kinds, ("environ", "NAMES")]  # the host's values of what `env` grants


def test_all_of_a_kind_can_be_granted_but_not_all_host_functions_and_tables():
    assert (*EVERYTHING, "host", "tables") == KINDS and LATER_GRANTS <= set(KINDS)


@pytest.mark.parametrize("page", ["task-yaml.md", "isolation.md", "bundle.md", "host-yaml.md"])
def test_the_pages_name_each_kind(page):
    text = (ROOT / "docs" / page).read_text()
    kinds = EVERYTHING if page == "isolation.md" else KINDS  # host functions are described elsewhere
    assert [kind for kind in kinds if not re.search(rf"`{kind}`|[\[ {{]{kind}[:,\]]", text)] == []


def packed(**permissions):
    manifest = Manifest(name="sample", version="1", entry="main:run", permissions=permissions)
    return write_bundle(manifest, {"main": Module(False, marshal.dumps(compile("", "main.py", "exec")))}, {}, {})


def permissions_in(bundle):
    return msgpack.unpackb(read_archive(bundle, "x")["manifest.msgpack"])["permissions"]


def test_a_bundle_that_listens_nowhere_is_as_it_was_before_that_kind():
    assert set(permissions_in(packed(net=("a:1",)))) == set(KINDS) - LATER_GRANTS
    assert permissions_in(packed(listen=("a:1",)))["listen"] == ["a:1"]
    assert read_bundle(packed(net=("a:1",)), allow_unsigned=True).manifest.permissions["listen"] == ()
    assert read_bundle(packed(listen=("a:1",)), allow_unsigned=True).manifest.permissions["listen"] == ("a:1",)


def test_what_listen_says_is_read_as_strictly_as_the_rest():
    entries = read_archive(packed(listen=("a:1",)), "x")
    fields = msgpack.unpackb(entries["manifest.msgpack"])
    fields["permissions"]["listen"] = "a:1"
    entries["manifest.msgpack"] = msgpack.packb(fields)
    with pytest.raises(BundleError, match="permissions.listen: expected list"):
        read_bundle(write_archive(entries), allow_unsigned=True)
