"""Baseline files: recorded calls of one version of a task, with which `vmhost replay` compares another version.

    "VMHB\\1\\n"  frame  frame  frame ...        the first frame is the header, each other one a call
    frame: length, CRC-32 of the body, CRC-32 of these eight bytes (uint32, little-endian), body (msgpack)

A file is only appended to, each frame by one write. Readers ignore an incomplete frame at the end, which a killed
process leaves; any other damage is a BaselineError with the position. docs/operations.md describes the fields.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgpack

from vmhost.errors import ConfigurationError
from vmhost.runtime.codec import FOREIGN as FOREIGN
from vmhost.runtime.codec import Foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

MAGIC = b"VMHB\x01\n"
FORMAT = 1
_FRAME = struct.Struct("<III")
_MAX_FRAME = 1 << 30
# msgpack extension types, for what msgpack cannot express.
_TUPLE, _SET, _FROZENSET, _COMPLEX, _INT, _ARRAY, _KIND, _PACKED = range(1, 9)


class BaselineError(ConfigurationError):
    """A baseline file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Header:
    """A baseline's subject. `share`: of all calls, the part recorded. `masked`: names of the rules that hid fields."""

    task: str
    version: str
    digest: str
    entry: str
    python: str
    vmhost: str
    started: float
    share: float
    masked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call. `outcome` is a name of vmhost.errors.Kind; `error` has type_name and message if it is not OK.

    `observed`: the VM's report (vmhost/guest/recording.py), None if it could not give one. `hidden`: the number of
    masked fields. `packed_result`: the result as bytes of `pack_value`, None without a result. Times are in
    seconds."""

    number: int
    at: float
    entry: str | None
    value: "Any"
    outcome: str
    result: "Any" = None
    error: dict[str, str] | None = None
    wall_s: float = 0.0
    wait_s: float = 0.0
    result_bytes: int = 0
    observed: dict[str, "Any"] | None = None
    hidden: int = 0
    packed_result: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def unfit(self) -> str | None:
        """The reason why a replay cannot compare this call; None if it can."""
        observed = self.observed
        if observed is None:
            return "its VM could not report what it did"
        if observed.get("used"):
            return f"it used {', '.join(observed['used'])}"
        if observed.get("cut"):
            return "it asked for more than a record holds"
        return None


# -- values ----------------------------------------------------------------------------------------------------------


def pack_value(value: "Any", pack_other: "Any" = None) -> bytes:
    """A value that can cross into a VM, as bytes. `pack_other(value)` gives (kind, detail, payload) for a value of a
    class beyond the builtin ones, None if it does not know it. TypeError, ValueError."""

    def default(value):
        return _extension(value, pack_other, pack)

    def pack(value):
        return msgpack.packb(
            value, default=default, strict_types=True, use_bin_type=True, unicode_errors="surrogatepass"
        )

    return pack(value)


def _extension(value, pack_other, pack):
    from vmhost.packed import Packed

    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, pack(list(value)))
    if kind in (set, frozenset):
        return msgpack.ExtType(_SET if kind is set else _FROZENSET, pack(list(value)))
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, struct.pack("<dd", value.real, value.imag))
    if kind is int:
        return msgpack.ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if kind is Packed:
        return msgpack.ExtType(_PACKED, bytes(value.data))
    if kind is Foreign:
        return msgpack.ExtType(_KIND, pack([value.kind, value.detail, value.payload]))
    parts = pack_other(value) if pack_other is not None else None
    if parts is not None:
        return msgpack.ExtType(_KIND, pack(list(parts)))
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a `{kind.__name__}` cannot be recorded") from None
    with view:
        return msgpack.ExtType(_ARRAY, pack([view.format, list(view.shape), view.tobytes()]))


def unpack_value(data: bytes) -> "Any":
    """The value in bytes from `pack_value`. Arrays become memoryviews, values of a task's own classes Foreign.
    BaselineError."""
    try:
        return msgpack.unpackb(
            data,
            ext_hook=_unpack_extension,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_ext_len=len(data),
            max_bin_len=len(data),
        )
    except BaselineError:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError, struct.error, msgpack.UnpackException) as error:
        raise BaselineError(f"not a recorded value: {type(error).__name__}: {error}") from error


def _unpack_extension(code, data):
    if code == _COMPLEX:
        return complex(*struct.unpack("<dd", data))
    if code == _INT:
        return int.from_bytes(data, "little", signed=True)
    if code == _PACKED:
        from vmhost.packed import Packed

        return Packed(data)
    value = unpack_value(data)
    if code in (_TUPLE, _SET, _FROZENSET) and type(value) is list:
        return {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[code](value)
    if code == _KIND and type(value) is list and len(value) == 3:
        return _unpack_kind(*value)
    if code == _ARRAY and type(value) is list and len(value) == 3:
        format, shape, content = value
        flat = memoryview(content)
        return flat.cast(format, shape) if shape else flat.cast(format, ())
    raise BaselineError(f"extension type {code} is unknown to this version, or malformed")


def _unpack_kind(kind, detail, payload):
    from vmhost.guest import kinds
    from vmhost.guest.classes import is_class_kind

    if is_class_kind(kind):
        return Foreign(kind, detail, payload)
    return kinds.unpack(kind, detail, payload)


# -- files -----------------------------------------------------------------------------------------------------------


class BaselineWriter:
    """Creates the file `path` with `header`; `append` adds calls, from one thread at a time. OSError."""

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = os.fspath(path)
        self.bytes = 0
        self.calls = 0
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fields = {name: getattr(header, name) for name in Header.__slots__}
            self._write(MAGIC + _frame({"format": FORMAT, **fields, "masked": list(header.masked)}))
        except BaseException:
            self.close()
            raise

    def append(self, fields: dict[str, "Any"]) -> None:
        """Adds a call: the fields of Recorded by name, without `number`; values as bytes of `pack_value`. OSError;
        ValueError if it is closed."""
        if self._fd < 0:
            raise ValueError(f"{self.path}: is closed")
        self._write(_frame(fields))
        self.calls += 1

    def _write(self, data):
        written = os.write(self._fd, data)
        if written != len(data):  # a full disk: remove the partial frame, so that later ones can be read
            os.ftruncate(self._fd, self.bytes)
            raise OSError(28, "no space left for a whole call", self.path)
        self.bytes += written

    def forget(self, marks: Iterable[bytes]) -> int:
        """As `forget_calls`; goes on in the rewritten file."""
        removed = forget_calls(self.path, marks)
        if removed and self._fd >= 0:
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self.bytes = os.fstat(self._fd).st_size
        return removed

    def close(self) -> None:
        """Closes the file; may be repeated."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def forget_calls(path: str | os.PathLike[str], marks: Iterable[bytes]) -> int:
    """Removes the calls whose bytes contain one of `marks` from a baseline file, which is replaced as a whole, and
    bytes after the last whole call. Returns their number. OSError; BaselineError for a file that is none."""
    path, marks = os.fspath(path), tuple(marks)
    with open(path, "rb") as file:
        data = file.read()
    if not any(mark in data for mark in marks):
        return 0
    if not data.startswith(MAGIC):
        raise BaselineError(f"{path}: not a baseline of this version of vmhost")
    offsets, _ = _frames(path, data)
    kept = [
        data[start - _FRAME.size : end] for start, end in offsets if not any(mark in data[start:end] for mark in marks)
    ]
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(MAGIC + b"".join(kept))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    return len(offsets) - len(kept)


