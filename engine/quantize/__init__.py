"""Quantization of float32 networks to 8 and 4 bits, as ONNX: `vmhost quantize`. Needs the packages `onnx` and
`onnx-ir`.

graphs.py prepares an ONNX file; samples.py reads the data; calibration.py runs the model on the data in our engine and
finds the range of each tensor; static.py puts pairs of QuantizeLinear and DequantizeLinear around convolutions and
products; weights.py makes products with narrow weights; comparison.py measures the difference between the result and
the model."""

from vmhost.engine.quantize.calibration import ranges
from vmhost.engine.quantize.comparison import agreement, durations, outputs_of
from vmhost.engine.quantize.errors import QuantizeError
from vmhost.engine.quantize.graphs import ready
from vmhost.engine.quantize.samples import feeds
from vmhost.engine.quantize.static import quantized_tensors, statically
from vmhost.engine.quantize.weights import with_narrow_weights

__all__ = [
    "QuantizeError",
    "agreement",
    "durations",
    "feeds",
    "outputs_of",
    "quantized_tensors",
    "ranges",
    "ready",
    "statically",
    "with_narrow_weights",
]
