"""Files in YAML: their values, the line of each key, and all problems at once, with file, line and key.

`host.yaml` is read by its table (`vmhost.settings.host`); `pipeline.yaml` is checked against a JSON schema. There,
`description` says what a value may be; a message consists of that, the value found, and, for an unknown key, a similar
known one.
"""

import copy
import difflib
import pathlib

import yaml

from vmhost.bytecode.fields import is_unicode, shown
from vmhost.errors import ConfigurationError
from vmhost.settings.kinds import Items, Named, Part, Path, Refused, Section, refused

_MAX_BYTES = 16 << 20
_MAX_VALUES = 1_000_000  # with those that aliases repeat, which may be exponentially many


class SettingsFile:
    """The settings in the file at `path`: `values`, the line of each key, and the problems found so far.

    `schema`: the path of their JSON schema, for a file that has one instead of a table. ConfigurationError if the file
    is not YAML.
    """

    def __init__(self, path, schema=None):
        self.path = pathlib.Path(path)
        self.values, lines = _parse(self.path)
        self.problems = Problems(self.path, lines)
        if schema is not None:
            self.problems.check(self.values, schema)

    @property
    def folder(self):
        """The base of relative paths in the file."""
        return self.path.parent


class Problems:
    """The problems of a file, each at its key's line. `part(*where)` is a view for the values below a key.

    `origins`: FILE:LINE of each setting that was read, by the names of the fields that lead to it, as tuples."""

    def __init__(self, path, lines):
        self._path, self._lines, self._prefix, self._names = path, lines, (), ()
        self._found, self.origins, self.folder = set(), {}, path.parent

    def part(self, *where, names=None):
        """`names`: of the field, in the view's fields, that takes the value; None: it has none."""
        part = copy.copy(self)
        part._prefix += tuple(map(str, where))
        if names is not None:
            part._names += names
            part.origins[part._names] = part.place(())
        return part

    def add(self, where, message):
        """`where`: the key's path, as a sequence."""
        where = (*self._prefix, *map(str, where))
        self._found.add((self._line(where), f"{'.'.join(where) or 'the file'}: {message}"))

    def place(self, where):
        """FILE:LINE of the key at this path."""
        return f"{self._path}:{self._line((*self._prefix, *map(str, where)))}"

    def _line(self, where):
        known = next((where[:n] for n in range(len(where), 0, -1) if where[:n] in self._lines), ())
        return self._lines.get(known, 1)

    def check(self, values, schema):
        """Adds the violations of the JSON schema in the file `schema` by the values."""
        from vmhost.bytecode.schema import validator

        for error in validator(schema).iter_errors(values):
            self._add_schema_error(error)

    def _add_schema_error(self, error):
        where = list(error.absolute_path)
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                self.add([*where, key], f"unknown key; {_near(key, known)}")
        elif error.validator == "required":
            for key in error.validator_value:
                if key not in error.instance:
                    expected = error.schema["properties"][key].get("description", "a value")
                    self.add(where, f"{key} is missing; expected {expected}")
        else:
            expected = error.schema.get("description", error.validator_value)
            self.add(where, f"expected {expected}, got {shown(error.instance)}")

    def stop(self):
        """Raises ConfigurationError with all problems if there are any."""
        if self._found:
            raise ConfigurationError("\n".join(f"{self._path}:{line}: {text}" for line, text in sorted(self._found)))


def read(kind, value, at):
    """The value for a program of what a file gives; a Section's by the names of its fields, nested as these are.
    Problems are added to `at`; what has some is None."""
    try:
        match kind:
            case Section():
                return _read_section(kind, value, at)
            case Named() if isinstance(value, dict):
                for name in value:
                    read(kind.name, name, at.part(name))
                return {name: read(kind.item, item, at.part(name, names=(name,))) for name, item in value.items()}
            case Items() if isinstance(value, list) and kind.fits(value):
                kind.once(value)
                return kind.kept([read(kind.item, item, at.part(number)) for number, item in enumerate(value)])
            case Path() if isinstance(value, str) and kind.accepts(value) and is_unicode(value):
                return at.folder / value
            case Named() | Items() | Path():
                raise refused(kind.words, value)
        return kind.given(value)
    except Refused as error:
        return at.add((), str(error))


def _read_section(section, value, at):
    given = {} if value is None and section.null else value
    if section.short is not None and isinstance(given, str) and section.settings[section.short].kind.accepts(given):
        given = {section.short: given}
    whole = isinstance(section, Part) and section.whole
    if whole and (given is None or isinstance(given, dict) and given.get("enabled") is False):
        return None
    if not isinstance(given, dict):
        return at.add((), f"expected {section.words}, got {shown(given)}")
    found = {}
    for key, item in given.items():
        if (setting := section.settings.get(key)) is None:
            at.add((key,), f"unknown key; {_near(key, section.settings)}")
            continue
        part, result = found, read(setting.kind, item, at.part(key, names=setting.path))
        for name in setting.path[:-1]:
            part = part.setdefault(name, {})
        part |= {setting.path[-1]: result} if setting.path else result or {}
    missing = [setting for key, setting in section.settings.items() if setting.required and key not in given]
    for setting in missing:
        at.add((), f"{setting.key} is missing; expected {setting.kind.words}")
    if not whole or missing or None in found.values():
        return value if section.raw else found
    found.pop("enabled", None)
    try:
        return section.cls(**found)
    except ConfigurationError as error:
        return at.add((), str(error))


def _near(key, known):
    near = difflib.get_close_matches(str(key), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"


def _parse(path):
    """The values in the file, and the line of each key by its path."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigurationError(f"{path}: expected at most {_MAX_BYTES >> 20} MiB of settings")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = {}
        _note_lines(node, (), lines, path)
        return _small(yaml.safe_load(text) or {}), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{path}:{line}: not YAML: {error.problem}") from error
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
        TypeError,
    ) as error:  # the last two: invalid dates, lists as keys
        raise ConfigurationError(f"{path}: not YAML: {error}") from error


def _small(value):
    """`value`; ValueError if it contains a number of more than 64 bits, which messages could not show."""
    if isinstance(value, dict):
        for key, item in value.items():
            _small(key)
            _small(item)
    elif isinstance(value, list):
        for item in value:
            _small(item)
    elif type(value) is int and abs(value) >= 1 << 64:
        raise ValueError(f"expected numbers of at most 64 bits, got {shown(value)}")
    return value


def _note_lines(node, where, lines, path):
    if len(lines) > _MAX_VALUES:
        raise ConfigurationError(f"{path}: expected at most {_MAX_VALUES:,} values; aliases (*name) repeat theirs")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*where, key.value)
            if inner in lines:
                line = key.start_mark.line + 1
                raise ConfigurationError(
                    f"{path}:{line}: {'.'.join(inner)}: written twice (first in line {lines[inner]}); remove one"
                )
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            inner = (*where, str(number))
            lines[inner] = value.start_mark.line + 1
            _note_lines(value, inner, lines, path)
