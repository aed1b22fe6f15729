"""`vmhost cloud`: the deployment platform: serve one, or query and change one over its API.

Commands that query or change take the platform's address and a token from `--platform` and `--token`, or from the
variables VMHOST_PLATFORM and VMHOST_TOKEN.
"""

import contextlib
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import click

from vmhost.access import ROLES
from vmhost.cli import failures, links, quantities
from vmhost.cli.groups import Group
from vmhost.deployment.cloud import release_states


@click.group(cls=Group)
def command():
    """Serve the deployment platform; release tasks, watch them, roll them back."""


@contextlib.contextmanager
def _errors():
    """Turns errors of the platform into one line and an exit code."""
    from vmhost.access import AccessError
    from vmhost.bytecode.errors import SigningError
    from vmhost.deployment.errors import DeploymentError
    from vmhost.stores import StoreError

    with (
        failures.converted(StoreError, exit_code=failures.HOST_FAILED, kind=None),
        failures.converted(DeploymentError, AccessError, SigningError, exit_code=failures.REFUSED, kind=None),
    ):
        yield


# ---- a platform on this machine


@command.command()
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where to keep everything. [default: a temporary folder]"
)
@failures.command
def demo(output, folder):
    """Run platform, git and five device processes here: one release succeeds, and one is rolled back."""
    from vmhost.deployment.demonstration import Demonstration

    with contextlib.ExitStack() as stack:
        stack.enter_context(_errors())
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="vmhost-cloud-"))
        elif folder.exists() and any(folder.iterdir()):
            raise failures.Failure(f"{folder}: is not empty; give a new folder")
        else:
            folder.mkdir(parents=True, exist_ok=True)
        happened = Demonstration(Path(folder).absolute(), output.line).run()
    output.document(happened)
    _show_history(output, happened["history"])
    output.line()
    _show_devices(output, "Devices in the release of 1.1.0", happened["devices"])


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--admin", default="admin", show_default=True, help="Name of the first account.")
@click.option(
    "--postgresql",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Keep the tables in PostgreSQL: FILE has the connection string. [default: SQLite in FOLDER]",
)
@failures.command
def init(output, folder, admin, postgresql):
    """Create a platform in FOLDER, and its first account."""
    from vmhost.deployment.cloud.metadata import offline_keys
    from vmhost.deployment.cloud.platform import Platform

    with _errors():
        token = Platform.make(folder, admin, postgresql and postgresql.read_text(encoding="utf-8").strip())
    offline = str(offline_keys(folder / "keys"))
    output.document({"folder": str(folder), "account": admin, "token": token, "offline_keys": offline})
    output.line(f"platform in {folder}; account {admin} with the token (shown this once):")
    output.line(token)
    output.line(f"keys to be moved to another machine once there are repositories: {offline}")
    output.line(f"serve it: vmhost cloud serve {folder}")


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--listen",
    default="127.0.0.1:8470",
    show_default=True,
    type=quantities.Address(),
    help="Port 0: a free one.",
)
@click.option(
    "--poll",
    "poll_s",
    default="30 s",
    show_default=True,
    type=quantities.Time(at_least=0.1, at_most=86400),
    help="The time between a device's requests.",
)
@click.option(
    "--files-url",
    "files_urls",
    multiple=True,
    metavar="[REGION=]URL",
    help="Where devices pull files: static servers or CDNs over FOLDER/files. [default: here]",
)
@click.option(
    "--tls-certificate",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Serve https: the certificate with its chain, in PEM.",
)
@click.option("--tls-key", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Its key, in PEM.")
@click.option("--tunnel", metavar="HOST:PORT", help="Also serve devices by the tunnel, at this address.")
@click.option(
    "--tunnel-keys",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder made by `vmhost tunnel certificates`.",
)
@click.option(
    "--unconfined",
    is_flag=True,
    help="Where builds cannot be confined, build tasks with `requirements` too: pushers get this user's rights.",
)
@failures.command
def serve(output, folder, listen, poll_s, files_urls, tls_certificate, tls_key, tunnel, tunnel_keys, unconfined):
    """Serve the platform in FOLDER until Ctrl-C."""
    from vmhost import web_server
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.cloud.server import serve as serve_platform

    if (tls_certificate is None) != (tls_key is None):
        raise failures.Failure("--tls-certificate and --tls-key go together")
    if (tunnel is None) != (tunnel_keys is None):
        raise failures.Failure("--tunnel and --tunnel-keys go together")
    tls = (tls_certificate, tls_key) if tls_key is not None else None
    host, port = web_server.parsed(listen)
    with _errors(), contextlib.closing(web_server.listening(host, port)) as listening:
        with Platform(folder, poll_s=poll_s, files_urls=_by_region(files_urls), unconfined=unconfined) as platform:
            shown = f"[{host}]" if ":" in host else host
            address = f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
            with _tunnel(platform, tunnel, tunnel_keys) as by_tunnel:
                message = {"folder": str(folder), "url": address, "git": f"{address}/git/", "tunnel": by_tunnel}
                why_not = platform.builder.why_not_confined
                output.document(message | {"builds_confined": why_not is None})
                if why_not is not None:
                    output.line(
                        f"builds are NOT confined on this machine ({why_not}): tasks with `requirements` are "
                        + ("built with this user's rights" if unconfined else "refused")
                    )
                also = f" and by the tunnel at {by_tunnel}" if by_tunnel else ""
                output.line(f"platform {folder} at {address}{also}; git at {address}/git/NAME; Ctrl-C ends it")
                serve_platform(platform, listening, tls)


@contextlib.contextmanager
def _tunnel(platform, address, keys):
    """Serves devices by the tunnel within the block, if `address` is given; yields its address, or None."""
    if address is None:
        yield None
        return
    from vmhost.deployment.cloud.tunnel_calls import TunnelCalls
    from vmhost.deployment.cloud.web import application
    from vmhost.deployment.tunnel_channel import CHANNEL
    from vmhost.tunnel import Server

    server = Server(
        platform.folder / "tunnel.db",
        certificate=keys / "server.pem",
        key=keys / "server.key",
        client_ca=keys / "ca.pem",
        why_blocked=platform.devices.why_blocked,
    )
    calls = TunnelCalls(application(platform), lambda: platform.releases.generation, server.push)
    server.answer(CHANNEL, calls.answer)
    platform.debugging.ask = device_asker(server)
    with server.running(address, drain_s=1.0) as where:
        yield where


def device_asker(server):
    """How the platform sends debugging requests to a device of this tunnel Server: (device, text, timeout_s) ->
    text."""
    from vmhost.deployment.tunnel_channel import DEBUG_CHANNEL
    from vmhost.operations.debugging import DebugError
    from vmhost.tunnel import TunnelError

    def ask(device, text, timeout_s):
        try:
            return server.call(server.ask(device, DEBUG_CHANNEL, text, timeout_s))
        except TunnelError as error:
            raise DebugError("host", f"{device} does not answer: {error}") from error

    return ask


def _by_region(texts):
    """(region or None, address) of each `[REGION=]URL`."""
    found = []
    for text in texts:
        region, equals, address = text.partition("=")
        if not equals or "/" in region:
            region, address = None, text
        if not address.startswith(("http://", "https://", "/")):
            raise failures.Failure(f"--files-url {text}: expected [REGION=]URL, as in eu=https://eu.example/files/")
        found.append((region, address if address.endswith("/") else f"{address}/"))
    return found


# ---- any platform, over its API


class _Client:
    def __init__(self, platform, token):
        from vmhost.deployment.device.transfers import Transfers

        if not platform or not token:
            raise failures.Failure(
                "name the platform and the account: --platform URL --token TOKEN, or VMHOST_PLATFORM, VMHOST_TOKEN"
            )
        self.address = platform.rstrip("/")
        self._transfers, self._token = Transfers(self.address), token

    def __call__(self, method, path, body=None, **query):
        from urllib.parse import urlencode

        from vmhost.deployment.device.transfers import AnswerError
        from vmhost.deployment.errors import RefusedError

        query = {name: value for name, value in query.items() if value is not None}
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if value is not None}
        path = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            return self._transfers.ask(method, path, body, {"authorization": f"Bearer {self._token}"})
        except AnswerError as error:
            raise RefusedError(error.message) from error
        finally:
            self._transfers.close()


