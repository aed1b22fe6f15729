"""Audiences: the people that rules, tasks and channels are for.

    where: 'profile.os == "android" && profile.app >= 20'     a condition on the device's profile
    percent: 10                                               share of all, by a hash (vmhost/cohorts.py)
    of: key                                                   what is hashed: the person (`key`) or the `device`
    salt: spring                                              audiences with the same salt select the same people

All of these must hold. `where` is a condition as of rules (docs/patterns.md): a text in CEL, compiled, or as data.
"""

from vmhost import ConfigurationError
from vmhost.cohorts import COHORTS, cohort_of
from vmhost.pipeline.events import Event
from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError

_KEYS = ("where", "percent", "of", "salt")
_OF = ("key", "device")


class Audience:
    """The audience that a mapping describes, on the device with this `profile`, a mapping. ConfigurationError."""

    def __init__(self, name, data, profile):
        here = f"audience {name}"
        if not isinstance(data, dict) or not data or not data.keys() <= set(_KEYS):
            raise ConfigurationError(f"{here}: expected a mapping with any of {', '.join(_KEYS)}, got {data!r:.100}")
        self.name, self._of, self._salt = name, data.get("of", "key"), data.get("salt", name)
        percent = data.get("percent")
        if percent is None and ("of" in data or "salt" in data):
            raise ConfigurationError(f"{here}: `of` and `salt` go with `percent`")
        if percent is not None and (
            isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100
        ):
            raise ConfigurationError(f"{here}: percent: expected a number from 0 to 100, got {percent!r:.100}")
        if self._of not in _OF or not isinstance(self._salt, str):
            raise ConfigurationError(f"{here}: expected `of` key or device, and `salt` a text")
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
