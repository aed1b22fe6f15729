"""A network of bench/networks.py as the files that engines open, in one folder: network.onnx, ours (network.vmm,
network.vmb), MNN's (network.mnn), and network.json with the names of inputs and outputs."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import NamedTuple

from onnx import helper

from bench.model_engines import MNN
from vmhost.compiler import compile_folder

MAIN = """
from vmhost import engine

model = None

def setup():
    global model
    model = engine.load("network")

def run(inputs):
    return model(inputs)
"""
TASK = """
name: {name}
version: "1.0.0"
entry: main:run
python: "3.14"
limits: {{concurrency: 8}}
models: {{network: network.onnx}}
"""


class Port(NamedTuple):
    """An input: name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple


def write(folder, name, model):
    """Writes the ONNX `model` in all formats; returns its inputs as Ports, and what could not be written, {NAME of an
    engine: reason}."""
    data = model.SerializeToString()
    (folder / "network.onnx").write_bytes(data)
    (folder / "main.py").write_text(MAIN)
    (folder / "task.yaml").write_text(TASK.format(name=name))
    bundle = compile_folder(folder)
    (folder / "network.vmm").write_bytes(bundle.models["network"])
    (folder / "network.vmb").write_bytes(bundle.to_bytes())
    ports = [
        Port(
            value.name,
            str(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
            tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim),
        )
        for value in model.graph.input
    ]
    (folder / "network.json").write_text(
        json.dumps({"inputs": [port[:2] for port in ports], "outputs": [value.name for value in model.graph.output]})
    )
    missing = _for_mnn(folder) if importlib.util.find_spec("MNN") is not None else None
    return ports, {} if missing is None else {MNN.NAME: missing}


def _for_mnn(folder):
    """Converts for MNN, in a process of its own; returns None, or why it failed. MNN's own command would report usage
    to its makers over the network."""
    command = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            command,
            "-f",
            "ONNX",
            "--modelFile",
            "network.onnx",
            "--MNNModel",
            "network.mnn",
            "--bizCode",
            "bench",
            *MNN.CONVERSION,
        ],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), **MNN.ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if (folder / "network.mnn").is_file():
        return None
    return f"not converted: {done.stdout.decode(errors='replace').strip()[-200:]}"
