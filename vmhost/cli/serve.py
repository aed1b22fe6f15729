"""`vmhost serve`: the bundles in a folder, called by lines of JSON on stdin; answers are lines of JSON on stdout."""

import contextlib
import functools
import logging
import signal
import sys
from pathlib import Path

import click

from vmhost.cli import failures, quantities
from vmhost.cli.dashboard import served
from vmhost.cli.run import check_settings, guest_log, open_host
from vmhost.lines import requests, stdout

_CHILD_MARGIN_S = 10.0  # for a supervised process, beyond the time of its calls
_log = logging.getLogger("vmhost")


class _Command(click.Command):
    """With the keys of --settings in its help."""

    def format_epilog(self, ctx, formatter):
        from vmhost.settings.host import HOST

        super().format_epilog(ctx, formatter)
        with formatter.section("Keys of --settings (docs/host-yaml.md)"):
            formatter.write_dl([(key, setting.words) for key, setting in HOST.settings.items()])


@click.command(cls=_Command, short_help="Serve the bundles in FOLDER: calls and answers are lines of JSON.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to trust. [default: vmhost keys trust]"
)
@click.option("--allow-unsigned", is_flag=True, help="Also serve unsigned bundles.")
@click.option("--settings", "settings_file", type=click.Path(path_type=Path), help="A host.yaml for the host.")
@click.option("--dashboard", type=quantities.Address(), help="Serve pages and metrics there, as in 127.0.0.1:9464.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A task's folder, for the dashboard's coverage page.",
)
@click.option("--state", type=click.Path(path_type=Path), help="A folder for lasting state, without --settings.")
@click.option("--supervise", is_flag=True, help="After a crash, make a report and continue with a new process.")
@click.option(
    "--grace",
    "grace_s",
    default="30 s",
    show_default=True,
    type=quantities.Time(),
    help="How long calls may take after SIGTERM or Ctrl-C.",
)
@click.option("--numbered", is_flag=True, hidden=True, help="Number the answers, for a supervisor.")
@click.option("--crash-webhook", metavar="URL", help="Send crash reports there, as JSON by POST.")
@click.option("--crash-sentry", metavar="DSN", help="Send crash reports to Sentry, or a compatible server.")
@failures.command
def command(
    output,
    folder,
    trust,
    allow_unsigned,
    settings_file,
    dashboard,
    sources,
    state,
    supervise,
    grace_s,
    numbered,
    crash_webhook,
    crash_sentry,
):
    """Serve the bundles in FOLDER until stdin ends. A line {"id": 1, "task": "digits", "input": VALUE} is answered with
    {"id": 1, "result": VALUE}, or {"id": 1, "error": {...}}. Changes in the folder take effect at once.

    SIGTERM and Ctrl-C end it when the calls that it has are answered, a second Ctrl-C at once. SIGHUP reads the file of
    --settings again."""
    from vmhost.lines.folder_server import FolderServer
    from vmhost.lines.signals import Signals

    check_settings(settings_file, trust, allow_unsigned, state)
    if crash_webhook is not None and not crash_webhook.startswith(("http://", "https://")):
        raise failures.Failure(f"--crash-webhook: expected an address that begins with http, got {crash_webhook!r}")
    if dashboard is not None:
        import vmhost.operations.application  # noqa: F401  (fails before bundles are loaded where packages are missing)
    receivers = {"webhook": crash_webhook, "senders": _senders(crash_sentry)}
    if supervise:
        options = (("--settings", settings_file), ("--state", state), ("--dashboard", dashboard))
        options += (("--grace", f"{grace_s:f}"),)  # no exponent, which the option does not know
        arguments = [str(part) for name, value in options if value is not None for part in (name, value)]
        arguments += [part for path in trust for part in ("--trust", str(path))]
        arguments += [part for path in sources for part in ("--source", str(path))]
        arguments += ["--allow-unsigned"] * allow_unsigned
        with Signals(grace_s + _CHILD_MARGIN_S) as signals:
            return _supervise(output, [str(folder), *arguments], state or _state_of(settings_file), receivers, signals)
    with (
        Signals(grace_s) as signals,
        guest_log(output),
        open_host(settings_file, trust, allow_unsigned, state) as host,
        contextlib.ExitStack() as stack,
    ):
        if host.state is not None:
            from vmhost.operations.crash_reports import CrashFolder

            CrashFolder(host.state, masking=host.policy.masking(), **receivers).collect()
        reload = functools.partial(_reload, host, settings_file) if settings_file is not None else None
        server = FolderServer(host, folder, sys.stdout, reload=reload, numbered=numbered)
        if dashboard is not None:
            stack.enter_context(served(output, host, dashboard, sources=sources))
        ended_by = server.run(requests.stdin_descriptor(), signals)
    server.check()  # reports a failure of the last answers, written while the host closed
    return failures.INTERRUPTED if ended_by == signal.SIGINT else failures.DONE


def _reload(host, settings_file):
    """Reads host.yaml again, and says what of it is not in force."""
    waiting = host.reload()
    if waiting:
        _log.warning("%s: read again; changes that need a restart: %s", settings_file, ", ".join(waiting))
    else:
        _log.info("%s: read again", settings_file)


def _state_of(settings_file):
    """The state folder in a host.yaml, or None."""
    if settings_file is None:
        return None
    import yaml

    from vmhost.settings.host import read_host_yaml

    try:
        return read_host_yaml(settings_file).state
    except yaml.YAMLError as error:
        raise failures.Failure(f"{settings_file}: {error}") from error


def _senders(dsn):
    if dsn is None:
        return {}
    from vmhost.operations.sentry import Sentry

    sentry = Sentry.of(dsn)
    return {sentry.address: sentry.send}


def _supervise(output, arguments, state, receivers, signals):
    """Runs this command with `arguments`, again after each crash."""
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

    command = [sys.executable, "-m", "vmhost", "serve", *arguments, "--numbered"]
    if sys.stdout is None:
        raise stdout.OutputError("stdout is closed")
    code = Supervisor(command, sys.stdout.buffer, crashed, signals).run(requests.stdin_descriptor())
    return failures.HOST_FAILED if code < 0 else code
