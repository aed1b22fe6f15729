"""Networks as PyTorch's exporters write them (TorchScript's and dynamo's): graphs/NAME.onnx.xz without weights, which a
seed gives (stripping.py). How they were exported: export.py."""

import functools
import lzma
from pathlib import Path

from .stripping import filled

_FOLDER = Path(__file__).parent / "graphs"


def _make(path, random):
    import onnx

    return filled(onnx.load_model_from_string(lzma.decompress(path.read_bytes())), random)


MODELS = {
    path.name.removesuffix(".onnx.xz"): functools.partial(_make, path) for path in sorted(_FOLDER.glob("*.onnx.xz"))
}
QUICK = (  # few products: to run on every backend, portable C too
    "albert",
    "bert_qa",
    "bloom",
    "convbert",
    "deberta",
    "dinov2",
    "gemma3",
    "glpn",
    "gptneo",
    "lcnet_050",
    "marian",
    "mobilenetv1",
    "phi3",
    "segformer",
    "t5",
    "tinynet_e",
)
