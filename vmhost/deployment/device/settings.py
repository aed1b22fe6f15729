"""The table of `agent.yaml`, which says a device's identity, its platform, and where its state is; and its reader."""

import json
import re
from dataclasses import dataclass

from vmhost import ConfigurationError, DebugPolicy
from vmhost.bytecode.fields import END_OF_TIME_S, shown
from vmhost.bytecode.kinds import Kind, Named, Part, Path, Section, Setting, Size, Text, Time, setting, settings_of
from vmhost.bytecode.reading import read as read_by
from vmhost.deployment import identifiers
from vmhost.limits import CAPS, PERMISSIONS
from vmhost.settings import files
from vmhost.settings.tokens import read_token

_VERSIONS = ("app", "host", "python")  # facts that audiences compare as versions
_NAME, _NAMES = identifiers.KINDS["device"]
_KEYS = Path("the path of a file or folder of public keys")
_TOKEN = Text("a text in quotes, of visible ASCII characters", re.compile(r"[!-~]+"))  # it goes into an HTTP header
_ADDRESS = re.compile(r"https?://(?:[^\s\x00-\x1f\x7f/?#:@\[\]]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[!$->@-~]*)?")


class _Fact(Kind):
    words = "text, numbers or lists"

    def accepts(self, value):
        try:
            json.dumps(value, allow_nan=False)
        except TypeError, ValueError, RecursionError:
            return False
        return True


_TUNNEL = Section(
    Setting(key, kind, words, (key,), required=True)
    for key, kind, words in (
        (
            "address",
            Text("an address such as cloud.example:7443", re.compile(r"[^\s\u0000]+")),
            "of the platform's tunnel",
        ),
        (
            "keys",
            Path("the path of a folder"),
            "with ca.pem, DEVICE.pem and DEVICE.key of `vmhost tunnel certificates`",
        ),
    )
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an agent.yaml says."""

    device: str = setting(Text(f"a name of {_NAMES} characters", _NAME), "the device's name")
    platform: str = setting(
        Text("an address such as https://platform.example", _ADDRESS),
        "the deployment platform",
    )
    token: str | None = setting(_TOKEN, "the fleet's token, with which the device joins", None)
    token_file: object = setting(Path("the path of a file"), "has the token instead", None)
    folder: object = setting(Path("the path of a folder"), "the device's state; no other agent may use it")
    keys: object = setting(_KEYS, "trusted signers of bundles")
    root: object = setting(
        Path("the path of a file"), "the platform's root of trust; without, answers are believed", None
    )
    certificates: object = setting(
        Path("the path of a file of certificates"), "trusted for https", None, unset="the system's"
    )
    facts: dict = setting(
        Named(_Fact(), "a mapping of names to facts", Text("a name in quotes")),
        "stated beside the detected facts",
        dict,
    )
    poll_s: float = setting(
        Time(lt=END_OF_TIME_S, words="a time above 0 and below 1e9 s"),
        "interval of requests, unless the platform says one",
        30.0,
        "poll",
    )
    disk_bytes: int = setting(Size(), "maximum space for bundles", 512 << 20, "disk")
    permissions: dict | None = setting(PERMISSIONS, "upper bound of any task's permissions", None)
    limits: dict = setting(CAPS, "upper limits of every task", dict)
    tunnel: dict | None = setting(_TUNNEL, "reach the platform through the tunnel (`vmhost agent` only)", None)
    debugging: DebugPolicy = setting(
        Part(DebugPolicy, short="consent"),
        "remote debugging through the tunnel (docs/remote-debugging.md)",
        DebugPolicy,
        unset="never",
    )


AGENT = Section(settings_of(Settings))


def read(path):
    """The Settings in an agent.yaml. It may be JSON, and has to be on a device that cannot read YAML.
    ConfigurationError with all that is wrong."""
    file = files.SettingsFile(path, "`vmhost cloud join` writes one")
    problems, given = file.problems, read_by(AGENT, file.values, file.problems) or {}
    for name, value in (given.get("facts") or {}).items():
        if name in _VERSIONS and not isinstance(value, str):  # YAML reads 2.10 as the number 2.1
            problems.add(("facts", name), f"expected text, got {shown(value)}; put it in quotes")
    if (given.get("debugging") or {}).get("consent") == "ask" and "tunnel" not in given:
        problems.add(("debugging",), "comes by the tunnel; name one (`tunnel`), or say never")
    if given.get("token") is None and given.get("token_file") is not None:
        try:
            given["token"] = read_token(given["token_file"])
        except ConfigurationError as error:
            problems.add(("token_file",), str(error))
    problems.stop()
    given["platform"] = given["platform"].rstrip("/")
    if "debugging" in given:
        given["debugging"] = DebugPolicy(**given["debugging"])
    return Settings(**given)
