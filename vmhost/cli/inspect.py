"""`vmhost inspect`: the contents of a bundle. Checks signature and digests; unmarshals code only with --verify."""

from pathlib import Path

import click

from vmhost.cli import failures, keys


@click.command(short_help="List the contents of BUNDLE, and who signed it.")
@click.argument("path", type=click.Path(path_type=Path), metavar="BUNDLE")
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to check the signature against."
)
@click.option("--verify", is_flag=True, help="Also check the structure of every code object.")
@failures.command
def command(output, path, trust, verify):
    """List BUNDLE's manifest, modules, files, digests and signature."""
    from vmhost.bytecode.format import read_bundle

    store = keys.trust_store(trust)
    bundle = read_bundle(existing(path), trust=store, allow_unsigned=True)
    if verify:
        bundle.verify()
    document = summary(bundle, path, path.stat().st_size)
    document["signature"] = signature(path, store)
    document["verified"] = verify
    output.document(document)
    output.line(document["task"], style="bold")
    for name, text in _properties(document):
        output.line(f"{name:11} {text}")
    output.line()
    rows = [
        [kind, item["name"], size_text(item["bytes"]), item["sha256"][:16]]
        for kind in ("modules", "files", "texts")
        for item in document[kind]
    ]
    output.table(
        "Contents", ["kind", "name", "size>", "SHA-256"], [[kind.removesuffix("s"), *rest] for kind, *rest in rows]
    )


def existing(path):
    """The path, if it is a file."""
    if path.is_dir():
        if (path / "task.yaml").exists():
            raise failures.Failure(f"{path}: is a task's folder, not a bundle; compile it first: vmhost compile {path}")
        raise failures.Failure(
            f"{path}: is a folder, not a bundle; give the .vmb file, or serve all that are in it: vmhost serve {path}"
        )
    if not path.exists():
        advice = failures.did_you_mean(path) or f"; make one with: vmhost compile FOLDER -o {path}"
        raise failures.Failure(f"{path}: no such bundle{advice}")
    return path


def summary(bundle, path, size):
    """The description of a Bundle, in plain values."""
    from vmhost.bytecode.format import module_path

    manifest = bundle.manifest

    def record(file):
        return {"bytes": manifest.files[file].size, "sha256": manifest.files[file].sha256.hex()}

    return {
        "path": str(path),
        "bytes": size,
        "task": f"{manifest.name} {manifest.version}",
        "name": manifest.name,
        "version": manifest.version,
        "kind": manifest.kind,
        "entry": manifest.entry,
        "target": manifest.target,
        "exact_python": manifest.exact_python,
        "architecture": manifest.architecture,
        "optimize": manifest.optimize,
        "priority": manifest.priority,
        "fresh": manifest.fresh,
        "trigger": manifest.trigger and manifest.trigger.fields(),
        "table": manifest.table and manifest.table.fields(),
        "limits": dict(manifest.limits),
        "permissions": {name: list(granted) for name, granted in manifest.permissions.items()},
        "models": list(manifest.models),
        "digest": bundle.digest.hex(),
        "modules": [
            {"name": name} | record(f"code/{manifest.target}/{module_path(name, module.is_package)}.pyc")
            for name, module in sorted(bundle.modules.items())
        ],
        "files": [{"name": name} | record(f"files/{name}") for name in sorted(bundle.files)],
        "texts": [{"name": digest.hex()[:16]} | record(f"texts/{digest.hex()}") for digest in sorted(bundle.texts)],
    }


def signature(path, store):
    """Who signed the bundle at `path`: None, or the fingerprint and, if `store` trusts it, the name there."""
    from vmhost.bytecode import signing
    from vmhost.bytecode.archive import read_archive

    entries = read_archive(path.read_bytes(), str(path))
    if "signature" not in entries:
        return None
    public = signing.check_signature(bytes(entries["manifest.msgpack"]), bytes(entries["signature"]), str(path))
    return {"fingerprint": signing.fingerprint(public), "trusted_as": store.keys.get(public)}


def size_text(size):
    """A number of bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024


def _properties(document):
    """`(name, text)` for each entry of the manifest, for people."""
    python = document["exact_python"] or document["target"]
    yield "bundle", f"{document['path']}, {size_text(document['bytes'])}"
    yield "digest", document["digest"]
    signed = document["signature"]
    if signed is None:
        yield "signature", "none: hosts refuse it unless they allow unsigned bundles"
    else:
        trusted = (
            f"trusted as {signed['trusted_as']}"
            if signed["trusted_as"]
            else "not trusted here (see: vmhost keys trust)"
        )
        yield "signature", f"{signed['fingerprint']}, {trusted}"
    if document["entry"]:
        yield "entry", document["entry"]
    yield "python", f"{python}, {document['architecture']} architecture, optimize {document['optimize']}"
    yield "limits", ", ".join(_limit(*item) for item in document["limits"].items()) or "the host's"
    granted = [f"{name}: {' '.join(given)}" for name, given in document["permissions"].items() if given]
    yield "permissions", "; ".join(granted) or "none"
    if document["models"]:
        yield "models", ", ".join(document["models"])
    if document["priority"]:
        yield "priority", str(document["priority"])
    if document["fresh"]:
        yield "fresh", "a new VM for each call"
    if document["trigger"]:
        yield "trigger", "; ".join(" ".join(ids) for ids in document["trigger"]["on"])
    if document["table"]:
        yield "table", ", ".join(f"{name} {column['type']}" for name, column in document["table"]["columns"].items())
    if document["verified"]:
        yield "verified", "the structure of every code object"


def _limit(name, value):
    words = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    if name.endswith("_bytes"):
        return f"{words} {size_text(value)}"
    return f"{words} {value:g} s" if name.endswith("_s") else f"{words} {value}"
