"""`vmhost tunnel`: the connection between devices and the cloud: serve it, send on it, inspect it."""

import contextlib
import sys
from pathlib import Path

import click

from vmhost.cli import failures, interrupts, quantities
from vmhost.cli.groups import Group
from vmhost.cli.output import counted

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(cls=Group)
def command():
    """Serve devices, send messages, push to devices, and show the state of it all."""


@command.command()
@click.argument("folder", type=_FOLDER)
@click.option("--device", "devices", multiple=True, help="Also make a certificate for this device; may be repeated.")
@click.option("--host", "hosts", multiple=True, help="A name or address of the server. [default: localhost, 127.0.0.1]")
@click.option(
    "--for",
    "valid_s",
    default="825 d",
    show_default=True,
    type=quantities.Time(86400, 36500 * 86400),
    help="How long they are valid, in whole days.",
)
@failures.command
def certificates(output, folder, devices, hosts, valid_s):
    """Make a CA, a certificate for the server and one for each device in FOLDER. Existing files stay."""
    from vmhost.tunnel.tls import make_certificates

    made = make_certificates(folder, devices, hosts or ("localhost", "127.0.0.1"), int(valid_s // 86400))
    output.document({"folder": str(folder), "made": made})
    output.line(f"{folder}: made {', '.join(made)}" if made else f"{folder}: nothing to make, all files are there")


def _keys(function):
    """Options for the certificates by which the server and the devices authenticate."""
    function = click.option(
        "--keys", "keys", type=_FOLDER, help="A folder by `vmhost tunnel certificates`; replaces the others."
    )(function)
    function = click.option("--certificate", type=_FILE, help="PEM file of this end's certificate.")(function)
    function = click.option("--key", type=_FILE, help="PEM file of its private key.")(function)
    return click.option("--ca", type=_FILE, help="PEM file of the CA that signed the other end's certificates.")(
        function
    )


@command.command()
@click.argument("store", type=_FILE)
@click.option(
    "--listen",
    default="127.0.0.1:7443",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where devices connect; several with commas.",
)
@_keys
@click.option("--tokens", type=_FILE, help="A file with a device and its token on each line.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 64), help="Number of processes.")
@click.option("--table", default="messages", show_default=True, help="The SQL table in STORE for messages.")
@click.option("--rows", multiple=True, metavar="CHANNEL", help="A pipeline's task: its rows get a SQL table like it.")
@click.option("--consume", "consumers", multiple=True, metavar="CHANNEL=MODULE:NAME", help="A function for a channel.")
@click.option("--postgresql", type=_FILE, help="A file with a connection string: messages go into PostgreSQL's TABLE.")
@click.option(
    "--webhook", "webhooks", multiple=True, metavar="CHANNEL=URL", help="A channel's messages are POSTed there."
)
@click.option(
    "--webhook-secret", "secret_file", type=_FILE, help="A file with the secret that signs them: whsec_<base64>"
)
@click.option("--answer", "answers", multiple=True, metavar="CHANNEL=MODULE:NAME", help="A function for requests.")
@click.option(
    "--drain", default="5 s", show_default=True, type=quantities.Time(), help="How long devices have to move elsewhere."
)
@click.option(
    "--spin", "spin_s", type=quantities.Time(at_most=0.01), help="How long to poll before sleeping. [default: 200 us]"
)
@click.option("--spin-us", type=click.FloatRange(0, 10_000), hidden=True, help="The same in microseconds.")
@failures.command
def serve(
    output, store, listen, keys, certificate, key, ca, tokens, processes, table, rows, consumers, postgresql,
    webhooks, secret_file, answers, drain, spin_s, spin_us,
):  # fmt: skip
    """Store messages of devices in the SQLite file STORE, until Ctrl-C.

    Each message is stored in the table exactly once; `--rows` gives the rows of a pipeline's task a table with their
    columns, `--consume` passes those of a channel to a function instead,
    `--webhook` to a web server. With `--postgresql` the table is in PostgreSQL.
    """
    from vmhost.tunnel import PostgreSQL, Rows, Server, Table, Webhook
    from vmhost.tunnel.errors import TunnelConfigurationError
    from vmhost.tunnel.tokens import Tokens

    if keys is not None:
        certificate, key, ca = certificate or keys / "server.pem", key or keys / "server.key", ca or keys / "ca.pem"
    if certificate is None:
        raise failures.Failure(
            "the server needs a certificate: --keys FOLDER, or --certificate FILE; `vmhost tunnel certificates FOLDER` "
            "makes one"
        )
    if ca is None and tokens is None:
        raise failures.Failure("the server cannot authenticate devices: give --ca or --tokens")
    if spin_s is not None:
        spin_us = spin_s * 1e6
    with _said():
        server = Server(
            store, certificate=certificate, key=key, client_ca=ca, identify=None if tokens is None else Tokens(tokens),
            **({} if spin_us is None else {"spin_us": spin_us}),
        )  # fmt: skip
        server.consume("*", Table(table) if postgresql is None else PostgreSQL(_line_of(postgresql), table))
        for channel in rows:
            server.consume(channel, Rows(channel))
        secret = None if secret_file is None else _line_of(secret_file)
        for text in webhooks:
            channel, _, url = text.partition("=")
            server.consume(channel, Webhook(url, secret=secret))
        for channel, function in map(_named, consumers):
            server.consume(channel, function)
        for channel, function in map(_named, answers):
            server.answer(channel, function)

        def ready(addresses):
            from vmhost.tunnel.addresses import shown

            where = ", ".join(shown(*each) for each in addresses)
            into = store if postgresql is None else "PostgreSQL"
            output.line(f"listening on {where}; messages go into {into}, table {table}; Ctrl-C ends")
            sys.stdout.flush()

        try:
            code = server.run(listen, processes=processes, drain_s=drain, ready=ready)
        except TunnelConfigurationError:
            raise
    output.document({"ended": True})
    return failures.HOST_FAILED if code else failures.DONE


def _line_of(file):
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise failures.Failure(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _named(text):
    """("CHANNEL", function) of "CHANNEL=MODULE:NAME"."""
    import importlib

    channel, _, where = text.partition("=")
    module, _, name = where.partition(":")
    if not (channel and module and name):
        raise failures.Failure(f"{text!r}: expected CHANNEL=MODULE:NAME")
    try:
        return channel, getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise failures.Failure(f"{text!r}: {error}; PYTHONPATH has to lead to the module") from error


@command.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option(
    "--to", "address", default="localhost:7443", show_default=True, metavar="ADDRESS:PORT", help="Where the server is."
)
@_keys
@click.option("--device", help="With --keys: the name of this device.")
@click.option("--token-file", type=_FILE, help="A file with this device's token.")
@click.option("--channel", default="messages", show_default=True, help="The channel of new messages.")
@click.option("--message", "messages", multiple=True, help="A message to send; may be repeated.")
@click.option("--lines", type=click.File("rb"), help="A file whose lines are messages to send; - is stdin.")
@click.option("--follow", is_flag=True, help="Continue with new messages in the outbox, until Ctrl-C.")
@click.option("--timeout", default="60 s", show_default=True, type=quantities.Time(0.1), help="How long to try.")
@failures.command
def send(
    output, store, address, keys, certificate, key, ca, device, token_file, channel, messages, lines, follow, timeout
):
    """Send the messages in the outbox of STORE, a device's SQLite file or the folder of a pipeline.

    New messages, from --message and --lines, are put into the outbox first. Messages that cannot be sent stay there.
    """
    from vmhost import ConfigurationError
    from vmhost.settings.tokens import read_token
    from vmhost.tunnel import Device

    if keys is not None:
        ca = ca or keys / "ca.pem"
        if device is not None:
            certificate, key = certificate or keys / f"{device}.pem", key or keys / f"{device}.key"
    if certificate is None and token_file is None:
        raise failures.Failure(
            "the server authenticates devices: give --keys and --device, --certificate, or --token-file"
        )
    with failures.converted(ConfigurationError):
        token = None if token_file is None else read_token(token_file)
    path = store / "pipeline.sqlite" if store.is_dir() else store
    with _said(), Device(address, path, ca=ca, certificate=certificate, key=key, token=token) as cloud:
        if messages:
            cloud.send_many(channel, [each.encode() for each in messages])
        if lines is not None:
            _send_lines(cloud, channel, lines)
        sent = cloud.wait_sent(None if follow else timeout)
        if follow:
            interrupts.sleep()
        figures = cloud.statistics()
        figures["left"] = len(cloud.store.outbox)
    output.document(figures)
    if not sent:
        raise failures.Failure(
            f"{counted(figures['left'], 'message')} could not be sent within {timeout:g} s and wait in {path}: "
            f"{figures['last_error'] or 'no answer'}",
            failures.HOST_FAILED,
            "OfflineError",
        )
    output.line(f"{counted(figures['counts']['acknowledged'], 'message')} sent; the outbox of {path} is empty")
    return failures.DONE


def _send_lines(cloud, channel, lines):
    batch = []
    for line in lines:
        batch.append(line.rstrip(b"\r\n"))
        if len(batch) >= 1000:
            cloud.send_many(channel, batch)
            batch = []
    if batch:
        cloud.send_many(channel, batch)


@command.command()
@click.argument("store", type=_FILE)
@click.argument("device")
@click.argument("channel")
@click.argument("message", required=False)
@click.option("--file", "source", type=click.File("rb"), help="A file to push; - is stdin.")
@click.option("--ttl", type=quantities.Time(0.001), help="After this long it expires. [default: never]")
@click.option("--collapse", help="Replaces a waiting push with the same text.")
@click.option("--max-waiting", default=1000, show_default=True, type=click.IntRange(1), help="How many may wait.")
@click.option("--refuse", is_flag=True, help="Fail if that many wait. [default: the oldest is dropped]")
@failures.command
def push(output, store, device, channel, message, source, ttl, collapse, max_waiting, refuse):
    """Push MESSAGE to DEVICE on CHANNEL, through the server's STORE. It waits there while the device is away."""
    from vmhost.tunnel import push

    if (message is None) == (source is None):
        raise failures.Failure("give MESSAGE or --file")
    if not store.exists():
        raise failures.Failure(f"{store}: there is no such store{failures.did_you_mean(store)}")
    body = source.read() if source is not None else message.encode()
    with _said():
        if _kind(store) != "server":
            raise failures.Failure(
                f"{store}: no server's store; pushes go into the one that `vmhost tunnel serve` uses"
            )
        identity = push(
            store,
            device,
            channel,
            body,
            ttl_s=ttl,
            collapse=collapse,
            max_waiting=max_waiting,
            when_full="refuse" if refuse else "oldest",
        )
    output.document({"id": identity})
    output.line(f"{identity} waits for {device} on {channel}, or is there already")
    return failures.DONE


def _kind(store):
    from vmhost.stores import Database
    from vmhost.tunnel.status import kind_of

    with Database(store, read_only=True) as database:
        return kind_of(database)


@command.command()
@click.argument("store", type=_FILE)
@failures.command
def status(output, store):
    """Show the state of the server of STORE, and what waits there; or the outbox of a device's STORE."""
    from vmhost.stores import Database
    from vmhost.tunnel.status import of_outbox, of_processes, of_store

    if not store.exists():
        raise failures.Failure(f"{store}: there is no such store{failures.did_you_mean(store)}")
    with _said():
        kind = _kind(store)
    if kind is None:
        raise failures.Failure(f"{store}: not a store of the tunnel; give a server's store, or a device's")
    if kind == "device":
        with _said(), Database(store, read_only=True) as database:
            waiting = of_outbox(database)
        names = ("channel", "messages", "bytes", "oldest_ms")
        output.document({"outbox": [dict(zip(names, row)) for row in waiting]})
        rows = [(channel, f"{count:,}", f"{size:,}") for channel, count, size, _ in waiting]
        if rows:
            output.table("", ("channel", "waiting>", "bytes>"), rows)
        else:
            output.line("the outbox is empty")
        return failures.DONE
    processes = of_processes(store)
    with _said(), Database(store, read_only=True) as database:
        kept = of_store(database)
    output.document({"processes": processes, "store": kept})
    rows = [
        (
            str(each["process"]),
            str(each["connected"]),
            *(f"{each['counts'][name]:,}" for name in ("messages", "requests", "pushed", "refused")),
            f"{each['counts']['received_bytes'] / 1e6:.1f}",
            f"{each['counts']['sent_bytes'] / 1e6:.1f}",
            each["store_error"] or "",
        )
        for each in processes
    ]
    columns = ("process", "devices>", "messages>", "requests>", "pushed>", "refused>", "MB in>", "MB out>", "trouble")
    output.table("", columns, rows)
    latencies = sorted(
        (name, str(each["process"]), figures) for each in processes for name, figures in each["latencies"].items()
    )
    shown = ("count", "p50_ms", "p90_ms", "p99_ms", "max_ms")
    output.table(
        "",
        ("what, channel", "process", *(f"{name}>" for name in shown)),
        [(name, process, *(str(figures.get(key, "")) for key in shown)) for name, process, figures in latencies],
    )
    waiting = ", ".join(f"{count} for {device} on {channel}" for device, channel, count, _ in kept["pushes"][:10])
    known = ", ".join(f"{ids:,} of {device}" for device, _, ids in kept["known"][:10] if ids)
    output.line(
        f"serving: {counted(len(processes), 'process', 'processes')}; seen: {counted(kept['devices'], 'device')}; "
        f"waiting pushes: {waiting or 'none'}; refused messages: {kept['refused']}; "
        f"dropped by known ids: {known or 'none'}"
    )
    return failures.DONE


@command.command()
@click.argument("store", type=_FILE)
@click.argument("channel")
@click.option("--table", default="messages", show_default=True, help="The SQL table in STORE with samples.")
@click.option("--samples", default=2000, show_default=True, type=click.IntRange(10), help="How many, the latest.")
@click.option(
    "--size", default="32 KiB", show_default=True, type=quantities.Size(1 << 10, 1 << 20), help="Of the dictionary."
)
@failures.command
def train(output, store, channel, table, samples, size):
    """Train a dictionary on messages of CHANNEL in STORE. Devices get it on their next connection, and use it."""
    from vmhost.tunnel.training import train_channel

    if not store.exists():
        raise failures.Failure(f"{store}: there is no such store{failures.did_you_mean(store)}")
    with _said():
        made = train_channel(store, channel, table, samples, size)
    output.document(made)
    output.line(
        f"dictionary {made['number']} of {channel}: {made['bytes']:,} bytes, of {made['samples']:,} messages; one of "
        f"them has {made['plain_bytes']} bytes, packed {made['packed_before']} before and {made['packed_after']} now"
    )
    return failures.DONE


@command.command()
@click.argument("capture", type=click.File("rb"), default="-")
@failures.command
def decode(output, capture):
    """Show the frames in CAPTURE: the bytes of one direction, inside of TLS."""
    from vmhost.tunnel.decoding import lines

    found = list(lines(capture.read()))
    output.document(found)
    for line in found:
        output.line(line)
    return failures.WRONG_INPUT if found and found[-1].startswith("not a frame") else failures.DONE


@command.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments):
    """Measure the tunnel: `vmhost bench tunnel`, in the checkout."""
    from vmhost.cli import bench

    return bench.command.main(["tunnel", *arguments], standalone_mode=False)


@contextlib.contextmanager
def _said():
    """Turns errors of stores into the command's; logs the tunnel's messages to stderr."""
    import logging

    from vmhost.stores import StoreError

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("vmhost.tunnel")
    before = log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        with failures.converted(StoreError, exit_code=failures.HOST_FAILED, kind=None):
            yield
    finally:
        log.removeHandler(handler)
        log.propagate, log.level = before
