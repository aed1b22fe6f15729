"""Arrays in files: NumPy's npy format (versions 1 to 3) and npz archives; never pickled objects.

Paths are opened by `open`: in a VM, a relative path names a readable file of the bundle, and an absolute one needs the
task's permission. An object with `read` (or `write`) works as well."""

from vmhost.engine import _array as _a

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # characters; NumPy's limit
_PIECE = 1 << 20  # bytes read at a time
_NO_OBJECTS = (
    "holds Python objects, which are pickled and could run code when they are read: vmhost.engine.numpy never does."
    " Save numbers as arrays, and everything else as JSON"
)


def _name_of(file):
    return getattr(file, "name", None) or (file if isinstance(file, str) else type(file).__name__)


def _path_with(file, suffix):
    path = file.__fspath__() if hasattr(file, "__fspath__") else file
    return path if path.endswith(suffix) else path + suffix


# ---- one array


def _header(array):
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': {fortran}, 'shape': {array.shape}, }}"
    length = len(text) + 1
    version, size = (1, 2) if length + 64 < 65536 else (2, 4)
    padding = -(len(_MAGIC) + 2 + size + length) % 64
    text = text + " " * padding + "\n"
    return _MAGIC + bytes((version, 0)) + len(text).to_bytes(size, "little") + text.encode("latin1"), fortran


def _write(file, array):
    array = _a.asarray(array)
    header, fortran = _header(array)
    file.write(header)
    file.write((array.T if fortran else array).tobytes())


