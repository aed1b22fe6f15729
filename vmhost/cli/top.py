"""`vmhost top`: a running host's tasks as a live table, from its dashboard."""

import http.client
import json
import time
from urllib.parse import parse_qs, urlsplit

import click

from vmhost.cli import failures, quantities
from vmhost.operations.figures import RANKS, clock, count, duration, moment, rate, size

_COLUMNS = (
    "task",
    "version",
    "CPU>",
    "calls/s>",
    "errors/s>",
    "refused/s>",
    "p50>",
    "p99>",
    "memory>",
    "waiting>",
    "running>",
    "breaker",
)


@click.command(short_help="Show a running host's tasks, live.")
@click.argument("address", metavar="URL")
@click.option("--by", type=click.Choice(list(RANKS)), default="cpu", show_default=True, help="The ranking of tasks.")
@click.option(
    "--every", "every_s", type=quantities.Time(0.2, 3600), default="2 s", show_default=True, help="Time between looks."
)
@click.option("--once", is_flag=True, help="Print one table, and end.")
@click.option("--errors", is_flag=True, help="Print the last errors of each task, with tracebacks, and end.")
@failures.command
def command(output, address, by, every_s, once, errors):
    """Show the tasks of a running host, ranked, repeatedly, and the last error of those that fail.

    URL is the address printed by `vmhost serve FOLDER --dashboard ADDRESS`, with its token.
    """
    asked = _DashboardClient(address)
    if errors:
        values = asked.values(by)
        output.document({row["name"]: row["last_errors"] for row in values["tasks"]})
        for line in _all_errors(values):
            output.line(line)
        return failures.DONE
    if once or output.as_json or not output.console.is_terminal:
        values = asked.values(by)
        output.document(values)
        output.table(_title(values), _COLUMNS, _rows(values))
        for line in _last_errors(values):
            output.line(line)
        return failures.DONE
    from rich.live import Live

    from vmhost.cli import terminal

    with Live(console=output.console, screen=True, auto_refresh=False) as live:
        while True:
            values = asked.values(by)
            table = terminal.fitting(output.console, _title(values), _COLUMNS, _rows(values))
            live.update(terminal.below(table, _last_errors(values)), refresh=True)
            time.sleep(every_s)


class _DashboardClient:
    """The dashboard at an address."""

    def __init__(self, address):
        parts = urlsplit(address if "//" in address else f"//{address}", scheme="http")
        try:
            self._host, self._port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise failures.Failure(f"{address}: {error}") from error
        if parts.scheme != "http" or not self._host:
            raise failures.Failure(f"{address}: expected an address as in http://127.0.0.1:9464/?token=...")
        self._where = f"{self._host}:{self._port}"
        self._token = parse_qs(parts.query).get("token", [""])[0]

    def values(self, by):
        connection = http.client.HTTPConnection(self._host, self._port, timeout=10)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", f"/tasks.json?by={by}", headers=headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise failures.Failure(
                f"{self._where}: no dashboard answers: {getattr(error, 'strerror', None) or error}",
                failures.HOST_FAILED,
            ) from error
        finally:
            connection.close()
        if response.status == 401:
            raise failures.Failure(f"{self._where}: it asks for a token; give the whole address, with ?token=...")
        try:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            return json.loads(text)
        except ValueError as error:
            raise failures.Failure(
                f"{self._where}: not a dashboard of vmhost: {error}", failures.HOST_FAILED
            ) from error


def _title(values):
    totals = values["totals"]
    return (
        f"{values['vms']} VMs, {size(values['memory'])}; {rate(totals['rate'])} calls/s, "
        f"{rate(totals['errors'])} errors/s, {totals['cpu']:.2f} cores; "
        f"{totals['queued']} calls wait, {totals['running']} run"
    )


def _rows(values):
    return [
        (
            row["name"],
            row["version"],
            f"{row['cpu']:.2f}",
            rate(row["rate"]),
            rate(row["errors"]),
            rate(row["refused"]),
            duration(row["p50"]),
            duration(row["p99"]),
            size(row["memory"]),
            count(row["queued"]),
            count(row["running"]),
            row["breaker"] or "none",
        )
        for row in values["tasks"]
    ]


def _last_errors(values):
    """A line for each task that has failed."""
    return [
        f"{clock(error['ended'])} {error['message']}" for row in values["tasks"] for error in row["last_errors"][:1]
    ]


def _all_errors(values):
    """Lines with the last errors of all tasks and their tracebacks."""
    found = [error for row in values["tasks"] for error in row["last_errors"]]
    for error in found:
        yield f"{moment(error['ended'])} {error['outcome']} {error['message']}"
        yield from (f"    {line}" for line in error["traceback"].splitlines())
    if not found:
        yield "no call has failed"
