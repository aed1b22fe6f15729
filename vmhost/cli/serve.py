"""`vmhost serve`: the bundles in a folder, called by lines of JSON on stdin; answers are lines of JSON on stdout."""

import contextlib
import sys
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.dashboard import served
from vmhost.cli.run import guest_log, open_host


@click.command(short_help="Serve the bundles in FOLDER: calls and answers are lines of JSON.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to trust. [default: vmhost keys trust]"
)
@click.option("--allow-unsigned", is_flag=True, help="Also serve bundles that nobody signed.")
@click.option("--host", "host_file", type=click.Path(path_type=Path), help="A host.yaml to set the host up from.")
@click.option("--dashboard", metavar="ADDRESS:PORT", help="Serve pages and metrics there, as in 127.0.0.1:9464.")
@failures.command
def command(output, folder, trust, allow_unsigned, host_file, dashboard):
    """Serve the bundles in FOLDER until stdin ends. A line {"id": 1, "task": "digits", "input": VALUE} gets the line
    {"id": 1, "result": VALUE}, or {"id": 1, "error": {...}}. Bundles that come, are replaced or go are noticed."""
    from vmhost.lines.folder_server import FolderServer

    with guest_log(output), open_host(host_file, trust, allow_unsigned) as host, contextlib.ExitStack() as stack:
        server = FolderServer(host, folder, sys.stdout)
        if dashboard is not None:
            stack.enter_context(served(output, host, dashboard))
        server.run(sys.stdin.fileno())
    server.check()  # the last answers came while the host closed
    return failures.DONE
