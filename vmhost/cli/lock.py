"""`vmhost lock`: pins the packages that a task or a script requires, with hashes."""

from pathlib import Path

import click

from vmhost.cli import failures


@click.command(short_help="Pin the packages that a task or a script requires.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FOLDER|SCRIPT")
@click.option(
    "--with",
    "packages",
    metavar="PKG",
    multiple=True,
    help="A package besides the requirements in task.yaml, as for `vmhost compile`; may be repeated.",
)
@click.option("--upgrade", is_flag=True, help="Use the newest versions, even where the old ones still fit.")
@failures.command
def command(output, path, packages, upgrade):
    """Pin the packages that the task in FOLDER requires, in requirements.lock next to its task.yaml.

    For a SCRIPT, the packages in its block `# /// script` are pinned in SCRIPT.requirements.lock next to it.
    """
    from vmhost.bytecode.packages import lock, lock_of

    requirements = _of_script(path, packages) if path.is_file() else _of_task(path, packages)
    before = lock_of(requirements)
    written = lock(requirements, upgrade)
    pins = lock_of(requirements)
    output.document({"lock": str(written), "packages": pins})
    for name, version in pins.items():
        old = before.get(name)
        output.line(f"{name} {version}" + (f" (was {old})" if old not in (None, version) else ""))
    for name in sorted(before.keys() - pins.keys()):
        output.line(f"{name}: no longer needed")


def _of_task(folder, packages):
    from vmhost.bytecode.packages import Requirements
    from vmhost.bytecode.spec import read_task

    if not folder.exists():
        raise failures.Failure(f"{folder}: no such folder or script{failures.did_you_mean(folder)}")
    spec = read_task(folder)
    requirements = Requirements.of_task(spec, packages)
    if not requirements.names:
        raise failures.Failure(f"{spec.file}: names no requirements; there is nothing to lock")
    return requirements


def _of_script(path, packages):
    from vmhost.bytecode.packages import Requirements
    from vmhost.bytecode.script_block import read_script_block

    if path.name == "task.yaml":
        raise failures.Failure(f"{path}: give the folder that holds it")
    if packages:
        raise failures.Failure(f"{path}: --with is for tasks; add the packages to the block `# /// script`")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise failures.Failure(f"{path}: can't be read: {reason}") from error
    block = read_script_block(text, path)
    if block is None:
        raise failures.Failure(f"{path}: has no block `# /// script` that says what it requires; nothing to lock")
    requirements = Requirements.of_script(path, block)
    if not requirements.names:
        raise failures.Failure(f"{path}:{block.line}: requires no packages; there is nothing to lock")
    return requirements
