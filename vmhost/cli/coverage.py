"""`vmhost coverage`: what ran in VMs, held against the sources: a table, and coverage.py's files, XML and HTML."""

import contextlib
import dis
import io
import marshal
import tempfile
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(short_help="Show which lines and branches of tasks ran.")
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DATA...")
@click.option(
    "--source",
    "folders",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A task's folder, as it was compiled.",
)
@click.option("--data-file", type=click.Path(path_type=Path), help="Write coverage.py's own file, as `.coverage`.")
@click.option("--xml", type=click.Path(path_type=Path), help="Write Cobertura's XML.")
@click.option("--html", type=click.Path(path_type=Path), help="Write HTML pages into this folder.")
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit code 1 below so many percent.")
@failures.command
def command(output, data, folders, data_file, xml, html, fail_under):
    """Show which lines and branches of tasks ran, by DATA that Coverage.save wrote (Host.coverage)."""
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.coverage import Coverage

    try:
        import coverage
    except ModuleNotFoundError as error:
        text = "reports need the package coverage: pip install 'vmhost[coverage]'"
        raise failures.Failure(text, failures.HOST_FAILED, "ImportError") from error
    all_of_it = Coverage()
    for path in data:
        try:
            all_of_it.merge(Coverage.load(path))
        except OSError as error:
            raise failures.Failure(f"{path}: {error.strerror}") from error
    try:
        tasks = [_Task(folder) for folder in folders]
    except BytecodeError as error:
        raise failures.Failure(str(error)) from error
    arcs, unknown = {}, set()
    for task in tasks:
        arcs |= task.arcs_of(all_of_it)
    for file, _, _ in all_of_it.functions:
        if not any(file.startswith(task.prefix) for task in tasks):
            unknown.add(file.partition("/")[0])
    for name in sorted(unknown):
        output.remark(f"{name}: left out; name its folder with --source to have it in the report")
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
        text = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()):
            percent = report.report(file=text, show_missing=True)
            if xml is not None:
                report.xml_report(outfile=str(xml))
            if html is not None:
                report.html_report(directory=str(html))
        rows = {str(path): _row(report, path) for path in arcs}
        report.get_data().close(force=True)
    output.document({"percent": percent, "files": rows})
    output.line(text.getvalue().rstrip())
    if fail_under is not None and percent < fail_under:
        output.error(f"{percent:.2f} % of lines and branches ran, less than {fail_under:g} %")
        return failures.REFUSED
    return failures.DONE


def _row(report, path):
    _, statements, _, missing, _ = report.analysis2(str(path))
    return {"statements": len(statements), "missing": list(missing)}


class _Task:
    """The sources of a task, compiled once more: bytecode is a function of them, so that offsets mean the same."""

    def __init__(self, folder):
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

    def arcs_of(self, coverage):
        """{path of a source: [(line, line), ...]} as coverage.py has them: what ran of a line is an arc to itself. All
        sources are there, also those of which nothing ran."""
        arcs = {path: set() for path in self._paths.values()}
        for (file, name, first), ran in coverage.functions.items():
            if not file.startswith(self.prefix) or file not in self._paths:
                continue
            code = self._codes.get((file, name, first))
            if code is None:
                raise failures.Failure(
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
    """From byte offsets of a code object to lines."""

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
        """The arc from a branch to the next line that is reached through jumps without a choice; none where another
        branch comes first, which is noted for itself."""
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
