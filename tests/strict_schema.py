"""JSON schemas with stricter rules: a pattern must match the whole text, UTF-8 must be able to encode it, and integers
are ints.

JSON Schema itself lets `$` match before a final line break, and accepts 1.0 as an integer.
"""

import json
import math
import re
from pathlib import Path

import jsonschema

from vmhost.bytecode.fields import is_unicode


def validator(path):
    """A validator of the schema in the file at `path`."""
    return _Validator(json.loads(Path(path).read_text(encoding="utf-8")))


def _pattern(_validator, pattern, instance, _schema):
    if isinstance(instance, str) and not (is_unicode(instance) and re.fullmatch(pattern, instance)):
        yield jsonschema.ValidationError(f"{instance!a:.80} does not match {pattern!r}")


def _is_number(_checker, instance):
    return type(instance) is int or type(instance) is float and not math.isnan(instance)


_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"pattern": _pattern},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": lambda _checker, instance: type(instance) is int, "number": _is_number}
    ),
)