_PLATFORM = "The platform's address. [default: $VMHOST_PLATFORM]"
_TOKEN = "Your token there. [default: $VMHOST_TOKEN]"


def _remote(function):
    """Decorates a command that gets a _Client."""

    @click.option("--platform", default=lambda: os.environ.get("VMHOST_PLATFORM"), help=_PLATFORM)
    @click.option("--token", default=lambda: os.environ.get("VMHOST_TOKEN"), help=_TOKEN)
    @failures.command
    def reported(output, platform, token, **kwargs):
        with _errors():
            return function(output, _Client(platform, token), **kwargs)

    reported.__name__, reported.__doc__ = function.__name__, function.__doc__
    for parameter in getattr(function, "__click_params__", ()):
        reported.__click_params__.append(parameter)
    return reported


@command.command()
@click.argument("name")
@_remote
def repository(output, ask, name):
    """Create the repository NAME, for one business scenario."""
    output.document(made := ask("POST", "/repositories", {"name": name}))
    output.line(f"repository {made['name']}; push tasks to .../git/{made['name']}")


@command.command()
@click.argument("name")
@click.option(
    "--role", required=True, type=click.Choice(tuple(ROLES)), help="What it may do; with that of fleet devices join."
)
@_remote
def account(output, ask, name, role):
    """Create the account NAME, and print its token."""
    output.document(made := ask("POST", "/accounts", {"name": name, "role": role}))
    output.line(f"account {name} ({role}); its token, shown this once:")
    output.line(made["token"])


@command.command()
@_remote
def accounts(output, ask):
    """List accounts and their tokens, without secrets."""
    output.document(found := ask("GET", "/accounts"))
    rows = [
        (
            each["name"],
            each["role"] + (" (disabled)" if each["disabled"] else ""),
            token["id"] if token else "",
            ", ".join(token["scopes"]) if token else "",
            token["label"] if token else "",
            "revoked" if token and token["revoked"] else _until(token),
        )
        for each in found["accounts"]
        for token in each["tokens"] or [None]
    ]
    output.table("", ("account", "role", "token", "may", "label", "until"), rows)


def _until(token):
    return _time(token["expires_ms"]) if token and token["expires_ms"] else ""


