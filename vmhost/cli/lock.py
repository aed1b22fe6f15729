"""`vmhost lock`: pins the packages that a task requires, with hashes."""

from pathlib import Path

import click

from vmhost.cli import failures


@click.command(short_help="Pin the packages that the task in FOLDER requires.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--upgrade", is_flag=True, help="Take the newest versions, also where the old ones still fit.")
@failures.command
def command(output, folder, upgrade):
    """Pin the packages that the task in FOLDER requires in requirements.lock beside its task.yaml."""
    from vmhost.bytecode.packages import lock, lock_of
    from vmhost.bytecode.spec import read_task

    spec = read_task(folder)
    if not spec.requirements:
        raise failures.Failure(f"{spec.file}: names no requirements; there is nothing to lock")
    before = lock_of(spec)
    path = lock(spec, upgrade)
    pins = lock_of(spec)
    output.document({"lock": str(path), "packages": pins})
    for name, version in pins.items():
        old = before.get(name)
        output.line(f"{name} {version}" + (f" (was {old})" if old not in (None, version) else ""))
    for name in sorted(before.keys() - pins.keys()):
        output.line(f"{name}: no longer needed")
