"""`vmhost keys`."""

import json
import os
import stat
import subprocess

import pytest

from tests.hosts import ROOT
from tests.vmhost.cli.command import COMMAND
from vmhost.cli import failures


def test_a_key_is_made_private_and_listed_and_trusted_once(vmhost, key_folder):
    code, out, _ = vmhost("keys", "new", "me", "--trust")
    assert code == 0
    assert stat.S_IMODE((key_folder / "keys" / "me").stat().st_mode) == 0o600
    code, out, _ = vmhost("keys", "list", "--json")
    (listed,) = json.loads(out)["keys"]
    assert listed["name"] == "me" and listed["private"] and listed["trusted"]
    code, out, err = vmhost("keys", "new", "me")
    assert (code, out) == (failures.WRONG_INPUT, "") and "is there already" in err


def test_another_key_of_a_trusted_name_is_not_taken_for_it(vmhost, tmp_path):
    vmhost("keys", "new", "me", "--trust")
    assert vmhost("keys", "new", "me", "-o", tmp_path / "me")[0] == 0
    code, _, err = vmhost("keys", "trust", tmp_path / "me.pub")
    assert code == failures.WRONG_INPUT and "trusts another key called me already" in err


@pytest.mark.parametrize("name", ["../me", ".me", "", "a b", "a/b"])
def test_a_key_name_stays_in_its_folder(vmhost, name):
    code, _, err = vmhost("keys", "new", name)
    assert code == failures.WRONG_INPUT and "expected a name" in err


def test_all_is_done_though_nobody_reads_what_is_said(key_folder):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*COMMAND, "keys", "new", "me", "--trust"], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, timeout=60
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (failures.PIPE_CLOSED, b"")
    assert (key_folder / "trusted" / "me.pub").exists()