def _read_exactly(file, count, what, start=b""):
    """Reads `count` bytes, including `start`, which was read before."""
    chunks, left = [start], count - len(start)
    while left > 0:
        chunk = file.read(left)
        if not chunk:
            raise ValueError(f"{_name_of(file)}: EOF: reading {what}, expected {count} bytes got {count - left}")
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _read(file, start=b"", max_header_size=_MAX_HEADER):
    """Reads the array at the file's position; `start` was read before."""
    magic = _read_exactly(file, len(_MAGIC) + 2, "magic string", start)
    if not magic.startswith(_MAGIC):
        raise ValueError(f"{_name_of(file)}: the magic string is not correct; expected {_MAGIC!r}, got {magic[:6]!r}")
    if magic[6] not in (1, 2, 3):
        raise ValueError(f"{_name_of(file)}: Invalid version {magic[6]}.{magic[7]}; there are 1.0, 2.0 and 3.0")
    size = int.from_bytes(_read_exactly(file, 2 if magic[6] == 1 else 4, "array header length"), "little")
    if size > max_header_size + 64:
        raise ValueError(
            f"{_name_of(file)}: Header info length ({size}) is large and may not be safe to load securely."
        )
    text = _read_exactly(file, size, "array header").decode("utf-8" if magic[6] == 3 else "latin1")
    dtype, fortran, shape, swap = _described(text, file)
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size >= 1 << 63:
        raise ValueError(f"{_name_of(file)}: an array of shape {shape} and dtype {dtype} is larger than any memory")
    raw, filled = _a.empty(size, _a.uint8), 0
    buffer = memoryview(raw)
    while filled < size:  # in pieces, into the array: no second copy of the data
        part = file.read(min(size - filled, _PIECE))
        if not part:
            raise ValueError(f"{_name_of(file)}: EOF: reading array data, expected {size} bytes got {filled}")
        buffer[filled : filled + len(part)] = part
        filled += len(part)
    array = raw != 0 if dtype == _a.bool else (_swapped(raw, dtype) if swap else raw).view(dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _described(text, file):
    """Returns (dtype, order, shape, whether the bytes must be swapped)."""
    header = _literal(text)
    if (
        not isinstance(header, dict)
        or header.keys() != {"descr", "fortran_order", "shape"}
        or not isinstance(header["fortran_order"], bool)
    ):
        raise ValueError(f"{_name_of(file)}: Header does not contain the correct keys: {text.strip()!r}")
    shape, description = header["shape"], header["descr"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{_name_of(file)}: shape is not valid: {shape!r}")
    if not isinstance(description, str):
        raise ValueError(
            f"{_name_of(file)}: structured dtypes are absent here: {description!r}; save an array for each field"
        )
    if "O" in description:
        raise ValueError(f"{_name_of(file)} {_NO_OBJECTS}")
    try:
        dtype = _a.dtype(description.lstrip("<>=|"))
    except TypeError as error:
        raise ValueError(f"{_name_of(file)}: dtype {description!r} is absent here; save numbers or booleans") from error
    return dtype, header["fortran_order"], shape, description[0] == ">" and dtype.itemsize > 1


def _literal(text):
    """Parses a header's dictionary of names, numbers, strings and tuples. None for anything else."""
    import re

    tokens = re.findall(r"\s*('[^'\\]*'|\"[^\"\\]*\"|[{}()\[\],:]|True|False|[0-9]+L?)", text)
    if re.sub(r"\s+", "", "".join(tokens)) != re.sub(r"\s+", "", text):
        return None
    position = 0

    def value():
        nonlocal position
        token = tokens[position]
        position += 1
        if token == "{":
            result = {}
            while tokens[position] != "}":
                key = value()
                position += 1  # the colon
                result[key] = value()
                if tokens[position] == ",":
                    position += 1
            position += 1
            return result
        if token in "([":
            items = []
            end = ")" if token == "(" else "]"
            while tokens[position] != end:
                items.append(value())
                if tokens[position] == ",":
                    position += 1
            position += 1
            return tuple(items) if token == "(" else items
        if token[0] in "'\"":
            return token[1:-1]
        if token in ("True", "False"):
            return token == "True"
        return int(token.rstrip("L"))

    try:
        result = value()
    except IndexError, ValueError, TypeError, RecursionError:
        return None
    return result if position == len(tokens) else None


def _swapped(raw, dtype):
    width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return raw.reshape(-1, width)[:, ::-1].copy().reshape(-1)


def save(file, arr, allow_pickle=False):
    """Writes one array in the npy format; .npy is appended to a path without it."""
    if hasattr(file, "write"):
        _write(file, arr)
        return
    with open(_path_with(file, ".npy"), "wb") as opened:
        _write(opened, arr)


def load(file, mmap_mode=None, allow_pickle=False, fix_imports=True, encoding="ASCII", *, max_header_size=_MAX_HEADER):
    """The array of an npy file, or an NpzFile of an npz archive."""
    if mmap_mode is not None:
        raise ValueError("mmap_mode is absent: files are read whole; use load without it")
    if allow_pickle:
        raise ValueError(f"allow_pickle=True: a pickle {_NO_OBJECTS}")
    own = not hasattr(file, "read")
    opened = open(file, "rb") if own else file
    keep = False
    try:
        start = opened.read(4)
        if not start:
            raise EOFError("No data left in file")
        if start in (b"PK\x03\x04", b"PK\x05\x06"):
            if hasattr(opened, "seek"):
                opened.seek(-len(start), 1)
            else:
                from io import BytesIO

                opened = BytesIO(start + opened.read())
            keep = True
            return NpzFile(opened, own)
        if start != _MAGIC[:4]:
            raise ValueError(f"{_name_of(file)} is no npy or npz file. If it is a pickle, it {_NO_OBJECTS}")
        return _read(opened, start, max_header_size)
    finally:
        if own and not keep:
            opened.close()


# ---- several


class _Attributes:
    """The arrays of an archive as attributes: `archive.f.weights`."""

    def __init__(self, archive):
        self._archive = archive

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._archive[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self):
        return list(self._archive)


class NpzFile:
    """The arrays of an archive by name, each read on access; a context manager."""

    def __init__(self, file, own):
        from zipfile import ZipFile

        self.zip, self._file = ZipFile(file), file if own else None
        self.files = [name.removesuffix(".npy") for name in self.zip.namelist()]

    def __getitem__(self, name):
        names = self.zip.namelist()
        member_name = name if name in names else f"{name}.npy"
        if member_name not in names:
            raise KeyError(f"{name} is not a file in the archive; it has {', '.join(self.files) or 'none'}")
        with self.zip.open(member_name) as member:
            is_array = member.read(len(_MAGIC)) == _MAGIC
        with self.zip.open(member_name) as member:
            return _read(member) if is_array or member_name.endswith(".npy") else member.read()

    @property
    def f(self):
        return _Attributes(self)

    def close(self):
        self.zip.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        if hasattr(self, "zip"):
            self.close()

    def __iter__(self):
        return iter(self.files)

    def __len__(self):
        return len(self.files)

    def __contains__(self, name):
        return name in self.files or name in self.zip.namelist()

    def keys(self):
        return self.files

    def values(self):
        return [self[name] for name in self.files]

    def items(self):
        return [(name, self[name]) for name in self.files]

    def get(self, name, default=None):
        return self[name] if name in self else default

    def __repr__(self):
        name = self._file if isinstance(self._file, str) else getattr(self._file, "name", "object")
        shown = ", ".join(self.files[:5]) + "..." * (len(self.files) > 5)
        return f"NpzFile {name!r} with keys: {shown}"


def savez(file, *args, allow_pickle=False, **kwds):
    """Writes several arrays into one archive: arr_0, arr_1, … and named ones. .npz is appended to a path without it."""
    _save_all(file, args, kwds, False)


def savez_compressed(file, *args, allow_pickle=False, **kwds):
    """`savez` with compression."""
    _save_all(file, args, kwds, True)


def _save_all(file, arrays, named, compressed):
    from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

    members = dict(named)
    for i, array in enumerate(arrays):
        if f"arr_{i}" in members:
            raise ValueError(f"Cannot use un-named variables and keyword arr_{i}")
        members[f"arr_{i}"] = array
    if not hasattr(file, "write"):
        file = _path_with(file, ".npz")
    with ZipFile(file, "w", ZIP_DEFLATED if compressed else ZIP_STORED) as archive:
        for name, array in members.items():
            info = ZipInfo(f"{name}.npy")  # dated 1980, so that equal arrays give equal bytes
            info.compress_type = ZIP_DEFLATED if compressed else ZIP_STORED
            with archive.open(info, "w", force_zip64=True) as member:
                _write(member, array)
