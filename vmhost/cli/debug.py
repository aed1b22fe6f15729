"""`vmhost debug`: both ends of a remote debugging session (docs/remote-debugging.md).

At the device: offer, host, consent, sessions, end, revoke, audit, clock; STATE is the host's state folder. At the
client, with a link: open, config, logs, run, reports, fetch, end-session. `sign` makes a link with a key of one's own.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import click

from vmhost.cli import failures, links, quantities
from vmhost.cli.groups import Group

_POLL_S = 0.3
_LEVELS = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
_STATE = click.argument("state", metavar="STATE", type=click.Path(path_type=Path, exists=True, file_okay=False))
_LINK = click.argument("link", metavar="LINK")


@click.group(cls=Group)
def command():
    """Debug a host remotely, by a link, with consent at the device."""


@contextlib.contextmanager
def _errors():
    from vmhost.bytecode.errors import SigningError
    from vmhost.debug_links import LinkError
    from vmhost.operations.debugging.ledger import DebugError

    try:
        with failures.converted(DebugError, LinkError, SigningError):
            yield
    except OSError as error:
        raise failures.Failure(f"nobody answers there: {getattr(error, 'reason', None) or error}") from error


@contextlib.contextmanager
def _ledger(state):
    from vmhost.operations.debugging.ledger import Ledger

    with _errors():
        if not (state / "debugging.sqlite").exists():
            raise failures.Failure(
                f"{state}: no host with `debugging: ask` has run with this state folder; name `state` of host.yaml"
            )
        with Ledger(state) as ledger:
            yield ledger


def _person():
    from vmhost.operations.debugging.desk import person

    return person()


# ---- at the device


@command.command()
@_STATE
@links.SCOPES
@links.VALID
@click.option("--address", help="Where clients reach this host. [default: its dashboard's address]")
@click.option("--note", default="", help="What it is for.")
@links.NO_QR
@click.option("--wait", is_flag=True, help="Wait until somebody opens it, and ask for consent here.")
@failures.command
def offer(output, state, scopes, valid_s, address, note, no_qr, wait):
    """Make a link that opens one session on the host with the state folder STATE."""
    with _ledger(state) as ledger:
        link = ledger.offer(_person(), scopes or links.ALL_SCOPES, valid_s, address, note)
        links.show(output, link, no_qr)
        while wait:
            waiting = [each for each in ledger.sessions(state="waiting") if each["link"] == link.id]
            if waiting:
                _ask(output, ledger, waiting[0])
                break
            if time.time() >= link.expires_s:
                raise failures.Failure("nobody opened the link while it was valid")
            time.sleep(_POLL_S)
    return failures.DONE


@command.command()
@_STATE
@failures.command
def host(output, state):
    """Show the name that links use for the host with the state folder STATE."""
    with _ledger(state) as ledger:
        name = ledger.host()
    output.document({"host": name})
    output.line(name)


@command.command()
@click.argument("host", metavar="HOST")
@click.option("--key", required=True, help="Your signing key: its name, or its file; the host names it in `keys`.")
@click.option("--address", required=True, help="Where you reach the host's dashboard.")
@links.SCOPES
@links.VALID
@click.option("--note", default="", help="What it is for.")
@links.NO_QR
@failures.command
def sign(output, host, key, address, scopes, valid_s, note, no_qr):
    """Make a link to HOST with a key of your own, from anywhere."""
    from vmhost import debug_links
    from vmhost.cli import keys

    with _errors():
        try:
            link = debug_links.signed(
                keys.signing_key(key), address, host, scopes or links.ALL_SCOPES, valid_s, time.time(), note
            )
        except ValueError as error:
            raise failures.Failure(str(error)) from error
    links.show(output, link, no_qr)


@command.command()
@_STATE
@click.argument("session", required=False)
@click.option("--yes", "answer", flag_value="yes", help="Consent without asking.")
@click.option("--no", "answer", flag_value="no", help="Refuse without asking.")
@links.SCOPES
@failures.command
def consent(output, state, session, answer, scopes):
    """Give or refuse consent for SESSION; without one, wait for the next request."""
    with _ledger(state) as ledger:
        if session is None and answer is not None:
            raise failures.Failure("--yes and --no are for one SESSION: name it; `vmhost debug sessions` lists them")
        if answer is not None:
            ledger.decide(session, answer == "yes", _person(), scopes or None)
            output.document({"session": session, "consent": answer == "yes"})
            output.line(f"session {session}: {'may begin' if answer == 'yes' else 'was refused'}")
            return failures.DONE
        if session is None:
            output.remark("waiting for somebody to open a link; Ctrl-C ends")
        while True:
            waiting = [each for each in ledger.sessions(state="waiting") if session in (None, each["id"])]
            if waiting:
                return _ask(output, ledger, waiting[-1], scopes or None)
            if session is not None:
                raise failures.Failure(f"{session}: waits for no consent; see `vmhost debug sessions`")
            time.sleep(_POLL_S)


def _ask(output, ledger, session, scopes=None):
    """Asks the person at this terminal."""
    if not sys.stdin.isatty():
        raise failures.Failure(
            f"there is no terminal to ask at; consent by: vmhost debug consent STATE {session['id']} --yes"
        )
    until = time.strftime("%H:%M:%S", time.localtime(session["expires_ms"] / 1000))
    note = f", for {session['note']!r}" if session["note"] else ""
    asked = [scope for scope in session["asked"] if scopes is None or scope in scopes]
    output.remark(f"{session['signer']} by {session['via']}{note} asks for {', '.join(asked)}, until {until}")
    yes = click.confirm("Allow this?", default=False, err=True)
    ledger.decide(session["id"], yes, _person(), asked if yes else None)
    output.document({"session": session["id"], "consent": yes})
    if yes:
        output.line(f"session {session['id']} may begin; end it by: vmhost debug end {ledger.folder} {session['id']}")
    else:
        output.line(f"session {session['id']} was refused")
    return failures.DONE


@command.command()
@_STATE
@failures.command
def sessions(output, state):
    """List sessions, the latest first."""
    with _ledger(state) as ledger:
        found = ledger.sessions()
    output.document({"sessions": found})
    rows = [
        (each["id"], each["state"], f"{each['signer']} by {each['via']}", ", ".join(each["granted"] or each["asked"]))
        + (_moment(each["opened_ms"]), each["why"])
        for each in found
    ]
    output.table("", ("session", "state", "who", "scopes", "opened", "why"), rows)


@command.command()
@_STATE
@click.argument("session")
@failures.command
def end(output, state, session):
    """End SESSION at the device: withdraw consent, and stop its run."""
    with _ledger(state) as ledger:
        if not ledger.end(session, _person(), "consent was withdrawn at the device"):
            raise failures.Failure(f"{session}: no such session is open; see `vmhost debug sessions`")
    output.document({"session": session, "state": "ended"})
    output.line(f"session {session} is over")


@command.command()
@_STATE
@click.argument("link")
@failures.command
def revoke(output, state, link):
    """Revoke LINK, or the link with this id, and end its session."""
    from vmhost import debug_links

    with _ledger(state) as ledger:
        identity = debug_links.read(link).id if "#" in link else link
        ledger.revoke(identity, _person())
    output.document({"link": identity, "state": "revoked"})
    output.line(f"link {identity} is revoked")


@command.command()
@_STATE
@click.option("--session", help="Only of this session.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="So many lines.")
@failures.command
def audit(output, state, session, limit):
    """Show who did what, the latest last; and verify that no line was changed or removed."""
    with _ledger(state) as ledger:
        found, damage = ledger.audit(session=session, limit=limit)[::-1], ledger.damage()
    output.document({"lines": found, "damage": damage})
    rows = [
        (str(each["number"]), _moment(each["time_ms"]), each["who"], each["action"], each["session"])
        + (", ".join(f"{name} {value}" for name, value in each["details"].items()),)
        for each in found
    ]
    output.table("", ("line>", "when", "who", "what", "session", "details"), rows)
    if damage is not None:
        raise failures.Failure(f"the audit was changed: {damage}")
    return failures.DONE


@command.command()
@_STATE
@failures.command
def clock(output, state):
    """Accept this machine's present clock, after it was set back and links are refused."""
    with _ledger(state) as ledger:
        ledger.accept_clock(_person())
    output.line("the present clock is accepted")