@command.command()
@click.argument("name")
@click.option("--role", type=click.Choice(tuple(ROLES)), help="The new role.")
@click.option("--disable/--enable", "disabled", default=None, help="Whether its tokens are refused.")
@_remote
def change(output, ask, name, role, disabled):
    """Change the account NAME: its role, or whether it is disabled."""
    if role is None and disabled is None:
        raise failures.Failure("say what to change: --role ROLE, --disable or --enable")
    output.document(ask("PATCH", f"/accounts/{name}", {"role": role, "disabled": disabled}))
    output.line(f"account {name} is changed")


@command.command()
@click.argument("account")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="read, push, release, or one of these for a repository: push:shop; join: devices ask, an admin approves. "
    "[default: all of the account's]",
)
@click.option(
    "--for",
    "valid_s",
    type=quantities.Time(1, 36500 * 86400),
    help='How long it is valid, as in "90 d". [default: for ever]',
)
@click.option("--label", default="", help="Its purpose.")
@click.option("--uses", type=click.IntRange(1), help="How many devices may join with it. [default: any number]")
@_remote
def token(output, ask, account, scopes, valid_s, label, uses):
    """Create a further token of ACCOUNT."""
    body = {"account": account, "scopes": list(scopes) or None, "expires_s": valid_s, "label": label, "uses": uses}
    output.document(made := ask("POST", "/tokens", body))
    output.line(f"a token of {account}, shown this once:")
    output.line(made["token"])


@command.command()
@click.argument("identity", metavar="TOKEN")
@_remote
def revoke(output, ask, identity):
    """Revoke TOKEN: its id, which `accounts` lists, or the whole token."""
    identity = identity.removeprefix("vmh_").partition("_")[0]
    output.document(ask("DELETE", f"/tokens/{identity}"))
    output.line(f"token {identity} is revoked")


@command.command()
@click.argument("subject", required=False)
@_remote
def audit(output, ask, subject):
    """Show who did what to accounts, releases and devices; for SUBJECT (an account, `shop/rank 1.0.0`), or for all."""
    output.document(found := ask("GET", "/audit", subject=subject))
    for each in found["audit"][::-1]:
        details = ", ".join(f"{name} {value}" for name, value in each["details"].items() if value not in ("", None))
        output.line(
            f"{_time(each['time_ms'])} {each['who']}: {each['action']} {each['subject']}"
            + (f" ({details})" if details else "")
        )


@command.command()
@_remote
def repositories(output, ask):
    """List the repositories."""
    output.document(found := ask("GET", "/repositories"))
    for name in found["repositories"]:
        output.line(name)


@command.command()
@_remote
def cohorts(output, ask):
    """List the named cohorts and their devices."""
    output.document(found := ask("GET", "/cohorts"))
    rows = [(name, str(len(devices)), ", ".join(devices[:10])) for name, devices in found["cohorts"].items()]
    output.table("", ("cohort", "devices>", "who"), rows)


