"""`vmhost keys`: make and list signing keys, and manage the signers that this machine trusts.

Keys are in `$VMHOST_KEYS`, else `$XDG_CONFIG_HOME/vmhost`, else `~/.config/vmhost`: private ones with their `.pub`
files in `keys/`, trusted ones in `trusted/`, one `.pub` file each. `vmhost compile --sign NAME` and `vmhost run` look
there.
"""

import os
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.groups import Group


def home():
    """The folder of `keys/` and `trusted/`; it need not exist."""
    if "VMHOST_KEYS" in os.environ:
        return Path(os.environ["VMHOST_KEYS"])
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "vmhost"


def signing_key(name_or_path):
    """The SigningKey for `--sign`: a file, or the name of one in `keys/`."""
    from vmhost.bytecode import signing

    stored = home() / "keys" / name_or_path
    if os.sep not in name_or_path and not Path(name_or_path).exists() and stored.exists():
        return signing.load_key(stored)
    return signing.load_key(name_or_path)


def trust_store(paths):
    """The trusted keys: the files and folders in `paths`, else this user's `trusted/`, else none."""
    from vmhost.bytecode import signing

    if not paths:
        default = home() / "trusted"
        paths = [default] if default.is_dir() else []
    keys = {}
    for path in paths:
        keys.update(signing.TrustStore.load(path).keys)
    return signing.TrustStore(keys)


@click.group(cls=Group)
def command():
    """Make and list signing keys, and manage trusted signers."""


@command.command()
@click.argument("name")
@click.option(
    "-o", "--output", "path", type=click.Path(path_type=Path), help="Where to write it, instead of the key folder."
)
@click.option("--trust", is_flag=True, help="Also trust it on this machine.")
@failures.command
def new(output, name, path, trust):
    """Make a signing key named NAME."""
    from vmhost.bytecode import signing

    _check_name(name)
    path = path or home() / "keys" / name
    _make_folder(path.parent, 0o700)
    key = signing.generate_key()
    key.save(path, name)
    document = {"name": name, "fingerprint": signing.fingerprint(key.public), "key": str(path), "public": f"{path}.pub"}
    if trust:
        document["trusted"] = str(_trust(name, key.public))
    output.line(f"{name}  {document['fingerprint']}")
    output.line(f"private key: {path} (keep it to yourself)")
    output.line(f"public key:  {path}.pub (give it to hosts: vmhost keys trust {path}.pub)")
    if trust:
        output.line(f"trusted:     {document['trusted']}")
    output.document(document)


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
@failures.command
def trust(output, path):
    """Trust bundles signed with the public keys in the file PATH."""
    from vmhost.bytecode import signing

    store = signing.TrustStore.load(path)
    if not store.keys:
        raise failures.Failure(f"{path}: holds no public key; give the .pub file that `vmhost keys new` made")
    trusted = []
    for public, name in store.keys.items():
        _check_name(name)
        kept = _trust(name, public)
        trusted.append({"name": name, "fingerprint": signing.fingerprint(public), "path": str(kept)})
    for one in trusted:
        output.line(f"trusted {one['name']}  {one['fingerprint']}")
    output.document({"trusted": trusted})


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--key", required=True, help="Your signing key: its name, or its file.")
@failures.command
def sign(output, files, key):
    """Sign each FILE, such as one of rules: writes FILE.sig next to it."""
    chosen = signing_key(key)
    written = []
    for path in files:
        beside = path.with_name(f"{path.name}.sig")
        try:
            content = path.read_bytes()
            beside.write_bytes(chosen.sign_file(content))
        except OSError as error:
            raise failures.Failure(f"{error.filename or path}: {error.strerror}") from error
        written.append(str(beside))
        output.line(f"{beside}: signed")
    output.document({"signed": written})


@command.command("list")
@failures.command
def list_keys(output):
    """List this user's keys and trusted signers."""
    from vmhost.bytecode import signing

    folder = home()
    rows = {}
    for kind in ("keys", "trusted"):
        if (folder / kind).is_dir():
            for public, name in signing.TrustStore.load(folder / kind).keys.items():
                rows.setdefault((name, public), set()).add(kind)
    listed = [
        {
            "name": name,
            "fingerprint": signing.fingerprint(public),
            "private": "keys" in kinds,
            "trusted": "trusted" in kinds,
        }
        for (name, public), kinds in sorted(rows.items())
    ]
    output.document({"folder": str(folder), "keys": listed})
    if listed:
        output.table(
            f"Keys in {folder}",
            ["name", "fingerprint", "can sign", "trusted"],
            [
                [key["name"], key["fingerprint"], _yes_or_dash(key["private"]), _yes_or_dash(key["trusted"])]
                for key in listed
            ],
        )
    else:
        output.line(f"no keys in {folder}; make one with: vmhost keys new NAME")


def _trust(name, public):
    """Writes the public key into `trusted/`; a key of the same name that differs is never replaced."""
    from vmhost.bytecode import signing

    folder = home() / "trusted"
    _make_folder(folder, 0o755)
    path = folder / f"{name}.pub"
    line = signing.format_public_key(name, public)
    if path.exists() and path.read_text(encoding="utf-8") != line:
        raise failures.Failure(
            f"{path}: trusts another key called {name} already; remove that file first if it is out of use"
        )
    path.write_text(line, encoding="utf-8")
    return path


def _check_name(name):
    if not name or not all(letter.isalnum() or letter in "-_@+." for letter in name) or name.startswith("."):
        raise failures.Failure(f"{name!r}: expected a name of letters, digits and -_@+., not beginning with a dot")


def _make_folder(folder, mode):
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise failures.Failure(f"{folder}: cannot make the folder: {error.strerror}") from error


def _yes_or_dash(flag):
    return "yes" if flag else "-"