# ---- at the client


def _session_file(link):
    import os

    from vmhost import debug_links

    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "vmhost" / "debug" / f"{debug_links.read(link).id}.json"


@contextlib.contextmanager
def _client(output, link, timeout=None):
    """The session of the link: the one opened by an earlier command, or a new one, once there is consent."""
    from vmhost.operations.debugging.client import Client
    from vmhost.operations.debugging.ledger import DebugError

    with _errors():
        path = _session_file(link)
        client = Client.saved(path)
        if client is None:
            client = Client.open(link)
            client.save(path)
        try:
            if client.state()["state"] == "waiting":
                output.remark(f"session {client.session}: waiting for consent at the device")
                client.wait_for_consent(timeout)
            yield client
        except DebugError as error:
            if error.kind in ("ended", "link"):
                path.unlink(missing_ok=True)
            raise


@command.command("open")
@_LINK
@click.option(
    "--wait", "wait_s", type=quantities.Time(), help="Give up after this long. [default: until the link expires]"
)
@failures.command
def open_link(output, link, wait_s):
    """Open LINK, and wait for consent; the commands below do so themselves."""
    with _client(output, link, wait_s) as client:
        state = client.state()
        output.document({"session": client.session, **state})
        output.line(
            f"session {client.session} may {', '.join(state['granted'])}, for {state['expires_s'] / 60:.0f} min"
        )


