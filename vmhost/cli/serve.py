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
@click.option("--allow-unsigned", is_flag=True, help="Also serve unsigned bundles.")
@click.option("--host", "host_file", type=click.Path(path_type=Path), help="A host.yaml with the host's settings.")
@click.option("--dashboard", metavar="ADDRESS:PORT", help="Serve pages and metrics there, as in 127.0.0.1:9464.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A task's folder, for the dashboard's coverage page.",
)
@click.option("--state", type=click.Path(path_type=Path), help="A folder for lasting state, without --host.")
@click.option("--supervise", is_flag=True, help="After a crash, make a report and continue with a new process.")
@click.option("--crash-webhook", metavar="URL", help="Send crash reports there, as JSON by POST.")
@click.option("--crash-sentry", metavar="DSN", help="Send crash reports to Sentry, or a compatible server.")
@failures.command
def command(
    output,
    folder,
    trust,
    allow_unsigned,
    host_file,
    dashboard,
    sources,
    state,
    supervise,
    crash_webhook,
    crash_sentry,
):
    """Serve the bundles in FOLDER until stdin ends. A line {"id": 1, "task": "digits", "input": VALUE} is answered with
    {"id": 1, "result": VALUE}, or {"id": 1, "error": {...}}. Changes in the folder take effect at once."""
    from vmhost.lines.folder_server import FolderServer

    if state is not None and host_file is not None:
        raise failures.Failure("--state: with --host, name the folder in that file: `state: FOLDER`")
    if crash_webhook is not None and not crash_webhook.startswith(("http://", "https://")):
        raise failures.Failure(f"--crash-webhook: expected an address that begins with http, got {crash_webhook!r}")
    receivers = {"webhook": crash_webhook, "senders": _senders(crash_sentry)}
    if supervise:
        options = (("--host", host_file), ("--state", state), ("--dashboard", dashboard))
        arguments = [str(part) for name, value in options if value is not None for part in (name, value)]
        arguments += [part for path in trust for part in ("--trust", str(path))]
        arguments += [part for path in sources for part in ("--source", str(path))]
        arguments += ["--allow-unsigned"] * allow_unsigned
        return _supervise(output, [str(folder), *arguments], state or _state_of(host_file), receivers)
    with guest_log(output), open_host(host_file, trust, allow_unsigned, state) as host, contextlib.ExitStack() as stack:
        if host.state is not None:
            from vmhost.operations.crash_reports import CrashFolder

            CrashFolder(host.state, masking=host.policy.masking(), **receivers).collect()
        server = FolderServer(host, folder, sys.stdout)
        if dashboard is not None:
            stack.enter_context(served(output, host, dashboard, sources=sources))
        server.run(sys.stdin.fileno())
    server.check()  # reports a failure of the last answers, written while the host closed
    return failures.DONE


def _state_of(host_file):
    """The state folder in a host.yaml, or None."""
    if host_file is None:
        return None
    import yaml

    from vmhost.host_yaml import read_host_yaml

    try:
        return read_host_yaml(host_file).state
    except yaml.YAMLError as error:
        raise failures.Failure(f"{host_file}: {error}") from error


def _senders(dsn):
    if dsn is None:
        return {}
    from vmhost.operations.sentry import Sentry

    sentry = Sentry.of(dsn)
    return {sentry.address: sentry.send}


def _supervise(output, arguments, state, receivers):
    """Runs this command with `arguments`, again after each crash."""
    import signal
    import threading

    from vmhost.operations.crash_reports import CrashFolder
    from vmhost.operations.supervisor import Supervisor

    if state is None:
        raise failures.Failure("--supervise needs a state folder: give --state FOLDER, or `state` in host.yaml")
    reports = CrashFolder(state, **receivers)

    def crashed(pid, number):
        reports.take_dump()
        new_reports = [report for report in reports.collect() if report.pid == pid]
        message = new_reports[0].title if new_reports else f"process {pid} ended by signal {number}"
        output.remark(f"crash: {message}{f'; report {new_reports[0].id}' if new_reports else ''}")
        return message

    supervisor = Supervisor([sys.executable, "-m", "vmhost", "serve", *arguments], sys.stdout.buffer, crashed)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    code = supervisor.run(sys.stdin.buffer)
    return failures.HOST_FAILED if code < 0 else code
