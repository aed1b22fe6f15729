"""`agent.yaml`: the device's identity, its platform, and where its state is.

device: kitchen-1
platform: http://127.0.0.1:8470
token: vmh_...                 the fleet's token for enrolling (role fleet); or token_file: PATH
folder: state                  relative to this file
keys: bundles.pub              trusted signers of bundles: a file or folder of public keys
certificates: ca.pem           trusted server certificates (TLS); default: the system's authorities
facts: {app: "2.1"}            stated in addition to detected facts
poll: 30 s                     interval of requests, unless the platform says otherwise
disk: 512 MiB                  bound of the space for bundles
permissions: {env: [MODEL]}    bound of any task's permissions; default: no further bound
limits: {memory: 64 MiB}       the same for limits
tunnel: {address: "cloud.example:7443", keys: keys}    use a tunnel to the platform (`vmhost agent` only); keys: a
                               folder with ca.pem, DEVICE.pem and DEVICE.key, as `vmhost tunnel certificates` makes it
debugging: {consent: ask, keys: debug.pub}    allow debugging by the tunnel, with the user's consent each time; keys:
                               trusted signers of links; scopes, longest: as in host.yaml
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from vmhost import ConfigurationError, DebugPolicy
from vmhost.bytecode.quantities import byte_count, seconds
from vmhost.deployment import identifiers
from vmhost.deployment.errors import RefusedError

_KEYS = (
    "device",
    "platform",
    "token",
    "token_file",
    "folder",
    "keys",
    "root",
    "certificates",
    "facts",
    "poll",
    "disk",
    "permissions",
    "limits",
    "tunnel",
    "debugging",
)
_VERSIONS = ("app", "host", "python")  # facts that audiences compare as versions
_REQUIRED = ("device", "platform", "folder", "keys")


@dataclass(frozen=True)
class Settings:
    device: str
    platform: str
    folder: Path
    keys: Path
    root: Path | None = None
    certificates: Path | None = None
    token: str | None = None
    facts: dict = field(default_factory=dict)
    poll_s: float = 30.0
    disk_bytes: int = 512 << 20
    permissions: dict | None = None
    limits: dict = field(default_factory=dict)
    tunnel: dict | None = None  # address, keys (a Path)
    debugging: DebugPolicy = field(default_factory=DebugPolicy)


def read(path):
    """The Settings in an agent.yaml. It may be JSON, and has to be on a device that cannot read YAML.
    ConfigurationError says what is wrong."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}; `vmhost cloud join` writes one") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: expected text in UTF-8: {error}") from error
    plain = _parsed(text, path)
    if not isinstance(plain, dict):
        raise ConfigurationError(f"{path}: expected keys such as `device: kitchen-1`")
    for key in plain:
        if key not in _KEYS:
            raise ConfigurationError(f"{path}: {key}: expected one of {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if not isinstance(plain.get(key), str) or not plain[key]:
            raise ConfigurationError(f"{path}: {key}: expected a text, got {plain.get(key)!r}")
    try:
        identifiers.check("device", plain["device"])
    except RefusedError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if urlsplit(plain["platform"]).scheme not in ("http", "https") or not urlsplit(plain["platform"]).hostname:
        raise ConfigurationError(
            f"{path}: platform: expected an address such as https://platform.example, got {plain['platform']!r}"
        )
    for key in ("token", "token_file", "root", "certificates"):
        if plain.get(key) is not None and not isinstance(plain[key], str):
            raise ConfigurationError(f"{path}: {key}: expected a text, got {plain[key]!r:.80}; put it in quotes")
    token = plain.get("token")
    if token is None and plain.get("token_file"):
        token_file = path.parent / plain["token_file"]
        try:
            token = token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{token_file}: cannot be read: {error}") from error
    return Settings(
        device=plain["device"],
        platform=plain["platform"].rstrip("/"),
        folder=path.parent / plain["folder"],
        keys=path.parent / plain["keys"],
        root=path.parent / plain["root"] if plain.get("root") else None,
        certificates=path.parent / plain["certificates"] if plain.get("certificates") else None,
        token=token,
        facts=_facts(plain, path),
        poll_s=_quantity(plain.get("poll", 30.0), seconds, "30 s", f"{path}: poll"),
        disk_bytes=int(_quantity(plain.get("disk", 512 << 20), byte_count, "512 MiB", f"{path}: disk")),
        permissions=_mapping(plain, "permissions", path),
        limits=_mapping(plain, "limits", path) or {},
        tunnel=_tunnel(plain, path),
        debugging=_debugging(plain, path),
    )


def _facts(plain, path):
    """The device's own facts. Versions are texts: YAML reads 2.10 as the number 2.1."""
    facts = _mapping(plain, "facts", path) or {}
    for name, value in facts.items():
        where = f"{path}: facts: {name}"
        if not isinstance(name, str):
            raise ConfigurationError(f"{where}: expected a name in quotes")
        if name in _VERSIONS and not isinstance(value, str):
            raise ConfigurationError(f"{where}: expected text, got {value!r:.80}; put it in quotes")
        try:
            json.dumps(value, allow_nan=False)
        except TypeError, ValueError, RecursionError:
            raise ConfigurationError(f"{where}: expected text, numbers or lists, got {value!r:.80}") from None
    return facts


def _debugging(plain, path):
    given = plain.get("debugging", "never")
    given = {"consent": given} if isinstance(given, str) else given
    names = ("consent", "scopes", "keys", "longest")
    if not isinstance(given, dict) or not given.keys() <= set(names):
        raise ConfigurationError(f"{path}: debugging: expected never, or any of {', '.join(names)}, got {given!r:.200}")
    fields = {name: given[name] for name in ("consent", "scopes") if name in given}
    if "keys" in given:
        if not isinstance(given["keys"], str) or not given["keys"]:
            raise ConfigurationError(
                f"{path}: debugging: keys: expected the path of public keys, got {given['keys']!r}"
            )
        fields["keys"] = str(path.parent / given["keys"])
    if "longest" in given:
        fields["longest_s"] = _quantity(given["longest"], seconds, "1 h", f"{path}: debugging: longest")
    try:
        policy = DebugPolicy(**fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: debugging: {str(error).removeprefix('DebugPolicy: ')}") from error
    if policy.consent == "ask" and not plain.get("tunnel"):
        raise ConfigurationError(f"{path}: debugging: comes by the tunnel; name one (`tunnel`), or say never")
    return policy


def _tunnel(plain, path):
    tunnel = _mapping(plain, "tunnel", path)
    if tunnel is None:
        return None
    if tunnel.keys() != {"address", "keys"} or not all(isinstance(each, str) and each for each in tunnel.values()):
        raise ConfigurationError(f"{path}: tunnel: expected address (HOST:PORT) and keys (a folder), got {tunnel!r}")
    return {"address": tunnel["address"], "keys": path.parent / tunnel["keys"]}


def _parsed(text, path):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        not_json = error
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            f"{path}: not JSON, and YAML cannot be read here: {not_json}; write it as JSON, or make the image again "
            "with `vmhost image OUT --with-agent --with-yaml`"
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def _quantity(value, read, example, where):
    """The number in `30 s` or `512 MiB`; a plain number unchanged."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    found = read(value)
    if found is None or not 0 < found < 1e15:
        raise ConfigurationError(f"{where}: expected a quantity above zero such as {example}, got {value!r:.80}")
    return found


def _mapping(plain, key, path):
    value = plain.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {key}: expected keys and values, got {value!r}")
    return value
