"""Runs the task in a host and keeps the network: `python learn/keep.py learn.vmb learn.onnx`."""

import sys
from pathlib import Path

import vmhost

bundle, out = sys.argv[1:]
with vmhost.Host(allow_unsigned=True) as host:
    learned = host.load(bundle)({"epochs": 20, "onnx": True})
Path(out).write_bytes(learned["onnx"])
print(f"{out}: {learned['right']} of {learned['of']} right")
