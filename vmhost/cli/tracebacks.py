"""Tracebacks of tasks, with the source lines put back in where the task's folder is at hand.

A bundle holds no source, so a guest's traceback has file names (`digits@1.0.0/main.py`) and line numbers only. Lines
are shown only from a folder that compiles to the very code of the bundle: a line of another version would mislead.
"""

import re
from pathlib import Path

_FRAME = re.compile(r'^(?P<indent> *)File "(?P<task>[^"/]+@[^"/]+)/(?P<path>[^"]+)", line (?P<line>\d+)')


def with_source(traceback, folder):
    """The text of a guest's traceback with each frame's line from `folder`, a path, below it."""
    lines = traceback.splitlines()
    shown = []
    for number, line in enumerate(lines):
        shown.append(line)
        frame = _FRAME.match(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if frame and not following.startswith(frame["indent"] + "  "):
            source = _line(folder / frame["path"], int(frame["line"]))
            if source:
                shown.append(f"{frame['indent']}  {source}")
    return "\n".join(shown)


def source_folder(bundle, given=None):
    """The folder that `bundle` (a Bundle) was compiled from: `given`, or one found from here; None if none matches it.

    Looked at, when none is given: the current folder, `NAME` and `tasks/NAME` in it.
    """
    name = bundle.manifest.name
    for folder in [given] if given else [Path("."), Path(name), Path("tasks") / name]:
        if (folder / "task.yaml").is_file() and _compiles_to(folder, bundle):
            return folder
    return None


def _compiles_to(folder, bundle):
    import yaml

    from vmhost.bytecode.errors import BytecodeError
    from vmhost.compiler import compile_folder

    try:
        spec = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        if not isinstance(spec, dict) or spec.get("name") != bundle.manifest.name:
            return False
        compiled = compile_folder(folder, target=bundle.manifest.target, optimize=bundle.manifest.optimize)
        return compiled.modules == bundle.modules
    except BytecodeError, OSError, UnicodeDecodeError, yaml.YAMLError:
        return False


def _line(path, number):
    try:
        return path.read_text(encoding="utf-8").splitlines()[number - 1].strip()
    except OSError, UnicodeDecodeError, IndexError:
        return None
