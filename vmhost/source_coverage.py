"""Maps coverage of VMs to the sources of tasks, for coverage.py's reports.

Bundles have no sources (vmhost/coverage.py). This needs the package coverage, of the extra `coverage`.
"""

import contextlib
import dis
import marshal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from vmhost.coverage import Coverage
from vmhost.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@contextlib.contextmanager
def report_of(
    ran: Coverage, tasks: "Sequence[TaskSources]", data_file: Path | None = None
) -> "Iterator[tuple[Any, dict[Path, Any], list[str]]]":
    """(coverage.py's Coverage of these tasks, their source files with arcs, names of tasks in `ran` without sources
    here). `data_file`: where its data stays. ConfigurationError: the sources do not match; ImportError."""
    try:
        import coverage
    except ModuleNotFoundError as error:
        raise ImportError(
            "reports need the package coverage: pip install 'vmhost[coverage]'", name="coverage"
        ) from error
    arcs: dict[Path, Any] = {}
    for task in tasks:
        arcs |= task.arcs_of(ran)
    prefixes = tuple(task.prefix for task in tasks)
    unknown = {file.partition("/")[0] for file, _, _ in ran.functions if not file.startswith(prefixes)}
    with tempfile.TemporaryDirectory() as folder:
        at = data_file if data_file is not None else Path(folder) / "coverage"
        at.unlink(missing_ok=True)
        written = coverage.CoverageData(basename=str(at))
        written.add_arcs({str(path): found for path, found in arcs.items()})
        written.touch_files([str(path) for path in arcs])
        written.write()
        written.close(force=True)
        report = coverage.Coverage(data_file=str(at), branch=True, config_file=False)
        report.load()
        try:
            yield report, arcs, sorted(unknown)
        finally:
            report.get_data().close(force=True)


class TaskSources:
    """The sources in a task's folder, compiled again: the same sources give the same bytecode, so offsets match.
    `prefix`: of their file names in a Coverage, as in "task@1.0.0/". ConfigurationError."""

    def __init__(self, folder):
        from vmhost.bytecode.errors import BytecodeError

        try:
            self._compile(folder)
        except BytecodeError as error:
            raise ConfigurationError(str(error)) from error

    def _compile(self, folder):
        from vmhost.bytecode.closure import close_over_folder, is_installed
        from vmhost.bytecode.compiler import compile_source, module_path
        from vmhost.bytecode.spec import read_task

        spec = read_task(folder)
        self._folder = Path(folder)
        self.prefix = f"{spec.name}@{spec.version}/"
        self._codes, self._paths = {}, {}
        for name, source in close_over_folder(spec.folder, spec.entry_module).sources.items():
            if is_installed(source):
                continue
            file = f"{self.prefix}{module_path(name, source.is_package)}.py"
            self._paths[file] = Path(source.path).resolve()
            code = compile_source(source.text, file, source.path, 0, [])
            for each in _with_nested(marshal.loads(code)):
                self._codes[file, each.co_qualname, each.co_firstlineno] = each

    @property
    def files(self) -> dict[str, Path]:
        """The path of each source file, by its name in a Coverage."""
        return dict(self._paths)

    def arcs_of(self, coverage):
        """{path of a source file: [(line, line), ...]} in coverage.py's form: an arc from a line to itself means that
        it ran. Includes source files of which nothing ran. ConfigurationError: the sources do not match."""
        arcs = {path: set() for path in self._paths.values()}
        for (file, name, first), ran in coverage.functions.items():
            if not file.startswith(self.prefix) or file not in self._paths:
                continue
            code = self._codes.get((file, name, first))
            if code is None:
                raise ConfigurationError(
                    f"{self._folder}: has no {name} in line {first} of {file}: these are not the sources of "
                    f"{self.prefix.rstrip('/')}; check out that version"
                )
            found = arcs[self._paths[file]]
            found |= {(line, line) for line in ran.lines}
            found |= _Lines(code).arcs(ran)
        return {path: sorted(found) for path, found in arcs.items()}


def _with_nested(code):
    yield code
    for each in code.co_consts:
        if hasattr(each, "co_code"):
            yield from _with_nested(each)


class _Lines:
    """Maps byte offsets of a code object to lines."""

    _ALWAYS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    _ENDS = {"RERAISE", "RAISE_VARARGS"}

    def __init__(self, code):
        self._exit = -code.co_firstlineno
        self._steps = list(dis.get_instructions(code))
        self._index = {step.offset: number for number, step in enumerate(self._steps)}

    def arcs(self, ran):
        found = set()
        for begin, end in ran.branches:
            found |= self._branch(begin, end)
        for at in ran.returns:
            line = self._line(at)
            found |= {(line, self._exit)} if line else set()
        return found

    def _line(self, offset):
        number = self._index.get(offset)
        return self._steps[number].positions.lineno if number is not None else None

    def _branch(self, begin, end):
        """The arc from a branch to the next line, following unconditional jumps; none if another branch comes first,
        which is recorded itself."""
        line, number, seen = self._line(begin), self._index.get(end), set()
        while line and number is not None and number < len(self._steps) and number not in seen:
            seen.add(number)
            step = self._steps[number]
            if step.positions.lineno and step.positions.lineno != line:
                return {(line, step.positions.lineno)}
            if step.opname in self._ALWAYS:
                number = self._index.get(step.jump_target)
            elif step.opname == "RETURN_VALUE":
                return {(line, self._exit)}
            elif step.jump_target is not None or step.opname in self._ENDS:
                break
            else:
                number += 1
        return set()
