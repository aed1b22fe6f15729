"""Task folders to bundles, models included: gives the bundle compiler the ONNX compiler, which it does not know
(docs/decisions/rooms.md)."""

import os
from collections.abc import Iterable

from vmhost.bytecode.compiler import CompiledTask, compile_task
from vmhost.bytecode.errors import CompileError, Diagnostic


def compile_folder(
    folder: str | os.PathLike[str],
    *,
    target: str | None = None,
    optimize: int = 0,
    strict: bool = False,
    script: str | os.PathLike[str] | None = None,
    with_packages: Iterable[str] = (),
) -> CompiledTask:
    """The CompiledTask of a task's folder, with its models.

    `folder`: with task.yaml. `target`: the Python version instead of task.yaml's; it must be the running one.
    `optimize`: 0, 1 or 2, CPython's -O. `strict`: warnings are errors. `script`: a file that runs while the source
    texts that packages compile are recorded; None: packages are imported only. `with_packages`: requirements beside
    those of task.yaml.

    TaskSpecError or CompileError with all findings."""
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
    """The Compiled of the ONNX file at `path`: model file, savings, weight files. With patterns of `trainable` weights:
    of the frozen part, plus the trainable part. CompileError with all problems."""
    from vmhost.engine.onnx import OnnxError, compiled  # here: only tasks with models need NumPy and onnx

    try:
        if not trainable:
            return compiled(path.read_bytes(), str(path), path.parent)
        from vmhost.engine.onnx.trainable import split, trained_names

        frozen, part, files = split(path.read_bytes(), str(path), path.parent, trainable)
        return compiled(frozen, str(path))._replace(trainable=part, trained=trained_names(part), weight_files=files)
    except OnnxError as error:
        raise CompileError([Diagnostic(error.file, 0, message) for message in error.messages]) from error
