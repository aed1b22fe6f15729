"""Task folders to bundles, models included: the compiler of bundles is given the one of ONNX models, which it does not
know (docs/decisions/rooms.md)."""

from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import CompileError, Diagnostic


def compile_folder(folder, *, target=None, optimize=0, strict=False, script=None, with_packages=()):
    """The CompiledTask of a task's folder, with its models; the options are those of `compile_task`. TaskSpecError or
    CompileError with all findings."""
    return compile_task(
        folder,
        target=target,
        optimize=optimize,
        strict=strict,
        script=script,
        compile_model=compile_onnx,
        with_packages=with_packages,
    )


def compile_onnx(path, trainable=()):
    """The Compiled of the ONNX file at `path`: model file, savings, files of weights; where patterns of `trainable`
    weights are given, of the part that they leave frozen, and the other part. CompileError with all that stands in the
    way."""
    from vmhost.engine.onnx import OnnxError, compiled  # late: NumPy and onnx are for tasks with models only

    try:
        if not trainable:
            return compiled(path.read_bytes(), str(path), path.parent)
        from vmhost.engine.onnx.trainable import split

        frozen, part, files = split(path.read_bytes(), str(path), path.parent, trainable)
        return compiled(frozen, str(path))._replace(trainable=part, weight_files=files)
    except OnnxError as error:
        raise CompileError([Diagnostic(error.file, 0, message) for message in error.messages]) from error
