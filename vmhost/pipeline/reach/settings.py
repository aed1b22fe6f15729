"""The tables of channels and of what tasks' results become, and their readers."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vmhost import ConfigurationError, callbacks
from vmhost.bytecode.either import MAX_MS, Either, Milliseconds, Raw, Yes
from vmhost.bytecode.kinds import Items, Named, Path, Section, Setting, Text, Whole, refused, setting, settings_of
from vmhost.settings.files import checked

MAX_PRIORITY = 9
USUAL_PRIORITY = 5
_PORT = "([0-9]{1,4}|[0-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
LOOPBACK = Text(
    "an address of this machine's loopback, such as 127.0.0.1:8400",
    re.compile(rf"(127\.[0-9]{{1,3}}\.[0-9]{{1,3}}\.[0-9]{{1,3}}|localhost|\[::1\]):{_PORT}"),
)
_FUNCTION, _TIME = Text("the name of a host function"), Milliseconds()
_AUDIENCE = Text("the name of an audience")
_NAMES = Items(Text("the name of a channel"), "a list of names of channels")


class _Clock(Text):
    """A time of day."""

    def __init__(self, example):
        super().__init__(f'a time of day such as "{example}"', re.compile("([01][0-9]|2[0-3]):([0-5][0-9])"), 5)

    def kept(self, value):
        return time.fromisoformat(value)


class _Zone(Text):
    def kept(self, value):
        try:
            return ZoneInfo(value)
        except ZoneInfoNotFoundError, ValueError, OSError:
            raise refused(self.words, value) from None


def _or_true(kind):
    """What an adapter sends to, or true where a function replaces the adapter."""
    return Either(kind.words, (bool, Yes()), (object, kind))


@dataclass(frozen=True)
class Cap:
    """At most `count` messages to a person within any span of `per_ms`."""

    count: int = setting(Whole(1, 1_000_000), "messages to a person")
    per_ms: int = setting(_TIME, "any span of this length", key="per")


_CAP = Section(settings_of(Cap))


@dataclass(frozen=True)
class Quiet:
    """Quiet hours: from `begin` to `end` of each day only messages of priority `urgent` and above are sent. `zone`
    None: the device's own."""

    begin: time = setting(_Clock("22:00"), "they begin", key="from")
    end: time = setting(_Clock("08:00"), "they end", key="to")
    zone: ZoneInfo | None = setting(
        _Zone("a zone of this machine's, such as Europe/Berlin"), "of these times", None, unset="the device's"
    )
    urgent: int = setting(Whole(0, MAX_PRIORITY + 1), "messages of at least this priority are sent", MAX_PRIORITY)

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
    function: object = setting(_FUNCTION, "replaces the adapter, as in `{push: true, function: my_push}`", None)
    tries: int = setting(Whole(1, 100), "maximum number of attempts", 6)
    timeout_ms: int = setting(_TIME, "per attempt", 10_000, "timeout")
    first_wait_ms: int = setting(_TIME, "after the first failure, doubled after each further one", 1_000, "first_wait")
    max_wait_ms: int = setting(_TIME, "the longest wait", 300_000, "max_wait")
    expires_ms: int = setting(_TIME, "older messages are not sent", 86_400_000, "expires")
    caps: tuple = setting(
        Either("a mapping with count and per, or a list of these", (dict, _CAP), ((list, tuple), Items(_CAP))),
        "maximum number of messages to one person within any such period",
        (),
        "cap",
    )
    quiet: Quiet | None = setting(Section(settings_of(Quiet)), "hours in which messages wait", None)
    audience: str | None = setting(_AUDIENCE, "who gets its messages", None, unset="all")
    headers: dict = setting(
        Named(
            Text("a printable ASCII text", re.compile("[ -~]+")),
            "a mapping of names of headers to texts",
            Text("the name of a header", re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")),
        ),
        "of `push`",
        dict,
    )
    token_file: str | None = setting(Path("the path of a file with a token"), "of `push`: a bearer token", None)
    then: tuple = setting(_NAMES, "of `walle_task`: the channels for its result", ())

    def wait_ms(self, tried):
        """The wait after that number of attempts."""
        return min(self.first_wait_ms << min(tried - 1, 40), self.max_wait_ms)


_PAGES = _or_true(LOOPBACK)
_TARGETS = (
    Setting(kind, target, words, (kind,))
    for kind, target, words in (
        (
            "push",
            _or_true(Text("an address such as https://host/path", re.compile(r"https?://([^\s/?#@]*@)?[^\s/?#@:]\S*"))),
            "a POST of JSON with the header `Idempotency-Key`. Redirects are not followed. Status 4xx is final, except"
            " 408, 425 and 429; `Retry-After` is respected, up to an hour",
        ),
        (
            "poplayer",
            _PAGES,
            "server-sent events to the open pages of the message's person on this machine; it waits until one is open",
        ),
        (
            "broadcast",
            _PAGES,
            "the same to all open pages; without an open page the message is recorded as missed. A page that has not"
            " shown a message within the time-out is not waited for again until it shows one. A page that has 100"
            " messages waiting is closed; it opens its stream again by itself",
        ),
        (
            "walle_task",
            _or_true(Path("the path of a bundle")),
            "calls a task with the message, in a VM. Its result goes to the channels in its `then`; None ends it",
        ),
        (
            "ut",
            _or_true(
                Text(
                    "the name of a file, such as tracking.jsonl, which lies in the pipeline's folder `tracking`",
                    re.compile(r"[\w-][\w.-]{0,99}"),
                )
            ),
            "appends a line of JSON to the file; at 16 MiB it is renamed to FILE.old",
        ),
        ("native_callback", _FUNCTION, "calls it with the message"),
        ("log", Yes(), "writes a line to the log `vmhost.pipeline.reach`"),
    )
)
_KINDS = {each.key: each for each in _TARGETS}
_OF_KIND = {"headers": "push", "token_file": "push", "then": "walle_task"}
CHANNEL = Section([*_KINDS.values(), *settings_of(ChannelSettings)], words=f"a mapping with one of {', '.join(_KINDS)}")
_SENDING = [
    Setting("then", _NAMES, "channels for its messages", ("then",), ()),
    Setting("priority", Whole(0, MAX_PRIORITY), "higher goes first", ("priority",), USUAL_PRIORITY),
    Setting("audience", _AUDIENCE, "who gets them", ("audience",), "all"),
    Setting("expires_ms", Whole(1, MAX_MS), "older messages are not sent", ("expires_ms",), "the channel's"),
    Setting("message", Raw("a mapping such as {title, text}", "object"), "anything for the receiver", ("message",)),
]
TASK = Section(_SENDING)
_UNSET = {each.key: None for each in _SENDING} | {"then": (), "priority": USUAL_PRIORITY}


def kind_of(data, at):
    """The kind of a channel; adds to the Problems `at` if there is not one, or keys of another."""
    kinds = [kind for kind in _KINDS if kind in data]
    if len(kinds) != 1:
        return at.add((), f"expected one of {', '.join(_KINDS)}, got {', '.join(map(str, data)) or '{}'}")
    for key, kind in _OF_KIND.items():
        if key in data and kind not in kinds:
            at.add((key,), f"belongs to channels with {kind}")
    if data[kinds[0]] is True and "function" not in data and kinds[0] != "log":
        at.add(kinds, f"expected {_KINDS[kinds[0]].kind.words}, got True, which needs `function`")
    return kinds[0]


def channel_settings(name, data, functions=()):
    """The ChannelSettings for a mapping, or for a function. ConfigurationError. `functions`: the host's."""
    here = f"channel {name}"
    if callable(data):
        name_of = getattr(data, "__name__", "function")
        return ChannelSettings(name, "native_callback", name_of, _plain(here, data))
    given = checked(CHANNEL, data, here, lambda _given, at: kind_of(data, at))
    (kind,) = _KINDS.keys() & given.keys()
    target = data[kind]
    del given[kind]
    function = given.get("function") or (target if kind == "native_callback" else None)
    if function is not None:
        if function not in functions:
            there = ", ".join(functions) or "none"
            raise ConfigurationError(f"{here}: there is no host function {function!r}; there are {there}")
        given["function"] = _plain(here, functions[function])
    caps = given.get("caps", ())
    given["caps"] = tuple(Cap(**one) for one in ([caps] if isinstance(caps, dict) else caps))
    if "quiet" in given:
        given["quiet"] = quiet = Quiet(**given["quiet"])
        if quiet.begin == quiet.end:
            raise ConfigurationError(f"{here}: quiet: from and to are the same; leave `quiet` out, or change one")
    return ChannelSettings(name, kind, target, **given)


def _plain(here, function):
    if callbacks.is_async(function):
        raise ConfigurationError(f"{here}: expected a function that is not async, got {function!r:.100}")
    return function


def task_settings(name, data):
    """The settings in a mapping for the results of a task. ConfigurationError."""
    return _sending(f"task {name}", data)


def sending_of(here, rule):
    """`then`, `timeout`, `priority`, `audience`, `expires_ms` and `message` of a rule. ConfigurationError."""
    timeout = None if rule.get("timeout") is None else checked(_NAMES, rule["timeout"], f"{here}: timeout")
    return _sending(here, {key: rule[key] for key in TASK.settings if key in rule}) | {"timeout": timeout}


def _sending(here, data):
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if value is not None}
    return _UNSET | checked(TASK, data, here)
