"""`vmhost quantize`: turns a float32 network into one of 8 or 4 bits, and reports how far its answers move."""

from pathlib import Path

import click

from vmhost.cli import failures, inspect


@click.command(short_help="Quantize an ONNX model to 8 or 4 bits; compare accuracy and speed.")
@click.argument("path", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--calibrate", "data", multiple=True, type=click.Path(path_type=Path), metavar="DATA",
    help="Examples: .npz files with an array for each input, .npy files, or folders of them; may be repeated.",
)  # fmt: skip
@click.option(
    "--to", "target", type=click.Choice(["int8", "int4"]), default="int8", show_default=True,
    help="int8: activations and weights; int4: weights of matrix products.",
)  # fmt: skip
@click.option("--weights-only", is_flag=True, help="int8 for the weights of matrix products only.")
@click.option(
    "--method", type=click.Choice(["min-max", "percentile", "entropy"]), default="min-max", show_default=True,
    help="How the ranges of activations are determined.",
)  # fmt: skip
@click.option(
    "--percentile", type=click.FloatRange(50, 100), default=99.99, show_default=True,
    help="For --method percentile: values beyond it, on both sides, are clipped.",
)  # fmt: skip
@click.option("--labels", metavar="NAME", help="The array in DATA with the true classes, to report accuracy.")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), required=True, help="The ONNX file to write.")
@failures.command
def command(output, path, data, target, weights_only, method, percentile, labels, out):
    """Quantize MODEL, a float32 ONNX file. The result is an ONNX file that runs here and in ONNX Runtime."""
    from vmhost.engine import quantize

    try:
        report = _quantized(quantize, output, path, data, target, weights_only, method, percentile, labels, out)
    except quantize.QuantizeError as error:
        text = str(error)
        raise failures.Failure(
            text if text.startswith(tuple(map(str, (path, *data)))) else f"{path}: {text}"
        ) from error
    output.document(report)
    _show(output, report)


def _quantized(quantize, output, path, data, target, weights_only, method, percentile, labels, out):
    narrow = target == "int4" or weights_only
    if not path.is_file():
        raise failures.Failure(f"{path}: no such file{failures.did_you_mean(path)}; expected an ONNX model")
    if not data and not narrow:
        raise failures.Failure("int8 activations need data: --calibrate DATA, or --weights-only")
    if labels is not None and not data:
        raise failures.Failure("--labels names an array of DATA: give --calibrate DATA")
    graph = quantize.ready(path)
    before = _opened(path, graph.model)
    feeds, answers = quantize.feeds(data, before.inputs, labels) if data else ([], None)
    with output.progress() as progress:
        for step in progress.track(("quantizing",), description="quantizing"):
            if narrow:
                model = quantize.with_narrow_weights(graph, 4 if target == "int4" else 8)
            else:
                tensors = quantize.quantized_tensors(graph)[0]
                found = quantize.ranges(graph, tensors, feeds, method, percentile)
                model = quantize.statically(graph, found)
    written = model.SerializeToString()
    after = _opened(out, model)
    report = {
        "path": str(out),
        "to": f"{target}, weights" if narrow else target,
        "examples": sum(next(iter(feed.values())).shape[0] if next(iter(feed.values())).ndim else 1 for feed in feeds),
        "bytes_before": path.stat().st_size,
        "bytes_after": len(written),
        "outputs": {},
    }
    if feeds:
        results = [quantize.outputs_of(each, feeds) for each in (before, after)]
        report["outputs"] = quantize.agreement(*results, answers)
        report["ms_before"], report["ms_after"] = quantize.durations((before, after), feeds[0])
    from vmhost.bytecode.replacing import replace_file

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, written)
    except OSError as error:
        raise failures.Failure(f"{out}: cannot write the model: {error.strerror}") from error
    return report


def _opened(path, model):
    from vmhost.engine.models import opened
    from vmhost.engine.onnx import OnnxError, compile_model

    try:
        return opened(str(path), compile_model(model.SerializeToString(), str(path)), threads=1)
    except OnnxError as error:
        raise failures.Failure(
            f"{error.messages[0] if len(error.messages) == 1 else 'the model does not compile'}; see vmhost compile"
            f" --check {path}",
            failures.REFUSED,
            "OnnxError",
        ) from error


def _show(output, report):
    output.line(
        f"{report['path']}: {report['to']}, {inspect.size_text(report['bytes_before'])} became"
        f" {inspect.size_text(report['bytes_after'])}"
    )
    if not report["outputs"]:
        output.line("accuracy and speed: not known without data (--calibrate DATA)")
        return
    rows = []
    for name, row in report["outputs"].items():
        top = "" if row["top1"] is None else f"{row['top1']:.2%}"
        right = f"{row['right_before']:.2%}, {row['right_after']:.2%}" if "right_before" in row else ""
        rows.append((name, f"{row['max_abs']:.3g}", f"{row['relative']:.3g}", f"{row['cosine']:.6f}", top, right))
    columns = ("output", "largest difference", "relative", "cosine", "same top 1", "right before, after")
    output.table(f"against float32, {report['examples']} examples", columns, rows)
    output.line(f"one run, one thread: {report['ms_before']:.3g} ms before, {report['ms_after']:.3g} ms after")
