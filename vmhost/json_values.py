"""Values that cross a VM's wall, as JSON: what a command reads with --input and prints as a result.

JSON has no bytes, tuples, sets, complex numbers, infinities or keys that are not text. Each of these is written as an
object with one key that starts with `$`, and read back from it; `$dict` also carries a dict whose own key could be
taken for one of them. Promises that `from_plain(to_plain(value))` is the value again; arrays and other buffers
come back as lists, the numbers in them as Python's.
"""

import base64
import json
import math
import os
import sys

TAGS = ("$bytes", "$complex", "$dict", "$float", "$set", "$tuple")


def read(given):
    """The value that a command's --input stands for: a JSON file, `-` for stdin, JSON text, or None for none. ValueError says why not."""
    if given is None:
        return None
    try:
        if given == "-" and sys.stdin is None:
            raise ValueError("stdin is closed")
        if given == "-":
            where, text = "stdin", sys.stdin.read()
        elif given and os.path.exists(given):
            with open(given, encoding="utf-8") as file:
                where, text = given, file.read()
        else:
            where, text = "--input", given
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{given}: expected JSON in UTF-8, got a byte {error.object[error.start]:#04x}"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{given[:200]}: cannot read the input: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        if where == "--input" and not text.lstrip().startswith(("{", "[", '"')):
            raise ValueError(
                f"{given[:200] or '--input'}: no such file, and not JSON either; give a JSON file, JSON, or - for stdin"
            ) from error
        raise ValueError(f"{where}: not JSON: {error or 'nested too deeply'}") from error


def loads(text):
    """The value that JSON text stands for. Raises ValueError, with the line and column of a mistake in the JSON."""
    return from_plain(json.loads(text, parse_constant=_refuse_constant))


def to_plain(value):
    """The value made of what JSON has. TypeError for what cannot be."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, complex):
        return {"$complex": [to_plain(value.real), to_plain(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"$set": sorted((to_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: to_plain(item) for key, item in value.items()}
        return {"$dict": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"cannot write a {type(value).__name__} as JSON") from None
    return to_plain(getattr(value, "tolist", view.tolist)())       # arrays know complex numbers, views do not


def from_plain(plain):
    """The value that plain JSON data stands for."""
    if isinstance(plain, list):
        return [from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((tag, content),) = plain.items()
        if tag.startswith("$"):
            return _tagged(tag, content)
    return {key: from_plain(item) for key, item in plain.items()}


def _tagged(tag, content):
    if tag not in TAGS:
        raise ValueError(
            f"unknown object {{{json.dumps(tag)}: ...}}; a key that starts with $ is one of {', '.join(TAGS)}"
        )
    try:
        match tag:
            case "$bytes":
                return base64.b64decode(content, validate=True)
            case "$complex":
                real, imaginary = (from_plain(part) for part in content)
                return complex(real, imaginary)
            case "$dict":
                return {from_plain(key): from_plain(item) for key, item in content}
            case "$float":
                return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[content])
            case "$set":
                return {from_plain(item) for item in content}
            case "$tuple":
                return tuple(from_plain(item) for item in content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{{{json.dumps(tag)}: ...}}: {json.dumps(content)[:60]} is not what it can hold") from error


def _refuse_constant(name):
    raise ValueError(f'{name} is not JSON; write {{"$float": "{name.lower().replace("infinity", "inf")}"}}')
