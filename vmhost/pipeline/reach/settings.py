"""The settings of channels: read and checked before any channel is made. docs/reach.md describes the keys."""

import re
import urllib.parse
import zoneinfo
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta

from vmhost import ConfigurationError, callbacks
from vmhost.pipeline.quantities import milliseconds

KINDS = ("push", "poplayer", "broadcast", "walle_task", "ut", "native_callback", "log")
MAX_PRIORITY = 9
USUAL_PRIORITY = 5
_TIMES = {  # key: (field, default ms)
    "timeout": ("timeout_ms", 10_000),
    "first_wait": ("first_wait_ms", 1_000),
    "max_wait": ("max_wait_ms", 300_000),
    "expires": ("expires_ms", 86_400_000),
}
_OF_KIND = {"push": ("headers", "token_file"), "walle_task": ("then",)}
OPTIONS = ("tries", *_TIMES, "cap", "quiet", "audience", "function")
_TASK_KEYS = ("then", "priority", "audience", "expires_ms", "message")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True)
class Cap:
    """At most `count` messages to a person within any span of `per_ms`."""

    count: int
    per_ms: int
    text: str


@dataclass(frozen=True)
class Quiet:
    """Quiet hours: from `begin` to `end` of each day only messages of priority `urgent` and above are sent. `zone`
    None: the device's own."""

    begin: time
    end: time
    zone: zoneinfo.ZoneInfo | None
    urgent: int

    def until_ms(self, now_ms):
        """The end of the quiet hours that `now_ms` is in; None outside of them."""
        now = datetime.fromtimestamp(now_ms / 1000, self.zone) if self.zone else datetime.fromtimestamp(now_ms / 1000)
        at, overnight = now.time(), self.begin > self.end
        quiet = (at >= self.begin or at < self.end) if overnight else self.begin <= at < self.end
        if not quiet:
            return None
        day = now.date() + timedelta(days=overnight and at >= self.begin)
        ends_ms = round(datetime.combine(day, self.end, self.zone).timestamp() * 1000)
        return ends_ms if ends_ms > now_ms else now_ms + 60_000  # an hour that occurs twice (end of summer time)


@dataclass(frozen=True)
class ChannelSettings:
    """One channel. `target`: the value under its kind's key. `function`: a host function in place of the adapter."""

    name: str
    kind: str
    target: object
    function: object = None
    tries: int = 6
    timeout_ms: int = 10_000
    first_wait_ms: int = 1_000
    max_wait_ms: int = 300_000
    expires_ms: int = 86_400_000
    caps: tuple = ()
    quiet: Quiet | None = None
    audience: str | None = None
    headers: dict = field(default_factory=dict)
    token_file: str | None = None
    then: tuple = ()

    def wait_ms(self, tried):
        """The wait after that number of attempts."""
        return min(self.first_wait_ms << min(tried - 1, 40), self.max_wait_ms)


def channel_settings(name, data, functions=()):
    """The ChannelSettings for a mapping, or for a function. ConfigurationError. `functions`: the host's."""
    here = f"channel {name}"
    if callable(data):
        name_of = getattr(data, "__name__", "function")
        return ChannelSettings(name, "native_callback", name_of, _plain(here, data))
    if not isinstance(data, dict):
        raise ConfigurationError(f"{here}: expected a mapping with one of {', '.join(KINDS)}, got {data!r:.100}")
    kinds = [kind for kind in KINDS if kind in data]
    if len(kinds) != 1:
        raise ConfigurationError(f"{here}: expected one of {', '.join(KINDS)}, got {', '.join(map(str, data)) or '{}'}")
    (kind,) = kinds
    keys = (kind, *OPTIONS, *_OF_KIND.get(kind, ()))
    for key in data:
        if key not in keys:
            raise ConfigurationError(f"{here}: there is no key {key!r} for {kind}; there are {', '.join(keys)}")
    options = {"headers": _headers(here, data), "token_file": data.get("token_file")}
    function = data.get("function") or (data[kind] if kind == "native_callback" else None)
    if function is not None:
        if function not in functions:
            there = ", ".join(functions) or "none"
            raise ConfigurationError(f"{here}: there is no host function {function!r}; there are {there}")
        options["function"] = _plain(here, functions[function])
    for key, (to, usual) in _TIMES.items():
        try:
            options[to] = milliseconds(data.get(key, usual / 1000))
        except ValueError as error:
            raise ConfigurationError(f"{here}: {key}: {error}") from None
    options["tries"] = _whole(f"{here}: tries", data.get("tries", 6), 1, 100)
    options["caps"] = _caps(here, data.get("cap", ()))
    options["quiet"] = _quiet(here, data.get("quiet"))
    options["audience"] = _text(f"{here}: audience", data.get("audience"))
    then = data.get("then", ())
    if not isinstance(then, list | tuple) or not all(isinstance(one, str) for one in then):
        raise ConfigurationError(f"{here}: then: expected a list of names of channels, got {then!r:.100}")
    return ChannelSettings(name, kind, _target(here, kind, data[kind], "function" in data), then=tuple(then), **options)


def _plain(here, function):
    if callbacks.is_async(function):
        raise ConfigurationError(f"{here}: expected a function that is not async, got {function!r:.100}")
    return function