@command.command()
@_remote
def stuck(output, ask):
    """List devices that are not in the state they should be in, and why."""
    output.document(found := ask("GET", "/stuck"))
    rows = [
        (
            each["device"],
            f"{each['task']} {each['version']}" if each["release"] else "",
            each["state"],
            each["reason"].splitlines()[0][:100] if each["reason"] else "",
        )
        for each in found["devices"]
    ]
    output.table("", ("device", "version", "state", "why"), rows)


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("role")
@failures.command
def rotate(output, folder, role):
    """Replace a key of the platform in FOLDER: root, targets, snapshot, timestamp, releases, or role-REPOSITORY.

    The platform may be running. Meanwhile the offline key that this needs (of root; of targets, for a repository) must
    be in FOLDER-offline-keys.
    """
    from vmhost.deployment.cloud.metadata import SignedMetadata
    from vmhost.deployment.errors import MissingError

    with _errors():
        if not (folder / "metadata" / "1.root.json").exists():
            raise MissingError(f"{folder}: holds no platform; make one: vmhost cloud init {folder}")
        SignedMetadata(folder / "metadata", folder / "keys", time.time).rotate(role)
    output.document({"folder": str(folder), "role": role})
    output.line(f"{role} has a new key; devices take it with their next request")


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@failures.command
def backup(output, folder, archive):
    """Write the platform in FOLDER to the new file ARCHIVE. The platform may be running.

    The archive holds the platform's keys, but not the offline ones. Back up PostgreSQL by its own means, before this.
    """
    from vmhost.deployment.cloud import backups

    with _errors(), _written(archive), _terminable():
        size = backups.back_up(folder, archive, output.remark)
    output.document({"folder": str(folder), "archive": str(archive), "bytes": size})
    output.line(f"{archive}: {size / 2**20:,.1f} MiB; with it goes FOLDER-offline-keys, which you keep apart")


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--archive",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A backup to make FOLDER of. [default: FOLDER was put back by other means]",
)
@click.option(
    "--trust-clock",
    is_flag=True,
    help="This machine's clock is right, though the backup knows of later, or is a year old.",
)
@failures.command
def restore(output, folder, archive, trust_clock):
    """Make the platform in FOLDER of a backup, so that the fleet goes on with it.

    Devices refuse metadata that is older than what they have seen. So versions and release numbers go on at numbers
    that no platform has reached before. Put the offline key of targets into FOLDER-offline-keys first.
    """
    from vmhost.deployment.cloud import backups

    with _errors(), _written(folder), _terminable():
        if archive is None:
            complete = backups.go_on(folder, trust_clock=trust_clock)
        else:
            complete = backups.restore(archive, folder, trust_clock=trust_clock, tell=output.remark)
    output.document({"folder": str(folder), "targets_signed": complete})
    output.line(f"platform {folder} is restored; serve it: vmhost cloud serve {folder}")
    if not complete:
        output.line(
            "the list of repositories was not signed anew: if an owner or a key came after the backup, put the offline "
            f"key of targets into {folder}-offline-keys, and run: vmhost cloud restore {folder}"
        )


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("repository")
@click.option("--add", type=click.Path(path_type=Path, exists=True), multiple=True, help="An owner's public key.")
@click.option("--remove", multiple=True, metavar="KEY", help="A key's file, or the beginning of its id.")
@click.option("--threshold", type=int, help="How many of them must sign. [default: unchanged, or 1]")
@failures.command
def owners(output, folder, repository, add, remove, threshold):
    """Set the owners whose keys sign for REPOSITORY of the platform in FOLDER; without owners, the platform's own key
    signs.

    The platform may be running. Meanwhile the offline key of targets must be in FOLDER-offline-keys. Devices trust what
    the owners signed; the present list counts again once they have signed it: `vmhost cloud sign REPOSITORY --key KEY`.
    """
    from vmhost.bytecode.signing import TrustStore
    from vmhost.deployment.cloud.metadata import SignedMetadata, key_of_public
    from vmhost.deployment.errors import MissingError, RefusedError

    with _errors():
        if not (folder / "metadata" / "1.root.json").exists():
            raise MissingError(f"{folder}: holds no platform; make one: vmhost cloud init {folder}")
        metadata = SignedMetadata(folder / "metadata", folder / "keys", time.time)
        known = metadata.owners(repository)
        if add or remove or threshold is not None:
            publics = dict(known["publics"])
            for path in remove:
                removed = [identity for identity in publics if len(path) >= 8 and identity.startswith(path)]
                if Path(path).exists():
                    removed = [key_of_public(public)[0] for public in TrustStore.load(path).keys]
                if not removed or not all(identity in publics for identity in removed):
                    raise RefusedError(f"{path}: is no key of an owner of {repository}")
                for identity in removed:
                    del publics[identity]
            for path in add:
                publics |= {key_of_public(public)[0]: public for public in TrustStore.load(path).keys}
            min_threshold = min(known["threshold"], max(1, len(publics)))
            metadata.set_owners(repository, publics.values(), threshold if threshold is not None else min_threshold)
            known = metadata.owners(repository)
    state = {"repository": repository, "owners": sorted(known["publics"]), "threshold": known["threshold"]}
    output.document(state)
    if not known["publics"]:
        output.line(f"{repository}: the platform's own key signs")
    else:
        output.line(f"{repository}: {known['threshold']} of {len(known['publics'])} owners sign")
        for identity in state["owners"]:
            output.line(f"  {identity}")


@command.command()
@click.argument("repository")
@click.option("--key", help="Your signing key: its name, or its file (see: vmhost keys).")
@click.option("--yes", is_flag=True, help="Sign without asking.")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the list to FILE, to sign it elsewhere."
)
@click.option(
    "--send",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Submit the signature that `vmhost cloud sign-file` put into FILE.",
)
@_remote
def sign(output, ask, repository, key, yes, save, send):
    """Show the list that waits for signatures of REPOSITORY's owners, and sign it with --key.

    With a key, only the changes since that key's last signature on this machine are shown.
    """
    import json

    from vmhost.deployment.errors import RefusedError

    if sum(each is not None for each in (key, save, send)) > 1:
        raise failures.Failure("give one of --key, --save and --send")
    if send is not None:
        plain = _list_in(send)
        if plain["repository"] != repository or not plain["signatures"]:
            raise RefusedError(f"{send}: holds no signature over a list of {repository}: vmhost cloud sign-file {send}")
        for each in plain["signatures"]:
            made = ask("POST", f"/repositories/{repository}/signatures", each)
        output.document(made)
        _show_signed(output, made)
        return
    found = ask("GET", f"/repositories/{repository}/signing")
    waiting, needed = found["waiting"], found["threshold"]
    if waiting is None:
        if key is not None or save is not None:
            raise RefusedError(f"{repository}: nothing waits for a signature")
        output.document(found)
        who = f"{needed} of {len(found['owners'])} owners sign" if found["owners"] else "the platform signs"
        output.line(f"{repository}: {who}; nothing waits")
        return
    if key is None:
        _show_list(output, waiting["signed"], waiting["added"], waiting["removed"])
        if save is not None:
            plain = {"repository": repository, "signed": waiting["signed"], "signatures": []}
            save.write_text(json.dumps(plain, indent=1))
            output.line(f"{save}: sign it: vmhost cloud sign-file {save} --key KEY")
        output.document(found)
        output.line(f"{len(waiting['signed_by'])} of {needed} owners signed it; sign it with --key")
        return
    body = _sign_list(output, repository, waiting["signed"], key, yes)
    output.document(made := ask("POST", f"/repositories/{repository}/signatures", body))
    _show_signed(output, made)


