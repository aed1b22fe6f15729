"""`vmhost doctor`."""

import json

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
    monkeypatch.setattr(host, "_system_images", {})
    code, out, _ = vmhost("doctor")
    assert code == failures.UNHEALTHY
    assert "WRONG  standard library:" in out and "stdlib.vmb: truncated" in out
    assert "make it again: python -m bytecode.stdlib" in out
    assert "trusted keys" in out, "the checks after it were made"