def _target(here, kind, data, replaced):
    if replaced and data is True:
        return data  # a function replaces the adapter
    if kind == "push":
        address = urllib.parse.urlsplit(data) if isinstance(data, str) else None
        if address is None or address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigurationError(f"{here}: push: expected an address such as https://host/path, got {data!r:.100}")
    elif kind in ("poplayer", "broadcast"):
        from vmhost.pipeline.configuration import http_address  # late: no other kind needs schema and YAML

        try:
            http_address(data if isinstance(data, str) else "")
        except ValueError as error:
            raise ConfigurationError(f"{here}: {kind}: {error}") from None
    elif kind == "log":
        if data is not True:
            raise ConfigurationError(f"{here}: log: expected true, got {data!r:.100}")
    elif kind == "ut":
        if not isinstance(data, str) or not re.fullmatch(r"[\w-][\w.-]{0,99}", data):
            raise ConfigurationError(
                f"{here}: ut: expected the name of a file, such as tracking.jsonl, which lies in the pipeline's folder"
                f" `tracking`, got {data!r:.100}"
            )
    elif not isinstance(data, str | bytes) and not hasattr(data, "__fspath__"):
        raise ConfigurationError(f"{here}: {kind}: expected a text, got {data!r:.100}")
    return data


def _whole(here, data, low, high):
    if not isinstance(data, int) or isinstance(data, bool) or not low <= data <= high:
        raise ConfigurationError(f"{here}: expected a whole number from {low} to {high}, got {data!r:.100}")
    return data


def _text(here, data):
    if data is not None and not (isinstance(data, str) and data):
        raise ConfigurationError(f"{here}: expected a name, got {data!r:.100}")
    return data


def _headers(here, data):
    headers = data.get("headers", {})
    if not isinstance(headers, dict) or not all(
        isinstance(name, str)
        and _HEADER.fullmatch(name)
        and isinstance(value, str)
        and value.isprintable()
        and value.isascii()
        for name, value in headers.items()
    ):
        raise ConfigurationError(f"{here}: headers: expected names and printable ASCII texts, got {headers!r:.100}")
    return headers


def _caps(here, data):
    listed = [data] if isinstance(data, dict) else data
    caps = []
    for one in listed if isinstance(listed, list | tuple) else (listed,):
        if not isinstance(one, dict) or one.keys() != {"count", "per"}:
            raise ConfigurationError(f"{here}: cap: expected {{count, per}}, or a list of these, got {one!r:.100}")
        try:
            per_ms = milliseconds(one["per"])
        except ValueError as error:
            raise ConfigurationError(f"{here}: cap: per: {error}") from None
        caps.append(Cap(_whole(f"{here}: cap: count", one["count"], 1, 1_000_000), per_ms, f"{one['per']}"))
    return tuple(caps)


def _quiet(here, data):
    if data is None:
        return None
    if not isinstance(data, dict) or not {"from", "to"} <= data.keys() <= {"from", "to", "zone", "urgent"}:
        raise ConfigurationError(f"{here}: quiet: expected {{from, to}}, and any of zone, urgent, got {data!r:.100}")
    times = []
    for key in ("from", "to"):
        found = _CLOCK.fullmatch(data[key]) if isinstance(data[key], str) else None
        if found is None:
            raise ConfigurationError(f'{here}: quiet: {key}: expected a time of day such as "22:00", got {data[key]!r}')
        times.append(time(int(found[1]), int(found[2])))
    if times[0] == times[1]:
        raise ConfigurationError(f"{here}: quiet: from and to are the same; leave `quiet` out, or change one")
    zone = data.get("zone")
    try:
        zone = None if zone is None else zoneinfo.ZoneInfo(zone)
    except zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError:
        raise ConfigurationError(
            f"{here}: quiet: zone: expected a zone of this machine's, such as Europe/Berlin, got {zone!r:.100}"
        ) from None
    urgent = _whole(f"{here}: quiet: urgent", data.get("urgent", MAX_PRIORITY), 0, MAX_PRIORITY + 1)
    return Quiet(*times, zone, urgent)


def task_settings(name, data):
    """The settings in a mapping for the results of a task. ConfigurationError."""
    here = f"task {name}"
    if not isinstance(data, dict) or not data.keys() <= set(_TASK_KEYS):
        raise ConfigurationError(f"{here}: expected a mapping with any of {', '.join(_TASK_KEYS)}, got {data!r:.100}")
    return sending_of(here, data)


def sending_of(here, data, key="then"):
    """`then`, `priority`, `audience`, `expires_ms` and `message` of a rule or task. ConfigurationError."""
    then = data.get("then") or ()
    if not isinstance(then, list | tuple) or not all(isinstance(one, str) for one in then):
        raise ConfigurationError(f"{here}: {key}: expected a list of names of channels, got {then!r:.100}")
    audience, message, expires_ms = data.get("audience"), data.get("message"), data.get("expires_ms")
    if audience is not None and not isinstance(audience, str):
        raise ConfigurationError(f"{here}: audience: expected the name of one, got {audience!r:.100}")
    if message is not None and not isinstance(message, dict):
        raise ConfigurationError(f"{here}: message: expected a mapping such as {{title, text}}, got {message!r:.100}")
    if expires_ms is not None and (type(expires_ms) is not int or not 1 <= expires_ms <= 1 << 52):
        raise ConfigurationError(f"{here}: expires_ms: expected a whole number above 0, got {expires_ms!r:.100}")
    priority = _whole(f"{here}: priority", data.get("priority", USUAL_PRIORITY), 0, MAX_PRIORITY)
    return {
        "then": tuple(then),
        "priority": priority,
        "audience": audience,
        "expires_ms": expires_ms,
        "message": message,
    }
