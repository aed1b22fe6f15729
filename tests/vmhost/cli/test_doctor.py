"""`vmhost doctor`."""

import json
import re

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


def test_doctor_says_what_is_wrong_and_goes_on(vmhost, monkeypatch, tmp_path):
    (tmp_path / "stdlib.vmb").write_bytes(b"PK")
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", tmp_path / "stdlib.vmb")
    monkeypatch.setattr(host, "_system_code_stores", {})
    code, out, _ = vmhost("doctor")
    assert code == failures.UNHEALTHY
    assert "WRONG  standard library:" in out and "stdlib.vmb: truncated" in out
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
