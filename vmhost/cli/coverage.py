"""`vmhost coverage`: coverage in VMs, mapped to the sources: a table, and coverage.py's files, XML and HTML."""

import contextlib
import io
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
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit with code 3 below this percentage.")
@failures.command
def command(output, data, folders, data_file, xml, html, fail_under):
    """Show which lines and branches of tasks ran, from DATA written by Coverage.save (Host.coverage)."""
    from vmhost.coverage import Coverage
    from vmhost.errors import ConfigurationError
    from vmhost.source_coverage import TaskSources, report_of

    all_of_it = Coverage()
    for path in data:
        try:
            all_of_it.merge(Coverage.load(path))
        except OSError as error:
            raise failures.Failure(f"{path}: {error.strerror}") from error
    try:
        tasks = [TaskSources(folder) for folder in folders]
        with report_of(all_of_it, tasks, data_file) as (report, arcs, unknown):
            for name in unknown:
                output.remark(f"{name}: left out; name its folder with --source to have it in the report")
            text = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()):
                percent = report.report(file=text, show_missing=True)
                if xml is not None:
                    report.xml_report(outfile=str(xml))
                if html is not None:
                    report.html_report(directory=str(html))
            rows = {str(path): _row(report, path) for path in arcs}
    except ConfigurationError as error:
        raise failures.Failure(str(error)) from error
    output.document({"percent": percent, "files": rows})
    output.line(text.getvalue().rstrip())
    if fail_under is not None and percent < fail_under:
        output.error(f"{percent:.2f} % of lines and branches ran, less than {fail_under:g} %")
        return failures.REFUSED
    return failures.DONE


def _row(report, path):
    _, statements, _, missing, _ = report.analysis2(str(path))
    return {"statements": len(statements), "missing": list(missing)}