@command.command("sign-file")
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.option("--key", required=True, help="Your signing key: its name, or its file (see: vmhost keys).")
@click.option("--yes", is_flag=True, help="Sign without asking.")
@failures.command
def sign_file(output, path, key, yes):
    """Sign the list in FILE, which `vmhost cloud sign --save` wrote. This machine needs no network."""
    import json

    from vmhost.deployment.artifacts import replace_durably

    with _errors():
        plain = _list_in(path)
        body = _sign_list(output, plain["repository"], plain["signed"], key, yes)
        plain["signatures"] = [each for each in plain["signatures"] if each["keyid"] != body["keyid"]] + [body]
        replace_durably(path, json.dumps(plain, indent=1).encode())
    output.document({"file": str(path), "repository": plain["repository"], "signatures": len(plain["signatures"])})
    output.line(f"{path}: signed; submit it: vmhost cloud sign {plain['repository']} --send {path}")


def _list_in(path):
    """The file by `sign --save`: {"repository", "signed", "signatures"}. RefusedError."""
    import json

    from vmhost.deployment import identifiers
    from vmhost.deployment.errors import RefusedError

    try:
        plain = json.loads(path.read_bytes())
        identifiers.check("repository", plain["repository"])
        if not isinstance(plain["signed"], dict) or not all(each.keys() for each in plain["signatures"]):
            raise TypeError
    except OSError, ValueError, KeyError, TypeError, AttributeError:
        raise RefusedError(f"{path}: is no list that `vmhost cloud sign REPOSITORY --save {path}` wrote") from None
    return plain


def _sign_list(output, repository, signed, name, yes):
    """{"keyid", "signature"} of the key over the list, after checking and showing it, and a confirmation on a
    terminal."""
    import sys

    from vmhost.cli import keys
    from vmhost.deployment import owner_lists
    from vmhost.deployment.cloud.metadata import key_of
    from vmhost.deployment.trust import canonical

    private = keys.signing_key(name)
    keyid = key_of(private)[0]
    owner_lists.check(signed, repository, time.time())
    own = owner_lists.Signed(keys.home() / "signed")
    _show_list(output, signed, *owner_lists.changes(own.last(keyid, repository), signed))
    if not yes and sys.stdin.isatty() and not click.confirm("Sign this?", err=True):
        raise failures.Failure("nothing was signed")
    signature = private.sign(canonical(signed))[len(private.public) :].hex()
    own.keep(keyid, repository, signed)
    return {"keyid": keyid, "signature": signature}


def _show_list(output, signed, added, removed):
    for path in added:
        output.line(f"+ {path}  sha256 {signed['targets'][path]['hashes']['sha256']}")
    for path in removed:
        output.line(f"- {path}")
    if not added and not removed:
        output.line("nothing changed; it is to be signed again before it expires")


def _show_signed(output, made):
    if made["complete"]:
        output.line(f"signed, and complete; listed now: {', '.join(made['listed']) or 'nothing new'}")
    else:
        output.line("signed; more owners must sign it")


@command.command()
@click.argument("task", required=False)
@_remote
def versions(output, ask, task):
    """List the versions of TASK (repository/branch), or of all."""
    output.document(found := ask("GET", "/versions", task=task))
    rows = [
        (each["task"], each["version"], each["commit"][:10], each["who"], _time(each["time_ms"]), each["bad"] or "")
        for each in found["versions"]
    ]
    output.table("", ("task", "version", "commit", "who", "when", "bad"), rows)


@command.command()
@click.argument("task")
@click.argument("version")
@click.option(
    "--plan",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A release.yaml.",
)
@click.option("--all-at-once", is_flag=True, help="Instead of a plan: offer it to all devices now.")
@click.option("--why", default="", help="For the history.")
@click.option("--priority", type=int, help="Order among the task's queued releases.")
@_remote
def release(output, ask, task, version, plan, all_at_once, why, priority):
    """Release VERSION of TASK according to a plan."""

    from vmhost.deployment.cloud.plan import Plan

    if (plan is None) != all_at_once:
        raise failures.Failure("say how it spreads: --plan FILE (a release.yaml), or --all-at-once to mean that")
    plain = None
    if plan is not None:
        plain = dict(Plan.read(plan.read_text(encoding="utf-8"), str(plan)).plain)
    body = {"task": task, "version": version, "plan": plain, "why": why, "priority": priority}
    output.document(made := ask("POST", "/releases", body))
    output.line(f"release {made['id']} of {task} {version} is {made['state']}, step {made['step']} of {made['steps']}")


@command.command()
@click.argument("task", required=False)
@_remote
def releases(output, ask, task):
    """List releases, the latest first."""
    output.document(found := ask("GET", "/releases", task=task))
    rows = [
        (
            str(each["id"]),
            each["task"],
            each["version"],
            each["state"],
            f"{each['step']}/{each['steps']}",
            *(f"{each['devices'][name]:,}" for name in ("reached", "proven", "failed", "silent")),
            each["who"],
        )
        for each in found["releases"]
    ]
    output.table(
        "", ("id>", "task", "version", "state", "step>", "reached>", "proven>", "failed>", "silent>", "who"), rows
    )


