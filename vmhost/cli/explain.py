"""`vmhost explain`: how the engine computes a model on this machine: the steps, the algorithm of each, expected and
measured time."""

from pathlib import Path

import click

from vmhost.cli import failures, keys

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_LABELLED = 0.01  # share of the total time; shorter steps have no label in the picture


@click.command(short_help="Show how the engine computes MODEL, and how long each step takes.")
@click.argument("path", type=click.Path(path_type=Path), metavar="MODEL")
@click.option("--model", "only", help="Only this model of a bundle.")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of runs; the minimum time of each step is shown.",
)
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads that a run may use; 0: all.")
@click.option(
    "--search",
    type=click.Choice(["measured", "fixed"]),
    default="measured",
    show_default=True,
    help="How algorithms are chosen.",
)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="An open size of the model. [default: 1]")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Also draw the steps' times, as SVG or PNG by its name."
)
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to check a bundle's signature against."
)
@failures.command
def command(output, path, only, runs, threads, search, sizes, picture, trust):
    """Show how the engine computes MODEL: an .onnx file, a model file, or a bundle with models. It is run on random
    inputs."""
    chosen = dict(map(_size, sizes))
    explained = [
        _explained(name, data, savings, runs, threads, search, chosen)
        for name, (data, savings) in _models(path, only, keys.trust_store(trust)).items()
    ]
    if picture is not None:
        draw(explained, picture)
    output.document({"path": str(path), "search": search, "threads": threads, "runs": runs, "models": explained})
    for model in explained:
        _show(output, model)
    if picture is not None:
        output.remark(f"written: {picture}", style="dim")


def _size(text):
    """The name and the number of NAME=N."""
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal() or int(number) < 1:
        raise failures.Failure(f"--size: expected NAME=N, N 1 or more, got {text!r}")
    return name, int(number)


def _models(path, only, store):
    """The bytes of the model files and, for ONNX, Savings (else None), by name."""
    if not path.is_file():
        got = "is a folder" if path.is_dir() else "no such file"
        raise failures.Failure(f"{path}: {got}; expected an ONNX model, a model file or a bundle")
    if path.suffix == ".onnx":
        from vmhost.compiler import compile_onnx

        return {path.stem: compile_onnx(path)[:2]}
    data = path.read_bytes()
    if data[:8] == b"VMEMODEL":
        return {path.stem: (data, None)}
    from vmhost.bytecode.format import read_bundle

    models = read_bundle(path, trust=store, allow_unsigned=True).models
    if only is not None and only not in models:
        raise failures.Failure(f"{path}: there is no model {only!r}; there are {', '.join(models) or 'none'}")
    if not models:
        raise failures.Failure(f"{path}: this bundle has no models (task.yaml, models)")
    return {name: (models[name], None) for name in (models if only is None else [only])}


def _explained(name, data, savings, runs, threads, search, sizes):
    """The description of a model, in plain values."""
    from vmhost.engine.models import opened

    try:
        model = opened(name, data, threads=threads, search=search)
    except ValueError as error:
        raise failures.Failure(f"{name}: {error}", failures.REFUSED, "BundleError") from error
    try:
        shapes = model.shapes_at(sizes)
        inputs = {port.name: _input(shapes[port.name], port.dtype) for port in model.inputs}
        model.run(inputs)
    except ValueError as error:
        raise failures.Failure(str(error)) from error
    profiles = [model.run(inputs, profile=True)[1] for _ in range(runs)]
    steps = []
    for number, step in enumerate(profiles[0]):
        steps.append(
            {
                "name": step.name,
                "kind": step.kind,
                "algorithm": step.algorithm,
                "dtype": str(step.dtype),
                "shape": list(step.shape),
                "products": step.products,
                "bytes": step.bytes,
                "expected_ms": step.expected_ms,
                "ms": min(profile[number].ms for profile in profiles),
            }
        )
    return {
        "name": name,
        "inputs": [_port(port) for port in model.inputs],
        "outputs": [_port(port) for port in model.outputs],
        "steps": steps,
        "lowering": None if savings is None else savings.plain(),
        "compiled": None if savings is None else str(savings),
        "in_place": _in_place(steps),
        "backends": model.backends,
        "expected_ms": sum(step["expected_ms"] for step in steps),
        "ms": sum(step["ms"] for step in steps),
    }


