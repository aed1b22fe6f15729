"""Models compiled from ONNX by tools/compile_cloud.py, run by the engine. `engine.load` is the entry point.

In a VM a task opens the models of its own bundle by name; the host prepared them when it loaded the bundle, and all VMs
share their weights. Elsewhere a model is compiled from the task's folder, or read from its file."""

from vmhost.engine import _array
from vmhost.engine.model import Model, Port, Step

__all__ = ["Model", "Port", "Step", "load", "opened"]


def opened(name, data, *, threads=0, ftz=False, search=None, spend=False, like=None, device="cpu", device_memory=0,
           device_options=None):  # fmt: skip
    """The Model in the bytes of a model file, outside a VM.

    `name`: in messages. `data`: the bytes. `threads`, `ftz`, `search`: as in `load`. `spend`: `data` is writable and
    not read afterwards: its memory is released while weights are packed, so that hardly more than the largest constant
    is in memory twice; zeros remain there. `like`: a Model of the same network with other weights, whose algorithms are
    used without a search.

    `device`: "cpu", or "cuda" or "cuda:NUMBER" for an NVIDIA GPU (docs/gpu.md): a Model with its weights in GPU memory,
    of which it takes at most `device_memory` bytes. `device_memory`: in bytes; 0: no limit. `device_options`:
    vmhost.engine.cuda.Options.

    DeviceError: no GPU, or no library. UnsupportedError names an operator that the GPU lacks."""
    from vmhost.engine.model_parts import DAMAGED, sizes_of_files  # on hosts only

    if device != "cpu":
        from vmhost.engine.cuda.library import gpu
        from vmhost.engine.cuda.network import CudaModel

        found = gpu(device, memory=device_memory)
        whole = opened(name, data, threads=1, search="fixed")  # refuses damaged files
        return CudaModel(name, data, whole, device=found, options=device_options, like=like)
    if device_memory or device_options is not None:
        raise ValueError("device_memory, device_options: expected with device='cuda' only")
    whole = memoryview(data)
    files = sizes_of_files(whole)

    def part(number):
        if number >= len(files):
            raise ValueError(DAMAGED)
        begin, end = files[number]
        other = None if like is None else like.session(number)
        return _array._model_open(whole[begin:end], threads, ftz, search == "fixed", spend, other)

    found = Model(name, part(0), part)
    if found.parts != len(files):
        raise ValueError(DAMAGED)
    return found


def load(name, *, threads=0, ftz=False, search=None, precision="float32"):
    """A Model of the task's bundle, or outside a VM of a task's folder or of a file.

    `name`: in a VM, of a model of the bundle; elsewhere, of one in the task.yaml beside the caller or in the current
    folder (engine/task_models.py), or the path of a model file. `threads`: maximum threads of its runs; 0: the
    process's limit for one operator. `ftz`: subnormal numbers are flushed to zero, which is faster if there are many.
    `search`: outside a VM only: "measured" (the default) chooses algorithms by this machine's measured rates and times
    near ties, "fixed" by built-in rates, so that every machine with this backend gives the same bytes; in a VM the host
    has chosen. `precision`: "float32" is the only value.

    LookupError lists the available models; ValueError says what is wrong with a file."""
    names = _array._model_names()
    if search not in (None, "measured", "fixed") or (names is not None and search is not None):
        raise ValueError(
            "search: expected"
            f" {'nothing: the host has prepared the model' if names is not None else 'measured or fixed'}, got"
            f" {search!r}"
        )
    if precision != "float32":
        raise ValueError(
            f"precision: expected float32, got {precision!r}; models compute in the dtypes of their ONNX file, images"
            " in float32: leave it out"
        )
    if names is None:
        from vmhost.engine.task_models import find  # on hosts only

        label, data = find(name)
        return opened(label, data, threads=threads, ftz=ftz, search=search, spend=isinstance(data, bytearray))
    if name not in names:
        raise LookupError(
            f"this task's bundle has no model {name!r}; it has {', '.join(names) or 'none'} (task.yaml, models)"
        )

    def part(number):
        return _array._model_open(name, threads, ftz, True, False, None, number)

    return Model(name, part(0), part)
