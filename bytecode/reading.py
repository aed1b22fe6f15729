"""Reads plain values by their tables of settings: all problems at once.

A view `at` of the problems (`vmhost.settings.files.Problems`, or task.yaml's in `spec.py`) takes each, with the path of
its key. Device images have this module."""

import os

from .fields import is_unicode
from .kinds import Items, Named, Part, Path, Refused, Section, refused


def read(kind, value, at):
    """The value for a program of what a file gives; a Section's by the names of its fields, nested as these are.
    Problems are added to `at`; what has some is None."""
    kind = kind.of(value)
    try:
        match kind:
            case Section():
                return _read_section(kind, value, at)
            case Named() if kind.fits(value):
                for name in value:
                    read(kind.name, name, at.part(name))
                return {name: read(kind.item, item, at.part(name, names=(name,))) for name, item in value.items()}
            case Items() if isinstance(value, list | tuple) and kind.fits(value):
                items = [read(kind.item, item, at.part(number)) for number, item in enumerate(value)]
                kind.once(value)
                return kind.kept(items)
            case Path() if kind.accepts(value) and is_unicode(os.fspath(value)):
                return kind.located(at.folder, value)
            case Named() | Items() | Path():
                raise refused(kind.words, value)
        return kind.given(value)
    except Refused as error:
        return at.add((), error)


def _read_section(section, value, at):
    given = {} if value is None and section.null else value
    if section.short is not None and isinstance(given, str) and section.settings[section.short].kind.accepts(given):
        given = {section.short: given}
    whole = isinstance(section, Part) and section.whole
    if whole and (given is None or isinstance(given, dict) and given.get("enabled") is False):
        return None
    if not isinstance(given, dict):
        raise refused(section.words, given)
    found = {}
    for key, item in given.items():
        if (setting := section.settings.get(key)) is None:
            at.add((key,), f"unknown key; {near(key, section.settings)}")
            continue
        part, result = found, read(setting.kind, item, at.part(key, names=setting.path))
        for name in setting.path[:-1]:
            part = part.setdefault(name, {})
        part |= {setting.path[-1]: result} if setting.path else result or {}
    missing = [at.missing(each) for key, each in section.settings.items() if each.required and key not in given]
    if not whole or missing or None in found.values():
        return value if section.raw else found
    found.pop("enabled", None)
    try:
        return section.cls(**found)
    except at.error as error:
        return at.add((), str(error))


def near(key, known):
    """What to write instead of an unknown key."""
    try:
        import difflib
    except ImportError:  # in a device image
        found = []
    else:
        found = difflib.get_close_matches(str(key), known, 1)
    return f"did you mean {found[0]!r}?" if found else f"expected one of {', '.join(known)}"
