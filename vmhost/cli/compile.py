"""`vmhost compile`: task folders become bundles. `tools/compile_cloud.py` is this command as a script."""

import dataclasses
import os
from pathlib import Path

import click

from vmhost.cli import failures, inspect, keys


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER...")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(),
    help="The bundle to write, or a folder for several. [default: NAME.vmb here]",
)
@click.option("--target", help="The Python version to compile for. [default: that in task.yaml]")
@click.option("--optimize", type=click.IntRange(0, 2), default=0, show_default=True, help="As in python -O.")
@click.option("--sign", metavar="KEY", help="A key's name, or the file of one (see: vmhost keys).")
@click.option(
    "--record",
    "script",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A script that uses the task: source texts that packages compile while it runs are compiled into the bundle.",
)
@click.option(
    "--with",
    "packages",
    metavar="PKG",
    multiple=True,
    help='A package besides the requirements in task.yaml, such as "networkx>=3"; may be repeated.',
)
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option("--check", is_flag=True, help="FOLDERs are ONNX files: report everything unsupported, and write nothing.")
@failures.command
def command(output, folders, path, target, optimize, sign, script, packages, strict, check):
    """Compile task FOLDERs into signed bundles."""
    if check:
        return _check_models(output, folders)
    from vmhost.bytecode.format import read_bundle
    from vmhost.bytecode.recording import RECORD_NAME
    from vmhost.compiler import compile_folder

    key = keys.signing_key(sign) if sign else None
    names_folder = path is not None and path.endswith(os.sep)  # a Path has no such end
    path = None if path is None else Path(path)
    into_folder = path is not None and (len(folders) > 1 or path.is_dir() or names_folder)
    if len(folders) > 1 and path is not None and (path.is_file() or (path.suffix == ".vmb" and not path.is_dir())):
        raise failures.Failure(f"{path}: is a file; with several task folders -o names a folder")
    written, source_of, saved = [], {}, {}
    with output.progress() as progress:
        for folder in progress.track(folders, description="compiling"):
            if not folder.is_dir():
                if folder.exists():
                    raise failures.Failure(f"{folder}: is a file; give the folder that holds task.yaml")
                advice = failures.did_you_mean(folder) or "; give the folder that holds task.yaml"
                raise failures.Failure(f"{folder}: no such folder{advice}")
            compiled = compile_folder(
                folder,
                target=target,
                optimize=optimize,
                strict=strict,
                script=script,
                with_packages=packages,
            )
            if compiled.recorded is not None:
                remark = f"{folder / RECORD_NAME}: {compiled.recorded} texts that were compiled while {script} ran"
                output.remark(remark)
            data = compiled.to_bytes(key)
            bundle = read_bundle(data, allow_unsigned=True)
            bundle.verify()  # the host that gets it would refuse an invalid one
            name = f"{bundle.manifest.name}.vmb"
            target_path = (path / name if into_folder else path) if path is not None else Path(name)
            if target_path in source_of:
                raise failures.Failure(
                    f"{folder}: {target_path} was already written for {source_of[target_path]}; give each task a "
                    "name of its own in task.yaml"
                )
            source_of[target_path] = folder
            _write(target_path, data)
            warnings = [str(warning) for warning in compiled.warnings]
            saved[str(target_path)] = compiled
            written.append(
                inspect.summary(bundle, target_path, len(data))
                | {"signed_with": sign, "warnings": warnings}
                | {"savings": {name: savings.plain() for name, savings in compiled.savings.items()}}
                | {"trained": {name: list(weights) for name, weights in compiled.trained.items()}}
                | {"packages": [_plain(each) for each in compiled.included]}
                | {"absent": [dataclasses.asdict(each) for each in compiled.absent]}
            )
    output.document({"bundles": written})
    for summary in written:
        for warning in summary["warnings"]:
            output.remark(f"warning: {warning}", style="yellow")
        modules = "1 module" if len(summary["modules"]) == 1 else f"{len(summary['modules'])} modules"
        signed = f"signed with {sign}" if sign else "not signed"
        output.line(
            f"{summary['path']}: {summary['task']}, {inspect.size_text(summary['bytes'])}, "
            f"{modules}, Python {summary['target']}, {signed}"
        )
        compiled = saved[summary["path"]]
        for name, savings in compiled.savings.items():
            output.line(f"model {name}: {savings}")
        for name, weights in compiled.trained.items():
            output.line(f"model {name}: trains {', '.join(weights)}")
        _report_packages(output, compiled)


def _check_models(output, paths):
    """Reports for each ONNX file whether it compiles, and every obstacle: a line for each operator and cause, grouped
    by remedy."""
    from vmhost.engine.models import opened
    from vmhost.engine.onnx import OnnxError, compiled

    found = []
    with output.progress() as progress:
        for path in progress.track(paths, description="checking"):
            if not path.is_file():
                raise failures.Failure(f"{path}: no such file{failures.did_you_mean(path)}; --check takes ONNX files")
            try:
                made = compiled(path.read_bytes(), str(path), path.parent)
                model = opened(str(path), made.data)
            except OnnxError as error:
                remedies = {}
                for message in error.messages:
                    remedies.setdefault(getattr(message, "remedy", None), []).append(str(message))
                groups = [{"remedy": remedy, "lacks": lacks} for remedy, lacks in remedies.items()]
                lacks = [message for group in groups for message in group["lacks"]]
                found.append({"model": str(path), "compiles": False, "lacks": lacks, "groups": groups})
                continue
            ports = {
                key: [{"name": port.name, "dtype": str(port.dtype), "shape": list(port.shape)} for port in of_model]
                for key, of_model in (("inputs", model.inputs), ("outputs", model.outputs))
            }
            found.append({"model": str(path), "compiles": True, "lacks": [], **ports, "saved": str(made.savings)})
    output.document({"models": found})
    for each in found:
        output.line(f"{each['model']}: {'compiles' if each['compiles'] else 'does not compile'}")
        for group in each.get("groups", ()):
            for message in group["lacks"]:
                output.line(f"  {message}")
            if group["remedy"]:
                output.line(f"    what to do: {group['remedy']}")
        for key in ("inputs", "outputs"):
            for port in each.get(key, ()):
                output.line(f"  {key[:-1]} {port['name']}: {port['dtype']} ({', '.join(map(str, port['shape']))})")
    return 0 if all(each["compiles"] for each in found) else failures.REFUSED


def _plain(included):
    package = included.package
    return {
        "name": package.name,
        "version": package.version,
        "licence": package.licence,
        "modules": included.modules,
        "files": included.files,
        "bytes": included.bytes,
    }


def _report_packages(output, compiled):
    """Reports what was included of the packages, and what was not, and why."""
    for each in compiled.included:
        package = each.package
        what = f"{each.modules} modules" if each.modules != 1 else "1 module"
        what += f", {each.files} files" if each.files > 1 else ""
        came = f"{what}, {inspect.size_text(each.bytes)}" if each.modules else "nothing imports it; left out"
        output.line(f"package {package.name} {package.version} ({package.licence}): {came}")
    for absent in compiled.absent:
        if absent.names and not absent.where:
            continue  # nothing shows that it is imported
        output.line(f"absent {absent.name}: {absent.reason} (imported by {absent.where})")


def _write(path, data):
    from vmhost.bytecode.replacing import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise failures.Failure(f"{path}: cannot write the bundle: {error.strerror}") from error
