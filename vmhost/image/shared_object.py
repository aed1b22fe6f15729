"""Removes one dependency of a shared object (ELF, 64 bits, little-endian): its loader provides those functions itself,
in any version."""

import struct

from vmhost.image import ImageError

_LOAD, _DYNAMIC = 1, 2  # kinds of segments
_END, _NEEDED, _STRINGS = 0, 1, 5  # kinds of entries in the dynamic section
_VERSIONS, _VERSIONS_COUNT = 0x6FFFFFFE, 0x6FFFFFFF  # of a chain: required versions of libraries


def without_need(data, library):
    """The bytes `data` of a shared object, without its dependency on `library` ("libz.so.1"). ImageError."""
    if data[:6] != b"\x7fELF\2\1":
        raise ImageError(f"expected a shared object of 64 bits, little-endian, got one that begins {data[:6]!r}")
    at, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<II6Q", data, at + size * number) for number in range(count)]
    begin, length = next((offset, stored) for kind, _, offset, _, _, stored, *_ in segments if kind == _DYNAMIC)
    entries = [struct.unpack_from("<QQ", data, begin + position) for position in range(0, length, 16)]

    def place(address):
        return next(
            offset + address - low
            for kind, _, offset, low, _, stored, *_ in segments
            if kind == _LOAD and low <= address < low + stored
        )

    strings = place(next(value for kind, value in entries if kind == _STRINGS))

    def is_need(kind, value):
        return kind == _NEEDED and data.startswith(library.encode() + b"\0", strings + value)

    kept = [entry for entry in entries if not is_need(*entry)]
    if len(kept) == len(entries):
        raise ImageError(
            f"expected a shared object that needs {library}, got one that does not; its functions cannot be offered by"
            " vmrun"
        )
    kept += [(_END, 0)] * (len(entries) - len(kept))
    found = dict(entries)
    if _VERSIONS in found:
        # A library with required versions must be loaded, so its entry is unlinked from the chain. Symbols with a
        # version that no entry has are looked up without one.
        at, before, data = place(found[_VERSIONS]), None, bytearray(data)
        for _ in range(found[_VERSIONS_COUNT]):
            file, to_next = struct.unpack_from("<I", data, at + 4)[0], struct.unpack_from("<I", data, at + 12)[0]
            if not data.startswith(library.encode() + b"\0", strings + file):
                before = at
            elif before is None:
                raise ImageError(f"expected another library than {library} first among those whose versions are needed")
            else:
                past = struct.unpack_from("<I", data, before + 12)[0] + to_next if to_next else 0
                struct.pack_into("<I", data, before + 12, past)
                kept = [(kind, value - (kind == _VERSIONS_COUNT)) for kind, value in kept]
            at += to_next
    return bytes(data[:begin]) + b"".join(struct.pack("<QQ", *entry) for entry in kept) + bytes(data[begin + length :])
