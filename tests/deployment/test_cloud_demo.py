"""`vmhost cloud demo`: git push ends with five device processes that run the version; a bad one is rolled back."""

import json
import os
import subprocess
import sys


def test_a_push_ends_on_five_devices_and_a_bad_one_goes_back(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vmhost", "cloud", "demo", "--folder", tmp_path / "demo", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout)
    assert happened["running"] == {"1.0.0": 5}
    good, bad = happened["releases"]
    assert (good["state"], good["devices"]["proven"]) == ("done", 5)
    assert bad["state"] == "rolled_back" and bad["devices"]["failed"] >= 1
    assert any("KeyError: 'b'" in each["reason"] for each in happened["devices"])
    assert [each["event"] for each in happened["history"] if each["version"] == "1.1.0"][-1] == "roll_back"
    for number in range(1, 6):
        [entry] = json.loads((tmp_path / "demo" / f"device-{number}" / "state" / "current.json").read_text())[
            "tasks"
        ].values()
        assert entry["version"] == "1.0.0"