def _frame(fields):
    body = msgpack.packb(fields)
    head = struct.pack("<II", len(body), zlib.crc32(body))
    return head + struct.pack("<I", zlib.crc32(head)) + body


@dataclass
class Baseline:
    """A baseline file in memory: `header`, and the calls by iteration. `torn`: bytes after the last whole frame, left
    by a killed process."""

    path: str
    header: Header
    torn: int = 0
    _offsets: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _data: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Self":
        """BaselineError: it cannot be read, is not a baseline, or is damaged."""
        path = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise BaselineError(f"{path}: cannot be read: {error.strerror or error}") from error
        if not data.startswith(MAGIC):
            if data and MAGIC.startswith(data) or not data:
                raise BaselineError(f"{path}: ends before its header; the host ended as it began to record")
            raise BaselineError(f"{path}: not a baseline of this version of vmhost (its first bytes are {data[:6]!r})")
        offsets, torn = _frames(path, data)
        if not offsets:
            raise BaselineError(f"{path}: ends before its header; the host ended as it began to record")
        start, end = offsets.pop(0)
        return cls(path, _header(path, data[start:end]), torn, offsets, data)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Recorded]:
        for number, (start, end) in enumerate(self._offsets, 1):
            yield _recorded(self.path, number, start, memoryview(self._data)[start:end])


