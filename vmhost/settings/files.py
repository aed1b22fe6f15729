"""Files in YAML or JSON, and their problems, each with file, line and key; `vmhost.bytecode.reading` reads by tables.

Device images have this module; there may be no YAML reader then, and no lines of keys.
"""

import copy
import functools
import json
import pathlib

from vmhost.bytecode.fields import shown
from vmhost.bytecode.reading import read
from vmhost.errors import ConfigurationError

_MAX_BYTES = 16 << 20
_MAX_VALUES = 1_000_000  # with those that aliases repeat, which may be exponentially many
_TOO_DEEP = "nested too deeply, or an alias (*name) within the value that it names"


class SettingsFile:
    """The settings in the file at `path`: `values`, the line of each key, and the problems found so far.

    `advice`: for a file that cannot be read. `content_of(path)` reads its bytes. ConfigurationError if it is not YAML.
    """

    def __init__(self, path, advice="", content_of=None):
        self.path = pathlib.Path(path)
        self.values, lines = _parse(self.path, advice and f"; {advice}", content_of or _content)
        self.problems = Problems(self.path, lines)

    @property
    def folder(self):
        """The base of relative paths in the file."""
        return self.path.parent


class Problems:
    """The problems of a file, each at its key's line. `part(*where)` is a view for the values below a key. `lines`: of
    keys, by their paths; None: unknown. `whole`: what holds the values, in words.

    `origins`: FILE:LINE of each setting that was read, by the names of the fields that lead to it, as tuples."""

    error = ConfigurationError

    def __init__(self, path, lines, folder=None, whole="the file: "):
        self._path, self._lines, self._prefix, self._names = path, lines, (), ()
        self._found, self.origins, self.folder = set(), {}, path.parent if folder is None else folder
        self._whole = whole

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
        key = f"{'.'.join(where)}: " if where else self._whole
        self._found.add((self._line(where), f"{key}{message}"))

    def missing(self, setting):
        self.add((), f"{setting.key} is missing; expected {setting.kind.words}")

    def place(self, where):
        """FILE:LINE of the key at this path."""
        return self._place(self._line((*self._prefix, *map(str, where))))

    def _place(self, line):
        return f"{self._path}:{line}" if line else str(self._path)

    def _line(self, where):
        if self._lines is None:
            return 0
        known = next((where[:n] for n in range(len(where), 0, -1) if where[:n] in self._lines), ())
        return self._lines.get(known, 1)

    def stop(self):
        """Raises ConfigurationError with all problems if there are any."""
        if self._found:
            raise ConfigurationError("\n".join(f"{self._place(line)}: {text}" for line, text in sorted(self._found)))


def checked(kind, value, name, also=None, lines=None):
    """As `read`, for what a program gives; lines of the ConfigurationError begin with `name`. `also`: a function of the
    result, if there is one, and Problems."""
    at = Problems(name, lines, pathlib.Path(), "")
    found = read(kind, value, at)
    if also is not None and found is not None:
        also(found, at)
    at.stop()
    return found


def plain_yaml(text):
    """The values in a YAML text. yaml.YAMLError, also for what PyYAML reports by other errors."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except ValueError as error:  # a version of too many digits
        raise yaml.YAMLError(str(error)) from error


@functools.cache
def _loader():
    """A safe loader, whose errors of values that are not of their tag's type have a line."""
    import yaml

    from vmhost.bytecode import yaml_loader

    class Loader(yaml_loader.Loader):
        def construct_object(self, node, deep=False):
            try:
                value = super().construct_object(node, deep)
                if type(value) is int:
                    _small(value)  # here, where its line is known
                return value
            except ValueError as error:
                raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error
            except (TypeError, LookupError, AttributeError) as error:  # PyYAML trusts that a text is as its tag says
                problem = "the text is not of the type that its tag (!!) says"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    return Loader


def _content(path):
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES + 1)


def _parse(path, advice, content_of):
    """The values in the file, and the line of each key by its path; None: unknown."""
    try:
        data = content_of(path)
        if len(data) > _MAX_BYTES:
            raise ConfigurationError(f"{path}: expected at most {_MAX_BYTES >> 20} MiB of settings")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{path}: cannot be read: {why}{advice}") from error
    try:
        values, not_json = _small(json.loads(text, object_pairs_hook=_object)) or {}, None
    except (ValueError, RecursionError) as error:
        values, not_json = None, error
    try:
        import yaml
    except ImportError:
        if isinstance(not_json, _TwiceError):
            raise ConfigurationError(f"{path}: {not_json}") from None
        if values is None:
            raise ConfigurationError(
                f"{path}: not JSON, and YAML cannot be read here: {not_json}; write it as JSON, or make the image again"
                " with `vmhost image OUT --with-agent --with-yaml`"
            ) from None
        return values, None
    lines = {}
    try:
        is_json = values is not None or isinstance(not_json, _TwiceError)
        spaced = text.replace("\t", " ") if is_json else text  # YAML refuses JSON's tabs; its texts have none
        _note_lines(yaml.compose(spaced, Loader=_loader()), (), lines, path)
        return _small(plain_yaml(text)) or {} if values is None else values, lines
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if values is not None:
            return values, None
        if isinstance(not_json, _TwiceError):
            raise ConfigurationError(f"{path}: {not_json}") from None
        mark = getattr(error, "problem_mark", None)
        text = _TOO_DEEP if isinstance(error, RecursionError) else " ".join(str(error).split())
        line, problem = (f":{mark.line + 1}", error.problem) if mark else ("", text)
        raise ConfigurationError(f"{path}{line}: not YAML: {problem}") from error


class _TwiceError(ValueError):
    """A key of a JSON object is there twice."""


def _object(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(f"{key}: written twice; remove one")
        found[key] = value
    return found


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
    if getattr(node, "id", None) == "mapping":
        for key, value in node.value:
            if key.id != "scalar":
                raise ConfigurationError(f"{path}:{key.start_mark.line + 1}: not YAML: expected a plain text as a key")
            inner = (*where, key.value)
            if inner in lines:
                line = key.start_mark.line + 1
                raise ConfigurationError(
                    f"{path}:{line}: {'.'.join(inner)}: written twice (first in line {lines[inner]}); remove one"
                )
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, path)
    elif getattr(node, "id", None) == "sequence":
        for number, value in enumerate(node.value):
            inner = (*where, str(number))
            lines[inner] = value.start_mark.line + 1
            _note_lines(value, inner, lines, path)
