"""Captured frames as readable lines: the conversation on a connection, with sizes in place of payloads."""

from vmhost.tunnel import frames
from vmhost.tunnel.compression import Compression
from vmhost.tunnel.errors import ProtocolError

_SHOWN = 60


def lines(data, dictionaries=()):
    """For each frame in `data` (bytes of one direction, after TLS) its size, kind and fields. The last line says why
    the rest cannot be read."""
    compression = Compression(dictionaries)
    decoder = frames.Decoder()
    names, halves = {}, {}
    try:
        for body in decoder.bodies(data):
            yield from _lines(frames.checked(body), len(body), compression, names, halves, "")
    except ProtocolError as error:
        yield f"not a frame: {error}"
        return
    if decoder.pending:
        yield f"and {decoder.pending} bytes of a frame that is not complete"


def _lines(frame, size, compression, names, halves, indent):
    kind, *fields = frame
    if kind == frames.CHANNEL:
        names[fields[0]] = fields[1]
    shown = [_shown(field) for field in fields]
    if kind in (frames.MESSAGES, frames.PACKED, frames.FRAGMENT) and fields[0] in names:
        shown[0] = names[fields[0]]
    if kind in (frames.REQUEST, frames.OPEN) and fields[1] in names:
        shown[1] = names[fields[1]]
    if kind == frames.MESSAGES:
        shown[1] = f"{len(fields[1]) // 3} messages"
    yield f"{indent}{size:>6} {frames.NAMES[kind]:<10} {', '.join(shown)}"
    inner = None
    if kind == frames.MESSAGES:
        flat = fields[1]
        for at in range(0, len(flat) - 2, 3):
            yield f"{indent}       {flat[at]!s:>10} {_shown(flat[at + 1])} {_shown(flat[at + 2])}"
    elif kind == frames.PACKED:
        inner = compression.unpack(fields[3], fields[1], min(fields[2], 1 << 26))
    elif kind == frames.FRAGMENT:
        whole = halves.setdefault(fields[0], bytearray())
        whole += fields[2]
        if fields[1]:
            inner = bytes(halves.pop(fields[0]))
    if inner is not None:
        yield from _lines(frames.checked(inner), len(inner), compression, names, halves, indent + "   ")


def _shown(field):
    if isinstance(field, bytes):
        return f"{len(field)} bytes"
    text = repr(field)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