def _frames(path, data):
    """([(start, end) of each body], bytes left over). BaselineError."""
    offsets, at = [], len(MAGIC)
    while len(data) - at >= _FRAME.size:
        length, check, head_check = _FRAME.unpack_from(data, at)
        start = at + _FRAME.size
        if zlib.crc32(data[at : at + 8]) != head_check or length > _MAX_FRAME:
            if not any(data[at:]):  # allocated blocks that were never written
                break
            raise _damage(path, at, len(offsets))
        if start + length > len(data):
            break
        if zlib.crc32(memoryview(data)[start : start + length]) != check:
            if start + length == len(data):
                break  # the last one, partly written
            raise _damage(path, start, len(offsets))
        offsets.append((start, start + length))
        at = start + length
    return offsets, len(data) - at


def _damage(path, at, frames):
    where = "in its header" if frames == 0 else f"in call {frames}"
    return BaselineError(
        f"{path}: damaged at byte {at}, {where}: the check sum is wrong; record it again, or use a copy"
    )


def _header(path, body):
    try:
        fields = msgpack.unpackb(body)
        if fields["format"] != FORMAT:
            raise BaselineError(
                f"{path}: format {fields['format']!r}, this version of vmhost reads {FORMAT}; record it again"
            )
        values = {name: _of(type_, fields[name], name) for name, type_ in _HEADER.items()}
        return Header(**values, masked=tuple(_of(str, name, "masked") for name in fields["masked"]))
    except BaselineError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise BaselineError(f"{path}: its header is not what vmhost writes: {type(error).__name__}: {error}") from error


_HEADER = {
    "task": str,
    "version": str,
    "digest": str,
    "entry": str,
    "python": str,
    "vmhost": str,
    "started": float,
    "share": float,
}


def _of(kind, value, name):
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _recorded(path, number, at, body):
    try:
        fields = msgpack.unpackb(body, max_bin_len=len(body))
        error = fields["error"]
        if error is not None:
            error = {name: _of(str, error[name], name) for name in ("type_name", "message")}
        result, observed = fields["result"], fields["observed"]
        return Recorded(
            number=number,
            at=_of(float, fields["at"], "at"),
            entry=None if fields["entry"] is None else _of(str, fields["entry"], "entry"),
            value=unpack_value(_of(bytes, fields["value"], "value")),
            outcome=_of(str, fields["outcome"], "outcome"),
            result=None if result is None else unpack_value(_of(bytes, result, "result")),
            error=error,
            wall_s=_of(float, fields["wall_s"], "wall_s"),
            wait_s=_of(float, fields["wait_s"], "wait_s"),
            result_bytes=_of(int, fields["result_bytes"], "result_bytes"),
            observed=None if observed is None else check_observed(unpack_value(_of(bytes, observed, "observed"))),
            hidden=_of(int, fields["hidden"], "hidden"),
            packed_result=result,
        )
    except (ValueError, TypeError, KeyError, BaselineError, msgpack.UnpackException) as error:
        raise BaselineError(
            f"{path}: call {number}, at byte {at}, is not what vmhost writes: {type(error).__name__}: {error}"
        ) from error


def check_observed(value: "Any") -> dict[str, "Any"]:
    """Returns a VM's report of a call if it has the shape of vmhost/guest/recording.py; else ValueError or KeyError."""
    _of(dict, value, "observed")
    for name, answers in _of(dict, value["answers"], "answers").items():
        _of(str, name, "answers")
        _of(list, answers, name)
    for each in _of(list, value["functions"], "functions"):
        if type(each) is not list or len(each) != 4 or type(each[0]) is not str:
            raise ValueError("functions: expected [name, value, ok, answer]")
    if value["random"] is not None and len(_of(tuple, value["random"], "random")) != 2:
        raise ValueError("random: expected two states")
    for name in _of(list, value["used"], "used"):
        _of(str, name, "used")
    return value