def _in_place(steps):
    """Steps that take no time, because their neighbours read or write the data in place."""
    idle = [step for step in steps if step["algorithm"] == "nothing"]
    return {"steps": len(idle), "bytes": sum(step["bytes"] for step in idle)}


def _port(port):
    return {"name": port.name, "dtype": str(port.dtype), "shape": list(port.shape)}


def _texts(shape):
    """Nested lists of empty texts."""
    return [_texts(shape[1:]) for _ in range(shape[0])] if shape else ""


def _input(shape, dtype):
    """Random numbers for floats; else zeros, which are valid indices."""
    import vmhost.engine.numpy as np

    if dtype == "str":
        return _texts(shape)
    if not str(dtype).startswith("float"):
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _show(output, model):
    inputs = ", ".join(f"{port['name']} {port['dtype']}{port['shape']}" for port in model["inputs"])
    outputs = ", ".join(f"{port['name']} {port['dtype']}{port['shape']}" for port in model["outputs"])
    output.line(f"{model['name']}: {inputs} -> {outputs}", style="bold")
    if model["compiled"] is not None:
        output.line(f"compiled: {model['compiled']}")
    if model["in_place"]["steps"]:
        idle = model["in_place"]
        output.line(
            f"prepared: {idle['steps']} of {len(model['steps'])} steps take no time ({idle['bytes'] / 1024:.1f} KiB)"
        )
    chosen, *others = (f"{name} {ms:.2f} ms" for name, ms in model["backends"].items())
    output.line(
        f"backend: {chosen}{f', chosen over {" and ".join(others)}' if others else ''}, as expected on one core"
    )
    rows = [
        [
            step["kind"],
            step["algorithm"],
            step["name"],
            "x".join(map(str, step["shape"])),
            f"{step['products'] / 1e6:.1f}" if step["products"] else "",
            f"{step['bytes'] / 1024:.0f}",
            f"{step['expected_ms']:.3f}",
            f"{step['ms']:.3f}",
        ]
        for step in model["steps"]
    ]
    rows.append(["all", "", "", "", "", "", f"{model['expected_ms']:.3f}", f"{model['ms']:.3f}"])
    output.table(
        "", ["operator", "algorithm", "node", "makes", "10^6 products>", "KiB>", "expected ms>", "least ms>"], rows
    )


def draw(explained, path):
    """Draws one panel per model: a bar for each step's time, coloured by its algorithm, and a mark for the expected
    time. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [[step for step in model["steps"] if step["algorithm"] != "nothing"] for model in explained]
    heights = [max(1.6, 0.19 * len(steps) + 0.9) for steps in shown]
    figure, panels = pyplot.subplots(
        len(explained), 1, figsize=(11, sum(heights)), squeeze=False, height_ratios=heights, layout="constrained"
    )
    for model, steps, panel in zip(explained, shown, panels.flat):
        algorithms = list(dict.fromkeys(step["algorithm"] for step in steps))
        rows = range(len(steps))
        for number, algorithm in enumerate(algorithms):
            own = [row for row in rows if steps[row]["algorithm"] == algorithm]
            panel.barh(
                own,
                [steps[row]["ms"] for row in own],
                color=_COLOURS[number % len(_COLOURS)],
                label=algorithm or "one way only",
            )
        panel.plot([step["expected_ms"] for step in steps], rows, "k|", markersize=9, label="expected, on one core")
        labelled_ms = _LABELLED * model["ms"]
        panel.set_yticks(
            list(rows),
            [f"{step['kind']} {step['name'] if step['ms'] >= labelled_ms else ''}".strip() for step in steps],
            fontsize=7,
        )
        panel.set_ylim(len(steps) - 0.4, -0.6)
        panel.set_title(
            f"{model['name']}: {model['ms']:.2f} ms, expected {model['expected_ms']:.2f} ms", fontsize=10, loc="left"
        )
        panel.set_xlabel("ms, minimum of the runs", fontsize=8)
        panel.tick_params(axis="x", labelsize=8)
        panel.legend(fontsize=8, loc="best", frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=80)
    except (OSError, ValueError) as error:
        raise failures.Failure(f"{path}: the picture cannot be written here: {error}") from error
    finally:
        pyplot.close(figure)
