"""`vmhost reach`: tests channels, and shows the queue and the audit of messages."""

import contextlib
import secrets
import time
from pathlib import Path

import click

from vmhost.cli import failures, quantities
from vmhost.cli.groups import Group
from vmhost.cli.pipeline import stores


@click.group(cls=Group)
def command():
    """Test a pipeline's channels; show what was sent to whom, what was not, and why."""


@command.command(short_help="Send a message to a local page, or by a channel of a pipeline.yaml.")
@click.argument("config", metavar="[PIPELINE.YAML]", required=False, type=click.Path(path_type=Path))
@click.option("--channel", help="The channel of the PIPELINE.YAML. [default: the only one]")
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:8500",
    show_default=True,
    type=quantities.Address(),
    help="Address of the page, without a file.",
)
@click.option("--key", default="ann", show_default=True, help="The person.")
@click.option("--title", default="A message", show_default=True, help="The message's title.")
@click.option("--text", default="Sent by vmhost reach test.", show_default=True, help="The message's text.")
@click.option(
    "--wait", "wait_s", default="2 min", show_default=True, type=quantities.Time(), help="How long to wait for a page."
)
@failures.command
def test(output, config, channel, address, key, title, text, wait_s):
    """Send one message now: to a page on this machine, served until the page has shown it, or by a channel of a
    PIPELINE.YAML. Caps, quiet hours, audiences and retries do not apply, and nothing is stored."""
    from vmhost.pipeline.reach.channels import ChannelError
    from vmhost.pipeline.reach.settings import channel_settings

    options, folder = {}, Path()
    if config is None:
        settings = channel_settings("test", {"poplayer": address})
    else:
        settings, options, folder = _chosen(config, channel)
    message = {"id": f"test:{secrets.token_hex(8)}", "key": key, "message": {"title": title, "text": text}}
    with contextlib.ExitStack() as stack:
        adapter = _adapter(stack, output, settings, options, folder, key, wait_s)
        begin_s = time.monotonic()
        try:
            given = adapter.send(message)
        except ChannelError as error:
            raise failures.Failure(f"channel {settings.name}: {error}", failures.HOST_FAILED, "ChannelError") from error
        except Exception as error:  # of a host function, of a task
            raise failures.Failure(
                f"channel {settings.name}: {type(error).__name__}: {error}", failures.HOST_FAILED, type(error).__name__
            ) from error
        took_ms = (time.monotonic() - begin_s) * 1000
    document = {"channel": settings.name, "kind": settings.kind, "id": message["id"], "took_ms": round(took_ms, 1)}
    output.document(document | {"answer": stores.plain(given)})
    output.line(f"{settings.name} ({settings.kind}): sent in {took_ms:.1f} ms: {stores.shown(given) or 'taken'}")
    return failures.DONE


def _chosen(config, channel):
    """(ChannelSettings, arguments of Pipeline, its folder)"""
    from vmhost.pipeline.configuration import read_pipeline_yaml
    from vmhost.pipeline.reach.settings import channel_settings

    if not config.exists():
        raise failures.Failure(f"{config}: no such file{failures.did_you_mean(config)}")
    found = read_pipeline_yaml(config)
    channels = found.options.get("channels") or {}
    if channel is None and len(channels) == 1:
        (channel,) = channels
    if channel not in channels:
        there = ", ".join(channels) or "none"
        raise failures.Failure(f"{config}: choose a channel with --channel: {there}")
    functions = (found.options.get("host") or {}).get("functions") or {}
    return channel_settings(channel, channels[channel], functions), found.options, found.folder


def _adapter(stack, output, settings, options, folder, key, wait_s):
    from vmhost import Host
    from vmhost.cli import keys
    from vmhost.pipeline.reach.channels import ToPages, adapter_of

    if settings.function is None and settings.kind in ("poplayer", "broadcast"):
        from vmhost.pipeline.reach.page import PageServer  # needs the extra `web`

        server = PageServer(settings.target)
        stack.callback(server.close)
        server.start()
        url = f"{server.url}?key={key}" if settings.kind == "poplayer" else server.url
        output.remark(f"open {url} in a browser; the message is sent when the page is there")
        if not server.pages.wait_for_page(wait_s, None if settings.kind == "broadcast" else key):
            raise failures.Failure(f"no page of {key!r} was opened within {wait_s:g} s", failures.HOST_FAILED, "NoPage")
        return ToPages(settings, server.pages)
    task = None
    if settings.function is None and settings.kind == "walle_task":
        chosen = dict(options.get("host") or {})
        host = Host(
            trust=options.get("trust", keys.trust_store(())),
            allow_unsigned=options.get("allow_unsigned", False),
            **chosen,
        )
        stack.callback(host.close, drain=False)
        task = host.load(settings.target)
    adapter = adapter_of(settings, task, folder)
    if hasattr(adapter, "close"):
        stack.callback(adapter.close)
    return adapter


@command.command(short_help="Show why messages were sent, or were not.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--key", help="Of a person.")
@click.option("--channel", help="Of a channel.")
@click.option(
    "--what",
    type=click.Choice(["sent", "retry", "held", "capped", "expired", "given_up", "missed", "outside", "overflow"]),
    help="Only these decisions.",
)
@click.option("--id", "identity", help="Of one message.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="How many lines, the latest.")
@failures.command
def audit(output, folder, key, channel, what, identity, limit):
    """Show what was decided about each message of the pipeline in FOLDER, and why, the latest first."""
    from vmhost.pipeline.reach import queue

    if what is not None and what not in queue.WORDS:
        raise failures.Failure(f"--what: expected one of {', '.join(queue.WORDS)}, got {what!r}")
    with stores.stored(folder) as stored, stored.database.reader() as connection:
        rows = queue.audit(connection, limit, person=key, channel=channel, what=what, id=identity)
    output.document(rows)
    columns = ("at", "channel", "person", "source", "what", "why", "tries>", "id")
    shown = [{name: stores.shown(value, 60) for name, value in row.items()} for row in rows]
    for row, line in zip(rows, shown):
        line |= {"at": stores.moment(row["at_ms"]), "tries": str(row["tries"])}
    output.table("", columns, [[line[name.removesuffix(">")] for name in columns] for line in shown])
    if not rows:
        output.line("nothing was decided of a message yet")
    return failures.DONE


@command.command(short_help="Show the messages that wait.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--channel", help="Of a channel.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="How many, those due first.")
@failures.command
def queue(output, folder, channel, limit):
    """Show the waiting messages of the pipeline in FOLDER, when they are due, and why they wait."""
    from vmhost.pipeline.reach.queue import waiting

    with stores.stored(folder) as stored, stored.database.reader() as connection:
        rows = waiting(connection, limit, channel)
    output.document(rows)
    columns = ("due", "channel", "person", "source", "priority>", "tries>", "held", "id")
    shown = [{name: stores.shown(value, 60) for name, value in row.items()} for row in rows]
    for row, line in zip(rows, shown):
        line |= {"due": stores.moment(row["due_ms"]), "priority": str(row["priority"]), "tries": str(row["tries"])}
    output.table("", columns, [[line[name.removesuffix(">")] for name in columns] for line in shown])
    if not rows:
        output.line("no message waits")
    return failures.DONE
