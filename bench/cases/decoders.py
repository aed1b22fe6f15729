"""Tokens per second of a decoder of 100 million parameters with weights of 8 and 4 bits and a key-value cache, with one
thread per caller, for 1 and 8 callers, beside ONNX Runtime GenAI if it is installed (pip install onnxruntime-genai, in
the Python named by VMHOST_GENAI_PYTHON or in this one).

Callers are VMs of one process, threads with GenAI. Both write to caches of a fixed capacity in place. GenAI may
quantize activations to 8 bits (accuracy_level 4); ours computes as float32 does."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import decoders
from bench.measure import Figure, Result

ROOT = Path(__file__).parents[2]


def run(quick):
    results, tokens, rounds = [], 8 if quick else 24, 1 if quick else 3
    python = os.environ.get("VMHOST_GENAI_PYTHON", sys.executable)
    peers = {"vmhost": (sys.executable, "ours"), "ONNX Runtime GenAI": (python, "genai")}
    for bits in (8, 4):
        with tempfile.TemporaryDirectory() as folder:
            count = decoders.write(Path(folder), bits)
            for callers in (1, 8):
                values = {name: [] for name in peers}
                for _ in range(rounds):
                    for name, (program, function) in peers.items():
                        rate = _tokens_per_s(program, function, folder, tokens, callers)
                        values[name] += [] if rate is None else [rate]
                figures = {name: Figure(tuple(some), "tokens/s", "more") for name, some in values.items() if some}
                note = "" if values["ONNX Runtime GenAI"] else "ONNX Runtime GenAI is not installed"
                title = f"decoder of {count / 1e6:.0f} M parameters, int{bits} weights, {callers} at once"
                results.append(Result(title, figures, note=note))
    return results


def _tokens_per_s(program, function, folder, tokens, callers):
    done = subprocess.run(
        [program, "-m", "bench.decoders", function, folder, str(tokens), str(callers)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"HOME": folder},
    )  # fmt: skip
    return json.loads(done.stdout)["tokens_per_s"] if done.returncode == 0 else None
