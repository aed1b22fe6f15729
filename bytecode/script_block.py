"""A script's metadata in comments (PEP 723): the packages that it requires.

    # /// script
    # requires-python = ">=3.14"
    # dependencies = ["networkx>=3"]
    # ///

Other keys (`tool.…`) belong to the programs that run scripts, such as uv.
"""

import re
import tomllib
from dataclasses import dataclass

from .errors import TaskSpecError

_BEGIN, _END = "# /// script", "# ///"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class ScriptBlock:
    """`dependencies` as the block lists them, and the `line` where they begin."""

    dependencies: tuple
    line: int

    def names(self):
        """The packages' names, normalised, without those that only some machines need."""
        return tuple(project_name(each) for each in self.dependencies if ";" not in each)


def project_name(requirement):
    """The package name in a requirement, normalised; None if there is none."""
    found = _NAME.match(requirement.strip())
    return re.sub(r"[-_.]+", "-", found.group()).lower() if found else None


def read_script_block(text, file):
    """The ScriptBlock in the `text` of a script, None if there is none; TaskSpecError for one that is broken."""
    lines = [line.rstrip() for line in text.split("\n")]
    begun = [number for number, line in enumerate(lines, 1) if line == _BEGIN]
    if not begun:
        return None
    first = begun[0]
    if len(begun) > 1:
        raise TaskSpecError([f"{file}:{begun[1]}: a second block `{_BEGIN}`; the first is at line {first}"])
    past = first
    while past < len(lines) and (lines[past] == "#" or lines[past].startswith("# ")):
        past += 1
    last = next((number for number in range(past, first, -1) if lines[number - 1] == _END), None)
    if last is None:
        message = f"the block `{_BEGIN}` has no end: each of its lines begins with `# `, the last is `{_END}`"
        raise TaskSpecError([f"{file}:{first}: {message}"])
    content = [line[2:] for line in lines[first : last - 1]]
    try:
        values = tomllib.loads("\n".join(content))
    except tomllib.TOMLDecodeError as error:
        place = f"{file}:{first + error.lineno}"
        raise TaskSpecError([f"{place}: the block `{_BEGIN}` is no TOML: {error.msg}"]) from error
    line = next((first + 1 + at for at, each in enumerate(content) if each.startswith("dependencies")), first)
    dependencies = values.get("dependencies", [])
    if type(dependencies) is not list or not all(type(each) is str for each in dependencies):
        raise TaskSpecError([f'{file}:{line}: dependencies: expected a list of texts such as ["networkx>=3"]'])
    wrong = [each for each in dependencies if project_name(each) is None]
    if wrong:
        raise TaskSpecError([f"{file}:{line}: dependencies: expected a package, got {each!r}" for each in wrong])
    return ScriptBlock(tuple(each.strip() for each in dependencies), line)
