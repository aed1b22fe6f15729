"""`vmhost dashboard`: the dashboard of a host that runs the shipped tasks all the time, as a demonstration.

`vmhost serve FOLDER --dashboard ADDRESS` has the same pages for one's own bundles.
"""

import contextlib
import tempfile
import webbrowser
from pathlib import Path

import click

from vmhost.cli import failures, interrupts, quantities
from vmhost.operations.server import DEFAULT_LISTEN

_COVERAGE = 0.02  # the share of calls whose lines are recorded


@click.command(short_help="Show the dashboard of a host under load.")
@click.option(
    "--listen", default=DEFAULT_LISTEN, show_default=True, type=quantities.Address(), help="Port 0: a free one."
)
@click.option("--no-token", is_flag=True, help="Ask for no token; loopback addresses only.")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@click.option("--tasks", "folder", type=click.Path(path_type=Path), help="The folder with the shipped tasks.")
@click.option(
    "--for", "duration_s", type=quantities.Time(), help='End after this long, as in "30 s". [default: at Ctrl-C]'
)
@failures.command
def command(output, listen, no_token, open_browser, folder, duration_s):
    """Run the shipped tasks under a steady load, a runaway and a memory hog among them, and serve the dashboard."""
    import vmhost
    import vmhost.operations.application  # noqa: F401  (fails before the tasks are compiled where packages are missing)
    from vmhost.cli import demo, demonstration
    from vmhost.operations.server import checked

    checked(listen, False if no_token else None)
    folder = demo.tasks_folder(folder)
    with tempfile.TemporaryDirectory(prefix="vmhost-dashboard-") as bundles:
        output.remark("Compiling and signing the tasks")
        trust, names, asked = demonstration.compiled(folder, Path(bundles))
        policy = vmhost.Policy(grace_s=demonstration.GRACE_S, task=vmhost.TaskPolicy(coverage=_COVERAGE))
        sources = [folder / name for name in names]
        with vmhost.Host(trust=trust, policy=policy) as host:
            for name in names:
                host.load(Path(bundles) / f"{name}.vmb")
            with (
                served(output, host, listen, no_token, open_browser, sources),
                demonstration.steady_load(host, asked),
            ):
                interrupts.sleep(duration_s)
    return failures.DONE


@contextlib.contextmanager
def served(output, host, listen, no_token=False, open_browser=False, sources=()):
    """Serves the dashboard of `host` within the block; prints its address on stderr."""
    from vmhost.operations import Dashboard

    with Dashboard(host, listen, token=False if no_token else None, sources=sources) as dashboard:
        output.remark(f"Dashboard: {dashboard.url}")
        if output.as_json:
            output.document({"url": dashboard.url, "token": dashboard.token})
        if open_browser:
            webbrowser.open(dashboard.url)
        yield dashboard
