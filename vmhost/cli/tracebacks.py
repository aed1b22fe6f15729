"""Tracebacks of tasks, with source lines if the task's folder is available.

A bundle has no sources, so a guest's traceback has only file names (`digits@1.0.0/main.py`) and line numbers. Lines are
shown only from a folder that compiles to exactly the bundle's code: a line of another version would mislead.
"""

import re
from pathlib import Path

_FRAME = re.compile(r'^(?P<indent> *)File "(?P<task>[^"/]+@[^"/]+)/(?P<path>[^"]+)", line (?P<line>\d+)')


def with_source(traceback, folder):
    """The text of a guest's traceback, with the source line below each frame, from the path `folder`."""
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
    """The folder that `bundle` (a Bundle) was compiled from: `given`, or one found here; None if none matches it.

    Candidates, if none is given: the current folder, and `NAME` and `tasks/NAME` in it.
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
    from vmhost.settings.files import plain_yaml

    try:
        spec = plain_yaml((folder / "task.yaml").read_text(encoding="utf-8"))
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