@command.command()
@_LINK
@failures.command
def config(output, link):
    """Show the effective configuration, and which values were set."""
    with _client(output, link) as client:
        found = client.config()
    output.document(found)
    output.line(", ".join(f"{name} {value}" for name, value in found["machine"].items()))
    rows = [
        (each["name"], each["version"], ", ".join(f"{name} {value}" for name, value in each["limits"].items()))
        for each in found["tasks"]
    ]
    output.table("Tasks", ("task", "version", "limits"), rows)
    for group in found["groups"]:
        rows = [(row["name"], row["value"], row["from"]) for row in group["rows"]]
        output.table(group["title"], ("setting", "value", "from"), rows)


@command.command()
@_LINK
@click.option("--follow/--no-follow", default=True, help="Continue with new lines until Ctrl-C. [default: follow]")
@click.option("--task", help="Only of this task.")
@click.option(
    "--level", type=click.Choice(["all", "info", "warning", "error"]), default="all", help="The lowest level."
)
@click.option("--text", default="", help="Only lines that contain this text; upper and lower case are the same.")
@failures.command
def logs(output, link, follow, task, level, text):
    """Show the log, live."""
    with _client(output, link) as client:
        for line in client.log(follow=follow, task=task, level=level, text=text):
            if isinstance(line, str):
                output.remark(line)
                continue
            _, time_s, number, of, version, text_shown = line
            where = f"{of} {version or ''}".rstrip() if of else "host"
            if output.as_json:
                output.json_text(dict(zip(("number", "time_s", "level", "task", "version", "text"), line)))
            else:
                at = time.strftime("%H:%M:%S", time.localtime(time_s))
                output.line(f"{at} {_LEVELS.get(number, number)} {where}: {_printable(text_shown)}")


@command.command()
@_LINK
@click.argument("task")
@click.argument("value", default="null")
@click.option("--profile", is_flag=True, help="Take a profile of it.")
@click.option("--trace", is_flag=True, help="Note its spans.")
@click.option(
    "--timeout",
    "timeout_s",
    type=quantities.Time(),
    help="Stop it after this long. [default: its own limit, at most 60 s]",
)
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write its files there.")
@failures.command
def run(output, link, task, value, profile, trace, timeout_s, folder):
    """Run TASK once with VALUE: JSON, a file with it, or - for stdin."""
    from vmhost.lines import json_values

    try:
        plain = json_values.to_plain(json_values.read(value))
    except ValueError as error:
        raise failures.Failure(f"VALUE: {error}") from error
    with _client(output, link) as client:
        answer = client.run(task, plain, profile=profile, trace=trace, timeout_s=timeout_s)
        written = [str(_write(folder, name, client.fetch(name))) for name in answer["files"]] if folder else []
    output.document(answer | {"written": written})
    output.line(f"{answer['task']} {answer['version']}: {answer['outcome']} after {answer['took_s'] * 1000:.1f} ms")
    for remark in answer["remarks"]:
        output.remark(remark)
    for span in answer.get("spans", ()):
        took_ms = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
        output.line(f"  {'' if 'parentSpanId' not in span else '  '}{_printable(span['name'])}: {took_ms:.2f} ms")
    if answer.get("traceback"):
        output.remark(_printable(answer["traceback"].rstrip()))
    if "result" in answer:
        output.line(json.dumps(answer["result"]))
    for path in written:
        output.line(f"written: {path}")
    if not folder and answer["files"]:
        output.remark(f"its files: {', '.join(answer['files'])}; `vmhost debug fetch`, or --to FOLDER")
    if "failure" in answer:
        raise failures.Failure(_printable(answer["failure"]), failures.TASK_FAILED, "TaskError")
    return failures.DONE


@command.command()
@_LINK
@failures.command
def reports(output, link):
    """List reports: crashes, metrics, and the files of this session's runs."""
    with _client(output, link) as client:
        found = client.reports()
    output.document({"reports": found})
    rows = [(each["name"], "" if each["bytes"] is None else f"{each['bytes']:,}", each["what"]) for each in found]
    output.table("", ("report", "bytes>", "what"), rows)


@command.command()
@_LINK
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False), default=".", help="The folder. [default: here]"
)
@failures.command
def fetch(output, link, names, folder):
    """Write reports into a folder."""
    with _client(output, link) as client:
        written = [str(_write(folder, name, client.fetch(name))) for name in names]
    output.document({"written": written})
    for path in written:
        output.line(path)


@command.command("end-session")
@_LINK
@failures.command
def end_session(output, link):
    """End the session of LINK, from the client's end."""
    from vmhost.operations.debugging.client import Client

    with _errors():
        path = _session_file(link)
        client = Client.saved(path)
        if client is None:
            raise failures.Failure("no session of this link was opened here")
        client.ask("end")
        path.unlink(missing_ok=True)
    output.document({"session": client.session, "state": "ended"})
    output.line(f"session {client.session} is over")


def _write(folder, name, data):
    """Writes a file from the device into the folder; its name cannot lead outside."""
    path = Path(folder) / "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).lstrip(
        ".-"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise failures.Failure(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _printable(text):
    """The text without control characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)


def _moment(ms):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
