"""`vmhost doctor`."""

import json
import math
import re

import numpy  # noqa: F401 - makes threads that stay, before a test counts them
import pytest

from vmhost import host
from vmhost.cli import failures


def test_doctor_finds_this_machine_fit(vmhost):
    code, out, _ = vmhost("doctor", "--json")
    document = json.loads(out)
    assert (code, document["healthy"]) == (0, True), [f for f in document["findings"] if f["status"] == "wrong"]
    names = {finding["name"] for finding in document["findings"]}
    assert {
        "Python",
        "cores",
        "memory",
        "native core",
        "standard library",
        "a VM boots",
        "a VM compiles nothing",
    } <= names


@pytest.mark.parametrize("columns", [80, 100])
def test_what_is_well_fits_a_screen_and_all_of_it_is_told_to_who_asks(vmhost, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = vmhost("doctor")
    assert code == 0
    rows = [math.ceil(len(line) / columns) for line in out.splitlines()]
    assert sum(rows) <= 24, out
    assert [line for line in out.splitlines() if line.startswith("ok ") and len(line) > columns] == []
    assert "primitives" not in out and out.splitlines()[-1].endswith(
        "more findings are good, or cut off here: vmhost doctor --all"
    )
    names = [finding["name"] for finding in json.loads(vmhost("doctor", "--json")[1])["findings"]]
    code, out, _ = vmhost("doctor", "--all")
    assert re.findall(r"^(?:ok|note) +(.*?): ", out, re.MULTILINE) == names
    assert "Conv," in out and "doctor --all" not in out


def test_doctor_says_what_is_wrong_and_goes_on(vmhost, monkeypatch, tmp_path):
    (tmp_path / "stdlib.vmb").write_bytes(b"PK")
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", tmp_path / "stdlib.vmb")
    monkeypatch.setattr(host, "_system_code_stores", {})
    code, out, _ = vmhost("doctor")
    assert code == failures.UNHEALTHY
    assert "WRONG  standard library:" in out and "stdlib.vmb: not a bundle" in out
    assert "make it again: python -m vmhost.stdlib" in out
    assert "trusted keys" in out, "the checks after it were made"


def test_doctor_prints_what_the_engine_is_made_of(vmhost):
    code, out, _ = vmhost("doctor", "--json")
    texts = {finding["name"]: finding["text"] for finding in json.loads(out)["findings"]}
    assert "raster, copy, unary, binary" in texts["primitives"] and " in portable" in texts["primitives"]
    lowered = texts["lowered operators"]
    count, names, written, without = re.fullmatch(
        r"(\d+) \((.*)\): (\d+) pieces to write instead of (\d+) for \d backends", lowered
    ).groups()
    assert {"concatenate", "kron", "moveaxis", "vstack", "round"} <= set(names.split(", "))
    assert len(names.split(", ")) == int(count) > 100 and int(written) < int(without)
    assert "Conv," in texts["model operators"] and "LayerNormalization," in texts["model operators"]
