"""Tests of the GPU's code without a GPU: programs against the CPU's engine, refusals, and the errors if there is no
library and no GPU."""

import subprocess
import sys

import numpy
import pytest
from onnx import TensorProto

from tests.engine.gpu_networks import OPERATORS, as_onnx, click_network, inputs_of, one_operator
from tests.engine.gpu_programs import run
from vmhost.engine.cuda import CudaTable, DeviceError, UnsupportedError, gpu, library, programs
from vmhost.engine.cuda.files import ModelFile
from vmhost.engine.embedding import CBFFilter, SSDStorage
from vmhost.engine.models import opened


@pytest.mark.parametrize("name", ["deepfm", "din", "dlrm", *OPERATORS])
@pytest.mark.parametrize("fused", [True, False])
def test_a_program_gives_what_the_cpu_gives(name, fused):
    data = click_network(name) if name in ("deepfm", "din", "dlrm") else one_operator(name)
    model, file = opened(name, data), ModelFile(data)
    for batch in (1, 2, 9):
        inputs = inputs_of(model, batch, batch)
        found = run(file, dict.fromkeys(file.opens, batch), inputs, fused=fused)
        for output, wanted in model(inputs).items():
            wanted = numpy.asarray(wanted)
            assert found[output].shape == wanted.shape
            assert numpy.allclose(found[output], wanted, rtol=1e-5, atol=2e-6), output


def test_fused_steps_are_fewer_launches():
    file = ModelFile(click_network("deepfm"))
    launches = {}
    for fused in (True, False):
        steps = programs.build(file, {"batch": 64}, fused=fused).steps
        launches[fused] = len(set(programs._launches(steps)))
    assert launches[True] < 15 and launches[False] > 40


def test_what_lives_at_one_time_does_not_overlap():
    """The arena's tensors, by the launches that they are used in."""
    file = ModelFile(click_network("din"))
    program, tensors = programs.build(file, {"batch": 33}), file.at({"batch": 33})
    spans = {}
    for step, turn in zip(program.steps, programs._launches(program.steps)):
        for one in step.operands:
            if one is not None and one.tensor in program.offsets:
                first, _ = spans.get(one.tensor, (turn, turn))
                spans[one.tensor] = first, turn
    fixed = len(program.inputs) + len(program.outputs)
    assert len(spans) > fixed
    for one, (first, last) in spans.items():
        for other, (begin, end) in spans.items():
            if one < other < len(tensors) and begin <= last and first <= end:
                at, then = program.offsets[one], program.offsets[other]
                sizes = [numpy.prod(tensors[number].shape) * 4 for number in (one, other)]
                assert at + sizes[0] <= then or then + sizes[1] <= at


# ---- what the GPU lacks
@pytest.mark.parametrize(
    ("nodes", "constants", "dtype", "text"),
    [
        ([("Sin", ["x"], "y", {})], {}, TensorProto.FLOAT, "lacks Unary sin.*device='cpu'"),
        ([("Pow", ["x", "p"], "y", {})], {"p": numpy.float32(2.5)}, TensorProto.FLOAT, "lacks Binary power"),
        ([("LogSoftmax", ["x"], "y", {"axis": 1})], {}, TensorProto.FLOAT, "lacks Softmax's logarithm"),
        ([("CumSum", ["x", "a"], "y", {})], {"a": numpy.asarray(1)}, TensorProto.FLOAT, "lacks Scan"),
        ([("Abs", ["x"], "y", {})], {}, TensorProto.DOUBLE, "float64.*device='cpu'"),
    ],
)
def test_an_operator_that_the_gpu_lacks_is_named(nodes, constants, dtype, text):
    from vmhost.engine.onnx import compile_model

    file = ModelFile(compile_model(as_onnx(nodes, constants, ["batch", 4], ["batch", 4], dtype), "lacking.onnx"))
    with pytest.raises(UnsupportedError, match=text):
        programs.build(file, {"batch": 2})


# ---- no library, no GPU
def test_without_the_library_one_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_opened", None)
    monkeypatch.setenv("VMHOST_CUDA_LIBRARY", str(tmp_path / "libvme_cuda.so"))
    for ask in (
        lambda: opened("deepfm", click_network("deepfm"), device="cuda"),
        lambda: CudaTable(4),
        lambda: gpu("cuda:1"),
    ):
        with pytest.raises(DeviceError, match="make cuda.*nvidia-cuda-nvcc"):
            ask()


def test_a_library_that_is_none_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_opened", None)
    monkeypatch.setenv("VMHOST_CUDA_LIBRARY", str(tmp_path / "libvme_cuda.so"))
    (tmp_path / "libvme_cuda.so").write_bytes(b"no library")
    with pytest.raises(DeviceError, match="does not open.*make cuda"):
        gpu()


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", 0, None])
def test_a_device_that_there_is_no_such_is_a_value_error(device):
    with pytest.raises(ValueError, match="device: expected"):
        opened("deepfm", click_network("deepfm"), device=device)


def test_options_of_a_gpu_belong_to_a_gpu():
    with pytest.raises(ValueError, match="device_memory"):
        opened("deepfm", click_network("deepfm"), device_memory=1 << 30)


def test_tables_refuse_what_a_gpu_has_not(tmp_path):
    with pytest.raises(ValueError, match="SSDStorage"):
        CudaTable(4, storage=SSDStorage(str(tmp_path), 1 << 20, 1 << 20))
    with pytest.raises(ValueError, match="CounterFilter"):
        CudaTable(4, filter=CBFFilter(3, 1000))


def test_the_declarations_are_the_headers():
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(library.declarations())
    assert ffi.sizeof("vme_cuda_instruction") == 16 and ffi.sizeof("vme_cuda_operand") == 80
    assert f"#define VME_CUDA_ABI          {library.ABI}" in library.HEADER.read_text()
    functions = ffi.typeof("vme_cuda_function").elements
    assert len(programs.FUNCTIONS) == len(functions) - 1
    for number, name in enumerate(programs.FUNCTIONS):
        assert functions[number] == f"VME_CUDA_{name.upper().replace(' ', '_')}"


def test_nothing_else_imports_it():
    """An installation without a GPU reads none of this."""
    text = "import sys, vmhost.engine.models, vmhost.serving.sessions; print([m for m in sys.modules if 'cuda' in m])"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"
