"""Audiences: the people that rules, tasks and channels are for.

    where: 'profile.os == "android" && profile.app >= 20'     a condition on the device's profile
    percent: 10                                               share of all, by a hash (vmhost/cohorts.py)
    of: key                                                   what is hashed: the person (`key`) or the `device`
    salt: spring                                              audiences with the same salt select the same people

All of these must hold. `where` is a condition as of rules (docs/patterns.md): a text in CEL, compiled, or as data.
"""

from vmhost import ConfigurationError
from vmhost.bytecode.either import Raw
from vmhost.bytecode.kinds import Choice, Number, Section, Setting, Text
from vmhost.cohorts import COHORTS, cohort_of
from vmhost.pipeline.events import Event
from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError
from vmhost.settings.files import checked

_CONDITION = Raw("a condition over `profile`", "string", "object", "array")
AUDIENCE = Section(
    [
        Setting("where", _CONDITION, "on the device's profile, in CEL or as data, as in rules", ("where",)),
        Setting(
            "percent",
            Number(ge=0, le=100),
            "a share of the population, by a stable hash: a member of 5 % is also a member of 10 %",
            ("percent",),
            100,
        ),
        Setting("of", Choice("key", "device"), "whose share: by person, or by the profile's `device`", ("of",), "key"),
        Setting(
            "salt",
            Text("a text"),
            "audiences with the same salt select the same people",
            ("salt",),
            "the audience's name",
        ),
    ]
)


class Audience:
    """The audience that a mapping describes, on the device with this `profile`, a mapping. ConfigurationError."""

    def __init__(self, name, data, profile):
        here = f"audience {name}"
        data = checked(AUDIENCE, data, here)
        if not data:
            raise ConfigurationError(f"{here}: expected {AUDIENCE.words}, got {{}}")
        self.name, self._of, self._salt = name, data.get("of", "key"), data.get("salt", name)
        percent = data.get("percent")
        if percent is None and ("of" in data or "salt" in data):
            raise ConfigurationError(f"{here}: `of` and `salt` go with `percent`")
        self._limit = None if percent is None else round(percent * COHORTS / 100)
        self._device = profile.get("device")
        if self._of == "device" and not isinstance(self._device, str):
            raise ConfigurationError(f"{here}: of: device: the profile has no `device`, a text; name it there")
        self._outside = None
        if "where" in data and not _holds(here, data["where"], profile):
            self._outside = f"audience {name}: the device's profile is not one that `where` holds for"

    def why_not(self, key):
        """None if the person `key` belongs to the audience, else the reason in words."""
        if self._outside is not None or self._limit is None:
            return self._outside
        cohort = cohort_of(self._salt, self._device if self._of == "device" else key)
        if cohort <= self._limit:
            return None
        return f"audience {self.name}: cohort {cohort} of {COHORTS}, it takes the first {self._limit}"


def _holds(here, where, profile):
    engine = PatternEngine(max_bytes=1 << 20)
    try:
        rule = {"pattern": [{"name": "profile", "where": where}]}
        engine.add("audience", rule, "all", _path, timeouts=False, root="profile")
    except (RuleError, PatternError) as error:
        raise ConfigurationError(f"{here}: {str(error).replace('pattern[0] (profile).', '')}") from error
    return bool(engine.feed(Event("profile", 1, contents=dict(profile)), 1))


def _path(text):
    return (0, *text.split("."))


def audiences(data, profile):
    """{name: Audience} of a mapping. ConfigurationError."""
    profile = {} if profile is None else profile
    if not isinstance(profile, dict) or not all(isinstance(key, str) for key in profile):
        raise ConfigurationError(f"profile: expected a mapping of names to values, got {profile!r:.100}")
    if not isinstance(data or {}, dict):
        raise ConfigurationError(f"audiences: expected a mapping of names to audiences, got {data!r:.100}")
    return {name: Audience(name, one, profile) for name, one in (data or {}).items()}