@command.command()
@click.argument("number", type=int)
@click.option("--state", type=click.Choice(tuple(release_states.DEVICE)), help="Only devices in this state.")
@_remote
def show(output, ask, number, state):
    """Show release NUMBER, and its devices with their reasons."""
    found = ask("GET", f"/releases/{number}")
    found["list"] = ask("GET", f"/releases/{number}/devices", state=state)["devices"]
    output.document(found)
    where = f"step {found['step']} of {found['steps']}"
    output.line(f"release {number} of {found['task']} {found['version']}: {found['state']}, {where}")
    _show_devices(output, "", found["list"])


def _action(name, event, text):
    @command.command(name, help=text, short_help=text)
    @click.argument("number", type=int)
    @click.option("--why", default="", help="For the history.")
    @_remote
    def act(output, ask, number, why):
        output.document(found := ask("POST", f"/releases/{number}/{event}", {"why": why}))
        output.line(f"release {number} of {found['task']} {found['version']} is {found['state']}")


_action("pause", "pause", "Offer release NUMBER to no further device until it is resumed.")
_action("resume", "resume", "Continue the paused or halted release NUMBER; earlier failures are excused.")
_action("halt", "halt", "Stop release NUMBER: it spreads no further, and stays where it runs.")
_action("rollback", "roll_back", "Roll release NUMBER back on all devices at once, and mark its version as bad.")
_action("next", "next", "Move release NUMBER to its next step now.")
_action("cancel", "cancel", "Cancel the queued release NUMBER.")


@command.command()
@click.argument("task")
@click.argument("version")
@click.option("--why", required=True, help="For the history.")
@_remote
def forgive(output, ask, task, version, why):
    """Let VERSION of TASK be released again after a rollback."""
    output.document(ask("POST", "/forgive", {"task": task, "version": version, "why": why}))
    again = f"vmhost cloud release {task} {version} --plan release.yaml"
    output.line(f"{task} {version} is forgiven; release it again: {again}")


@command.command()
@click.argument("device", required=False)
@_remote
def devices(output, ask, device):
    """List devices; for DEVICE, show all that is known, and why it has or lacks each release."""
    if device is None:
        output.document(found := ask("GET", "/devices"))
        rows = [
            (
                each["device"],
                _time(each["seen_ms"]),
                ", ".join(
                    f"{task} {has['version']} {has['state']}" for task, has in each["tasks"].items() if " " not in task
                ),
            )
            for each in found["devices"]
        ]
        output.table("", ("device", "seen", "runs"), rows)
        return
    output.document(found := ask("GET", f"/devices/{device}"))
    output.line(f"{device}: seen {_time(found['seen_ms'])}, cohorts {', '.join(found['cohorts']) or 'none'}")
    for name, why in found["bad_facts"].items():
        output.line(f"bad fact {name}: {why}")
    rows = [
        (
            str(each["release"]),
            each["task"],
            each["version"],
            each["state"] or "-",
            each["why_not"] or "",
            each["reason"],
        )
        for each in found["releases"]
    ]
    output.table("", ("release>", "task", "version", "state", "why not", "reason"), rows)


@command.command()
@click.argument("number", type=int)
@click.argument("device")
@_remote
def retry(output, ask, number, device):
    """Offer release NUMBER again to DEVICE, which failed or declined it."""
    output.document(ask("POST", f"/releases/{number}/retry", {"device": device}))
    output.line(f"{device} is offered release {number} again")


@command.command("debug")
@click.argument("device")
@links.SCOPES
@links.VALID
@click.option("--note", default="", help="Its purpose, shown to the person at the device.")
@links.NO_QR
@_remote
def debug_link(output, ask, device, scopes, valid_s, note, no_qr):
    """Make a link that opens one debugging session on DEVICE, with the consent of its user."""
    from vmhost import debug_links

    scopes = list(scopes or links.ALL_SCOPES)
    body = {"device": device, "scopes": scopes, "valid_s": valid_s, "note": note}
    made = ask("POST", "/debug/links", body | {"address": ask.address})
    links.show(output, debug_links.read(made["link"]), no_qr)


