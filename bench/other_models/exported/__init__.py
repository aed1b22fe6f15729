"""Networks as written by PyTorch's exporters (TorchScript and dynamo): graphs/NAME.onnx.xz without weights, which come
from a seed (stripping.py). export.py has the export."""

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
QUICK = (  # with few products, for every backend, portable C included
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
