"""Compiles a task folder into a bundle.

    python tools/compile_cloud.py tasks/digits -o build/digits.vmb [--target 3.14] [--sign KEY] [--optimize N]
        [--strict] [--json]

Exit status: 0 the bundle is written; 1 the task, its sources, the key or the output are at fault, with one line for
each problem on standard error; 2 the command line is wrong. Warnings go to standard error and leave the status at 0,
unless --strict makes them errors. With --json, one JSON object on standard output says what was made or what is wrong.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vmhost.bytecode.errors import BytecodeError, CompileError, TaskSpecError
from vmhost.bytecode.format import TARGET, read_bundle
from vmhost.bytecode.signing import TrustStore, fingerprint, load_key
from vmhost.compiler import compile_folder


def main(arguments=None):
    """Runs the command line `arguments` (sys.argv's if None) and returns the exit status."""
    options = _parser().parse_args(arguments)
    out = options.out or Path(f"{options.task.resolve().name}.vmb")
    try:
        key = load_key(options.sign) if options.sign else None
        compiled = compile_folder(options.task, target=options.target, optimize=options.optimize, strict=options.strict)
        data = compiled.to_bytes(key)
        # What was just made must be readable by the host that will get it.
        bundle = read_bundle(data, TrustStore.of(key=key.public) if key else None, allow_unsigned=key is None)
        bundle.verify()
        _write(out, data)
    except (BytecodeError, OSError) as error:
        problems = _problems(error)
        if options.json:
            print(json.dumps({"ok": False, "errors": problems}))
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return 1
    warnings = [str(warning) for warning in compiled.warnings]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    manifest = bundle.manifest
    if options.json:
        print(
            json.dumps(
                {
                    "ok": True,
                    "bundle": str(out),
                    "name": manifest.name,
                    "version": manifest.version,
                    "entry": manifest.entry,
                    "target": manifest.target,
                    "bytes": len(data),
                    "digest": bundle.digest.hex(),
                    "signed_by": fingerprint(key.public) if key else None,
                    "modules": sorted(bundle.modules),
                    "files": sorted(bundle.files),
                    "texts": len(bundle.texts),
                    "warnings": warnings,
                    "models": {name: savings.plain() for name, savings in compiled.savings.items()},
                }
            )
        )
    else:
        signed = f"signed with {fingerprint(key.public)}" if key else "unsigned"
        print(
            f"{out}: {manifest.name} {manifest.version}, {len(bundle.modules)} modules, {len(bundle.files)} files, "
            f"{len(data):,} bytes, {signed}"
        )
        for name, savings in compiled.savings.items():
            print(f"model {name}: {savings}")
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="compile_cloud.py", description="Compile a task folder into a bundle.")
    parser.add_argument("task", type=Path, help="the task's folder, with its task.yaml")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the bundle (default: NAME.vmb here)")
    parser.add_argument(
        "--target", metavar="VERSION", help=f"the Python to compile for, instead of task.yaml's ({TARGET})"
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign with the private key in this file")
    parser.add_argument(
        "--optimize",
        type=int,
        choices=(0, 1, 2),
        default=0,
        metavar="N",
        help="as python -O: 1 drops assert, 2 docstrings too (default 0)",
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    return parser


def _problems(error):
    if isinstance(error, TaskSpecError):
        return list(error.problems)
    if isinstance(error, CompileError):
        return [str(diagnostic) for diagnostic in error.diagnostics]
    if isinstance(error, OSError):
        return [f"{error.filename}: {error.strerror}"]
    return [str(error)]


def _write(out, data):
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=out.parent, prefix=out.name)  # a reader sees the old or the new
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, out)
    except BaseException:
        os.unlink(unfinished)
        raise


if __name__ == "__main__":
    raise SystemExit(main())