@command.command("debug-links")
@click.option("--revoke", metavar="LINK", help="Revoke this link: its session gets no more answers.")
@_remote
def debug_link_list(output, ask, revoke):
    """List debugging links, the latest first; or revoke one."""
    if revoke is not None:
        output.document(ask("DELETE", f"/debug/links/{revoke}"))
        output.line(f"link {revoke} is revoked")
        return
    output.document(found := ask("GET", "/debug/links"))
    rows = [
        (each["id"], each["device"], each["who"], ", ".join(each["scopes"]), _time(each["time_ms"]))
        + ("revoked" if each["revoked"] else "used" if each["session"] else "open", each["note"])
        for each in found["links"]
    ]
    output.table("", ("link", "device", "by", "scopes", "made", "state", "note"), rows)


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--device", required=True, help="The device's name, unique in the fleet.")
@click.option("--platform", required=True, help="The platform's address.")
@click.option("--token", required=True, help="A token of an account with the role fleet.")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="CA certificates that the device trusts, in PEM. [default: the system's]",
)
@failures.command
def join(output, folder, device, platform, token, certificates):
    """Write a device's configuration into FOLDER: agent.yaml, the root of trust, and the key that signs bundles."""
    import json

    from vmhost.deployment import identifiers
    from vmhost.deployment.device.transfers import Transfers
    from vmhost.deployment.errors import MissingError

    with (
        _errors(),
        contextlib.closing(Transfers(platform.rstrip("/"), certificates=certificates)) as transfers,
    ):
        identifiers.check("device", device)
        if (folder / "agent.yaml").exists():
            raise failures.Failure(f"{folder}/agent.yaml: is there already; a device has a folder of its own")
        files = {}  # written when all are there
        for path, name in (("/metadata/1.root.json", "root.json"), ("/keys/bundles.pub", "bundles.pub")):
            files[name] = transfers.fetch(path, 1 << 20)
            if files[name] is None:
                raise MissingError(f"{platform}: is no deployment platform: it has no {path}")
        plain = {"device": device, "platform": platform, "token": token, "folder": "state"}
        plain |= {"keys": "bundles.pub", "root": "root.json"}
        if certificates is not None:
            files["certificates.pem"] = certificates.read_bytes()
            plain["certificates"] = "certificates.pem"
        debug_key = transfers.fetch("/keys/debug.pub", 1 << 12)
        if debug_key is not None:  # for `debugging` in agent.yaml, which only the device's owner adds
            files["debug.pub"] = debug_key
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / "agent.yaml").touch(mode=0o600)
        (folder / "agent.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in plain.items()))
    output.document({"agent": str(folder / "agent.yaml")})
    output.line(f"{folder}/agent.yaml is written; begin: vmhost agent {folder}/agent.yaml")


@command.command()
@click.argument("task")
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--name", help="Its name on devices. [default: the file's name]")
@click.option("--exclusive", is_flag=True, help="For few devices, named in the audience.")
@click.option(
    "--audience", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A YAML file. [default: all]"
)
@_remote
def file(output, ask, task, path, name, exclusive, audience):
    """Give the file PATH to devices that run TASK. A file NAME.rules.yaml or .json is a rule pack: it is checked, and
    pipelines on the devices load it."""
    import json

    from vmhost.deployment.device.bundle_store import RULE_PACKS
    from vmhost.pipeline.complex_events import check_rules, read_rule_file

    plain = _yaml(audience) if audience is not None else {}
    if (name or path.name).endswith(RULE_PACKS):
        check_rules(read_rule_file(path))
    kind = "exclusive" if exclusive else "shared"
    query = {"task": task, "name": name or path.name, "kind": kind, "audience": json.dumps(plain)}
    output.document(made := ask("POST", "/files", path.read_bytes(), **query))
    output.line(f"file {made['id']}: {name or path.name} of {task}, {kind}")


@command.command()
@click.argument("task", required=False)
@click.option("--remove", type=int, metavar="NUMBER", help="Withdraw file NUMBER from devices.")
@_remote
def files(output, ask, task, remove):
    """List the files that devices get besides bundles."""
    if remove is not None:
        ask("DELETE", f"/files/{remove}")
    output.document(found := ask("GET", "/files", task=task))
    rows = [
        (str(each["id"]), each["task"], each["name"], each["kind"], f"{each['size']:,}", str(each["audience"]))
        for each in found["files"]
    ]
    output.table("", ("file>", "task", "name", "kind", "bytes>", "audience"), rows)


@command.command()
@click.argument("device", required=False)
@click.option("--why", default="", help="Shown to the device and to admins.")
@_remote
def block(output, ask, device, why):
    """Refuse DEVICE on platform and tunnel, whatever secret or certificate it has; without DEVICE, list the blocked."""
    if device is None:
        output.document(found := ask("GET", "/blocked"))
        rows = [(each["device"], _time(each["time_ms"]), each["who"], each["why"]) for each in found["blocked"]]
        output.table("", ("device", "since", "who", "why"), rows)
        return
    output.document(ask("PUT", f"/devices/{device}/block", {"why": why}))
    output.line(f"{device} is blocked; lift it: vmhost cloud unblock {device}")


@command.command()
@click.argument("device")
@_remote
def unblock(output, ask, device):
    """Let the blocked DEVICE come back."""
    output.document(ask("DELETE", f"/devices/{device}/block"))
    output.line(f"{device} may come back")


@command.command()
@_remote
def joins(output, ask):
    """List devices that ask to join with a token of the scope `join`, and those that were refused."""
    output.document(found := ask("GET", "/joins"))
    rows = [
        (each["device"], each["code"], each["state"], _time(each["time_ms"]), each["network"], each["who"])
        for each in found["joins"]
    ]
    output.table("", ("device", "code", "state", "since", "from", "token of"), rows)


@command.command()
@click.argument("device")
@click.argument("code")
@_remote
def approve(output, ask, device, code):
    """Let DEVICE join, which asks for it. Compare CODE with the one that the device itself shows."""
    output.document(ask("POST", f"/joins/{device}/approve", {"code": code}))
    output.line(f"{device} joins with its next request")


@command.command()
@click.argument("device")
@click.argument("code")
@_remote
def refuse(output, ask, device, code):
    """Refuse DEVICE, which asks to join. `approve` still lets it join later."""
    output.document(ask("POST", f"/joins/{device}/refuse", {"code": code}))
    output.line(f"{device} {code} is refused")


@command.command()
@click.argument("device")
@_remote
def forget(output, ask, device):
    """Let DEVICE, which was set up again, join under its old name."""
    output.document(ask("DELETE", f"/devices/{device}"))
    output.line(f"{device} may join again")


@command.command()
@click.argument("name")
@click.argument("members", nargs=-1, metavar="[DEVICE]...")
@_remote
def cohort(output, ask, name, members):
    """Set the members of the named cohort NAME, replacing the present ones."""
    output.document(found := ask("PUT", f"/cohorts/{name}", {"devices": list(members)}))
    output.line(f"cohort {name} has {found['devices']} devices")


@command.command()
@click.argument("audience", metavar="AUDIENCE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--task", default="", help="The task whose cohorts `percent` uses.")
@click.option("--device", help="Only say why this device is or is not in it.")
@_remote
def ask(output, ask, audience, task, device):
    """List the known devices in the audience of the file AUDIENCE (YAML), and why others are not in it."""
    plain = _yaml(audience)
    output.document(found := ask("POST", "/ask", {"audience": plain, "task": task, "device": device}))
    output.line(
        f"{found['matching']:,} of {found['known']:,} known devices: {', '.join(found['devices'][:10]) or 'none'}"
    )
    output.table("", ("device", "why not"), list(found["reasons"].items())[:20])


@command.command()
@click.argument("task", required=False)
@_remote
def history(output, ask, task):
    """Show who released what, when and why; the latest last."""
    output.document(found := ask("GET", "/history", task=task))
    _show_history(output, found["history"][::-1])


@contextlib.contextmanager
def _written(path):
    """An OSError within the block, such as of a full disk, means that `path` could not be made."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f" ({error.filename})"
        raise failures.Failure(f"{path}: cannot be written: {error.strerror}{where}", failures.HOST_FAILED) from error


@contextlib.contextmanager
def _terminable():
    """SIGTERM ends the block as Ctrl-C does: what is half made is removed. A second one does not interrupt that."""

    def heard(number, frame):
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, heard) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _yaml(path):
    import yaml

    from vmhost.settings.files import plain_yaml

    try:
        return plain_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise failures.Failure(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def _show_history(output, history):
    for each in history:
        release = f" release {each['release']}" if each["release"] else ""
        state = f" -> {each['state']}" if each["event"] != each["state"] else ""
        why = f": {each['why']}" if each["why"] else ""
        output.line(
            f"{_time(each['time_ms'])} {each['task']} {each['version']}{release} {each['event']}{state}, "
            f"by {each['who']}{why}"
        )


def _show_devices(output, title, devices):
    rows = [
        (
            each["device"],
            each["state"],
            str(each["step"] + 1),
            each["reason"].splitlines()[0][:100] if each["reason"] else "",
        )
        for each in devices
    ]
    output.table(title, ("device", "state", "step>", "reason"), rows)


def _time(ms):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1000))


@command.command()
@click.option(
    "--last",
    "last_s",
    type=quantities.Time(1, 336 * 3600),
    default="24 h",
    show_default=True,
    help='How far back, as in "2 d"; at most 14 days.',
)
@_remote
def fleet(output, ask, last_s):
    """Show the devices' reports: running versions, errors by cohort, crashes by cause, open alerts."""
    found = ask("GET", "/fleet", hours=last_s / 3600, limit=1000)
    alerts = ask("GET", "/fleet/alerts", limit=1000)["alerts"]
    output.document(found | {"alerts": alerts})
    rows = [
        (each["task"], of["version"], f"{of['devices']:,}", f"{of['share']:.1%}", str(of["breakers"] or ""))
        for each in found["adoption"]
        for of in each["versions"]
    ]
    output.table("Adoption", ("task", "version", "devices>", "share>", "breakers>"), rows)
    rows = [
        (f"{each['task']} {each['version']}", each["cohort"] or "all", f"{each['calls']:,}", f"{each['share']:.2%}")
        + (f"{each['denied']:,}", f"{each['crashes']:,}", _duration(each["p50_s"]), _duration(each["p99_s"]))
        for each in found["sums"]
    ]
    names = ("version", "cohort", "calls>", "failed>", "denied>", "crashes>", "p50>", "p99>")
    output.table("Calls", names, rows)
    rows = [
        (
            f"{each['task'] or 'the host'} {each['version']}",
            str(each["count"]),
            str(each["devices"]),
            each["title"][:100],
        )
        for each in found["crashes"]
    ]
    output.table("Crashes", ("version", "crashes>", "devices>", "what"), rows)
    _show_alerts(output, [each for each in alerts if each["until_ms"] is None])


@command.command()
@click.option(
    "--rules", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Set the rules: a YAML file."
)
@_remote
def alerts(output, ask, rules):
    """List alerts, open ones first; or set their rules."""
    if rules is not None:
        output.document(found := ask("PUT", "/fleet/rules", {"text": rules.read_text(encoding="utf-8")}))
        output.line(f"rules: {', '.join(found['rules']) or 'none'}")
        return
    output.document(found := ask("GET", "/fleet/alerts"))
    _show_alerts(output, found["alerts"])


def _show_alerts(output, alerts):
    rows = [
        (each["rule"], f"{each['task'] or 'the host'} {each['version']}", each["cohort"] or "all")
        + (_time(each["since_ms"]), _time(each["until_ms"]) if each["until_ms"] else "goes on", each["why"])
        for each in alerts
    ]
    output.table("Alerts", ("rule", "version", "cohort", "since", "until", "why"), rows)


def _duration(seconds):
    return "" if seconds is None else f"{seconds * 1000:.3g} ms"
