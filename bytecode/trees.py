"""Syntax trees that packages make and compile: packed for a record, and as a text for a bundle's digests."""

import ast
import base64
import json
import zlib

_MAX_BYTES = 64 << 20  # of a tree's JSON


def text_of(tree):
    """The text that stands for a tree in a digest: equal for trees that compile to the same code."""
    return ast.dump(tree, include_attributes=True)


def packed(tree):
    """The tree as compressed JSON in Base64: packages compile whole modules again for each of their functions.
    RecursionError or ValueError for one too deep or with too long a number."""
    return base64.b64encode(zlib.compress(json.dumps(_plain(tree), separators=(",", ":")).encode())).decode()


def unpacked(text):
    """The tree; ValueError where `text` is none, or one with constants that have no literal."""
    try:
        reader = zlib.decompressobj()
        tree = _node(json.loads(reader.decompress(base64.b64decode(text), _MAX_BYTES)))
    except (AttributeError, SyntaxError, TypeError, RecursionError, MemoryError, zlib.error) as error:
        raise ValueError(f"no syntax tree: {error}") from error
    if not isinstance(tree, ast.AST):
        raise ValueError("no syntax tree")
    return tree


def _plain(value):
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    if not isinstance(value, ast.AST):
        return {"": "..." if value is ... else repr(value)}
    present = [name for name in (*value._fields, *value._attributes) if hasattr(value, name)]
    return {type(value).__name__: {name: _plain(getattr(value, name)) for name in present}}


def _node(value):
    if isinstance(value, list):
        return [_node(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(name, fields)] = value.items()
    if not name:
        return ast.literal_eval(fields)
    kind = getattr(ast, name)
    if not (isinstance(kind, type) and issubclass(kind, ast.AST)):
        raise TypeError(f"{name} is no node")
    return kind(**{field: _node(each) for field, each in fields.items()})
