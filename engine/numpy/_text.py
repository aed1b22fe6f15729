"""Arrays as text: loadtxt, genfromtxt, savetxt, fromstring.

A file is a path (opened by `open`; in a VM a relative path names a file of the bundle), an open file, or any iterable
of lines. Only numbers are read: a column of words needs a converter or the csv module."""

from operator import index

from vmhost.engine import _array as _a

_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".lzma": "lzma"}


def _open(path, mode, encoding, newline=None):
    """The file as text; one whose name ends so is compressed."""
    from os.path import splitext

    module = _COMPRESSED.get(splitext(path)[1])
    if module is None:
        return open(path, mode, encoding=encoding, newline=newline)
    from importlib import import_module

    return import_module(module).open(path, mode, encoding=encoding, newline=newline)


def _lines(source, encoding, error=ValueError):
    """Returns (lines as text, the file to close or None)."""
    opened = None
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        path = source if isinstance(source, str) else source.__fspath__()
        source = opened = _open(path, "rt", None if encoding == "bytes" else encoding)
    try:
        lines = iter(source)
    except TypeError:
        raise error(
            f"fname must be a string, filehandle, list of strings,\nor generator. Got {type(source)} instead."
        ) from None
    codec = encoding if encoding not in (None, "bytes") else "latin1"
    return (line.decode(codec) if isinstance(line, bytes) else line for line in lines), opened


def _text(value):
    return value.decode("latin1") if isinstance(value, bytes) else value


def _reader(dtype):
    """A function that parses a word as a number of `dtype`, or raises ValueError."""
    if dtype.kind == "b":
        return lambda word: bool(int(word))
    if dtype.kind in "iu":
        min_value, max_value = (
            (0, (1 << 8 * dtype.itemsize) - 1)
            if dtype.kind == "u"
            else (-(1 << 8 * dtype.itemsize - 1), (1 << 8 * dtype.itemsize - 1) - 1)
        )

        def integer(word):
            value = int(word)
            if not min_value <= value <= max_value:
                raise ValueError(word)
            return value

        return integer
    return _complex if dtype.kind == "c" else float


def _complex(word):
    return complex(word.replace("+-", "-"))


def _fields(line, delimiter, quote):
    """The line's words. A quoted word may contain the delimiter, and doubled quotes for quotes."""
    if quote is None or quote not in line:
        return line.split(delimiter) if delimiter is not None else line.split()
    fields, word, inside, i, started = [], [], False, 0, False
    while i < len(line):
        char = line[i]
        if char == quote:
            if inside and line[i + 1 : i + 2] == quote:
                word.append(quote)
                i += 1
            else:
                inside = not inside
                started = True
        elif not inside and (char.isspace() if delimiter is None else char == delimiter):
            if started or delimiter is not None:
                fields.append("".join(word))
            word, started = [], False
        else:
            word.append(char)
            started = True
        i += 1
    if started or delimiter is not None:
        fields.append("".join(word))
    return fields


def _check_controls(delimiter, comment, quote):
    """The characters that rule a line: each one character, no newline, all different. Without a delimiter, white space
    delimits."""
    found = {}
    for name, char in (("delimiter", delimiter), ("comment", comment), ("quote", quote)):
        if char is None:
            continue
        if not isinstance(char, str) or len(char) != 1:
            raise TypeError(
                f"Text reading control character must be a single unicode character or None; but got: {char!r}"
            )
        if char in "\r\n":
            raise TypeError(f"control character '{name}' cannot be a newline (`\\r` or `\\n`).")
        clash = found.get(char) or (name if delimiter is None and char.isspace() else None)
        if clash:
            raise TypeError(
                f"The values for control characters '{'delimiter' if clash == name else clash}' and '{name}' are"
                " incompatible"
            )
        found[char] = name


def _check_converters(converters):
    if converters is None or callable(converters):
        return
    if not isinstance(converters, dict):
        raise TypeError("converters must be a dictionary mapping columns to converter functions or a single callable.")
    for column, converter in converters.items():
        if not hasattr(column, "__index__"):
            raise TypeError(f"keys of the converters dictionary must be integers; got {column!r}")
        if not callable(converter):
            raise TypeError(
                f"values of the converters dictionary must be callable, but the value for key {column!r} was not"
            )


def _joined_lines(lines, quote):
    """The lines without their ends; one whose quotes are open goes on in the next."""
    for line in lines:
        while quote is not None and line.count(quote) % 2:
            following = next(lines, None)
            if following is None:
                break
            line += following
        line = line.removesuffix("\n").removesuffix("\r")
        if ("\n" in line or "\r" in line) and quote is None:
            raise ValueError(
                "Found an unquoted embedded newline within a single line of input.  This is currently not supported."
            )
        yield line


def loadtxt(
    fname,
    dtype=float,
    comments="#",
    delimiter=None,
    converters=None,
    skiprows=0,
    usecols=None,
    unpack=False,
    ndmin=0,
    encoding=None,
    max_rows=None,
    *,
    quotechar=None,
    like=None,
):
    """An array with one row per line that holds numbers. ValueError names a word that is not a number, with its row and
    column."""
    dtype = _a.dtype(float if dtype is None else dtype)
    if ndmin not in (0, 1, 2):
        raise ValueError(f"Illegal value of ndmin keyword: {ndmin}")
    marks = (
        () if comments is None else tuple(map(_text, [comments] if isinstance(comments, (str, bytes)) else comments))
    )
    if "" in marks:
        raise ValueError("comments cannot be an empty string. Use comments=None to disable comments.")
    delimiter, quotechar = _text(delimiter), _text(quotechar)
    single = len(marks) == 1 and isinstance(marks[0], str) and len(marks[0]) == 1
    if len(marks) > 1 and delimiter in marks:
        raise TypeError(f"Comment characters '{marks}' cannot include the delimiter '{delimiter}'")
    if marks and not single and quotechar is not None:
        raise ValueError(
            "when multiple comments or a multi-character comment is given, quotes are not supported.  In this case"
            " quotechar must be set to None."
        )
    _check_controls(delimiter, marks[0] if single else None, quotechar)
    _check_converters(converters)
    for count in (skiprows, max_rows):
        if count is not None and index(count) < 0:
            raise ValueError("argument must be nonnegative")
    if usecols is not None:
        try:
            usecols = list(usecols)
        except TypeError:
            usecols = [usecols]
        for column in usecols:
            if not hasattr(column, "__index__"):
                raise TypeError(
                    "usecols must be an int or a sequence of ints but it contains at least one element of type"
                    f" '{type(column).__name__}'"
                )
        usecols = [index(column) for column in usecols]
        if any(not -1 << 63 <= column < 1 << 63 for column in usecols):
            raise OverflowError("cannot fit 'int' into an index-sized integer")
    number = _reader(dtype)
    rows, width = [], None
    lines, opened = _lines(fname, encoding)
    try:
        for _ in range(skiprows):
            next(lines, None)
        lines = _joined_lines(lines, quotechar)
        while max_rows is None or len(rows) < max_rows:  # the next line is for who reads on
            line = next(lines, None)
            if line is None:
                break
            for mark in marks:
                line = line.partition(mark)[0]
            if not line.strip() if delimiter is None else not line:
                continue
            words = _fields(line, delimiter, quotechar)
            if width is None:
                width = len(words)
                for column in converters if isinstance(converters, dict) and usecols is None else ():
                    if not -width <= column < width:
                        raise ValueError(
                            f"converter specified for column {column}, which is invalid for the number of fields"
                            f" {width}"
                        )
            if usecols is None and len(words) != width:
                raise ValueError(
                    f"the number of columns changed from {width} to {len(words)} at row {len(rows) + 1}; use `usecols`"
                    " to select a subset and avoid this error"
                )
            columns = range(width) if usecols is None else usecols
            row = []
            for column in columns:
                if not -len(words) <= column < len(words):
                    raise ValueError(f"invalid column index {column} at row {len(rows) + 1} with {len(words)} columns")
                word = words[column]
                converter = converters if callable(converters) else None
                if isinstance(converters, dict):
                    converter = converters.get(column, converters.get(column - len(words)))
                try:
                    if converter is None and "_" in word:  # int() and float() accept it
                        raise ValueError(word)
                    row.append(
                        converter(word.encode("latin1") if encoding == "bytes" else word)
                        if converter
                        else number(word.strip())
                    )
                except ValueError:
                    raise ValueError(
                        f"could not convert string {word!r} to {dtype.name} at row {len(rows)}, column"
                        f" {column % len(words) + 1}."
                    ) from None
            rows.append(row)
    finally:
        if opened is not None:
            opened.close()
    array = _a.array(rows, dtype) if rows else _a.empty((0,) if usecols is None else (0, len(usecols)), dtype)
    return _shaped(array, ndmin, unpack)


def _shaped(array, ndmin, unpack):
    if array.ndim > ndmin:
        array = array.squeeze()
    if array.ndim < ndmin:
        array = array.reshape(1) if ndmin == 1 else array.reshape(1, -1).T if array.ndim == 1 else array.reshape(1, 1)
    return array.T if unpack else array


def genfromtxt(
    fname,
    dtype=float,
    comments="#",
    delimiter=None,
    skip_header=0,
    skip_footer=0,
    converters=None,
    missing_values=None,
    filling_values=None,
    usecols=None,
    names=None,
    excludelist=None,
    deletechars="",
    replace_space="_",
    autostrip=False,
    case_sensitive=True,
    defaultfmt="f%i",
    unpack=None,
    usemask=False,
    loose=True,
    invalid_raise=True,
    max_rows=None,
    encoding=None,
    *,
    ndmin=0,
    like=None,
):
    """loadtxt for tables with gaps: a word that is missing or not a number becomes `filling_values` (default: NaN, for
    integers -1)."""
    if names is not None or usemask:
        from vmhost.engine.numpy._absent import ABSENT

        raise ValueError(
            f"genfromtxt({'names' if names is not None else 'usemask'}=):"
            f" {ABSENT['record' if names is not None else 'ma']}"
        )
    if max_rows is not None and skip_footer:
        raise ValueError("The keywords 'skip_footer' and 'max_rows' can not be specified at the same time.")
    if max_rows is not None and max_rows < 1:
        raise ValueError("'max_rows' must be at least 1.")
    dtype = _a.dtype(float if dtype is None else dtype)
    number = _reader(dtype)
    fill = filling_values
    if fill is None:
        fill = {"b": False, "i": -1, "u": -1}.get(dtype.kind, float("nan"))
    missing = {""}
    if missing_values is not None:
        missing.update([missing_values] if isinstance(missing_values, str) else map(str, missing_values))
    if usecols is not None and not hasattr(usecols, "__iter__"):
        usecols = [usecols]
    rows, malformed, width = [], [], None
    lines, opened = _lines(fname, encoding, TypeError)
    try:
        for _ in range(skip_header):
            next(lines, None)
        line_number = skip_header
        while max_rows is None or len(rows) < max_rows:  # the next line is for who reads on
            line_number, line = line_number + 1, next(lines, None)
            if line is None:
                break
            if comments is not None:
                line = line.partition(_text(comments))[0]
            fixed_width = isinstance(delimiter, (int, list, tuple))
            line = line.strip("\r\n" if fixed_width else " \r\n")
            if not line:
                continue
            words = _split_by_width(line, delimiter) if fixed_width else line.split(_text(delimiter))
            if usecols is not None:
                try:
                    words = [words[column] for column in usecols]
                except IndexError:
                    malformed.append((line_number, len(words)))
                    continue
            if width is None:
                width = len(words)
            if len(words) != width:
                malformed.append((line_number, len(words)))
                continue
            rows.append(words)
    finally:
        if opened is not None:
            opened.close()
    if skip_footer:
        kept = len(rows) + len(malformed) - skip_footer + skip_header
        skipped = sum(line_number > kept for line_number, _ in malformed)
        del malformed[len(malformed) - skipped :]
        del rows[max(len(rows) - max(skip_footer - skipped, 0), 0) :]
    if malformed and invalid_raise:
        raise ValueError(
            "Some errors were detected !\n"
            + "\n".join(
                f"    Line #{line_number} (got {count} columns instead of {width})" for line_number, count in malformed
            )
        )
    columns = list(range(width or 0)) if usecols is None else usecols
    table = []
    for words in rows:
        row = []
        for i, (column, word) in enumerate(zip(columns, words)):
            converter = (converters or {}).get(column)
            filling = (
                fill.get(column, float("nan"))
                if isinstance(fill, dict)
                else fill[i]
                if isinstance(fill, (list, tuple))
                else fill
            )
            if converter is not None:
                row.append(converter(word.encode("latin1") if encoding == "bytes" else word))
                continue
            word = word.strip()
            if word in missing:
                row.append(filling)
            else:
                try:
                    row.append(number(word))
                except ValueError:
                    if not loose:
                        raise ValueError(f"Cannot convert string '{word}'") from None
                    row.append(filling)
        table.append(row)
    return _shaped(_a.array(table, dtype) if table else _a.empty((0,), dtype), ndmin, unpack)


def _split_by_width(line, widths):
    """Splits the line into fields of these widths, in characters."""
    if isinstance(widths, int):
        return [line[start : start + widths] for start in range(0, len(line), widths)]
    pieces, start = [], 0
    for width in widths:
        pieces.append(line[start : start + width])
        start += width
    return pieces


def savetxt(fname, X, fmt="%.18e", delimiter=" ", newline="\n", header="", footer="", comments="# ", encoding=None):
    """Writes rows as lines; `fmt` is one format, one for each column, or one for the whole line."""
    fmt, delimiter = _text(fmt), _text(delimiter)
    X = _a.asarray(X)
    if X.ndim == 0 or X.ndim > 2:
        raise ValueError(f"Expected 1D or 2D array, got {X.ndim}D array instead")
    rows = X.reshape(-1, 1) if X.ndim == 1 else X
    columns, is_complex = rows.shape[1], X.dtype.kind == "c"
    if isinstance(fmt, (list, tuple)):
        if len(fmt) != columns:
            raise AttributeError(f"fmt has wrong shape.  {fmt!s}")
        line = delimiter.join(map(_text, fmt))
    elif isinstance(fmt, str):
        count = fmt.count("%")
        if count == 1:
            line = delimiter.join([f" ({fmt}+{fmt}j)" if is_complex else fmt] * columns)
        elif count != columns * (1 + is_complex):
            raise ValueError(f"fmt has wrong number of % formats:  {fmt}")
        else:
            line = fmt
    else:
        raise ValueError(f"invalid fmt: {fmt!r}")
    opened = None
    if isinstance(fname, str) or hasattr(fname, "__fspath__"):
        path = fname if isinstance(fname, str) else fname.__fspath__()
        fname = opened = _open(path, "wt", encoding or "latin1", "")
    elif not hasattr(fname, "write"):
        raise ValueError("fname must be a string or file handle")
    write = _writer(fname, encoding or "latin1")
    try:
        if header:
            write(comments + header.replace("\n", "\n" + comments) + newline)
        # "%s" formats the elements themselves: a float32's text differs from that of the float of equal value
        for row in rows if "%s" in line else rows.tolist():
            if is_complex:
                row = [part for number in row for part in (number.real, number.imag)]
            try:
                text = line % tuple(row)
            except TypeError as error:
                raise TypeError(
                    f"Mismatch between array dtype ('{X.dtype}') and format specifier ('{line}')"
                ) from error
            write((text.replace("+-", "-") if is_complex else text) + newline)
        if footer:
            write(comments + footer.replace("\n", "\n" + comments) + newline)
    finally:
        if opened is not None:
            opened.close()


def _writer(file, encoding):
    """A function that writes text to the file, encoded if the file takes only bytes."""

    def write(text):
        nonlocal binary
        if binary is None:
            try:
                file.write(text)
                binary = False
                return
            except TypeError:
                binary = True
        file.write(text.encode(encoding) if binary else text)

    binary = None
    return write


def fromstring(string, dtype=float, count=-1, *, sep, like=None):
    """The numbers in a text, separated by `sep`; spaces around it are ignored."""
    if sep == "":
        raise ValueError("The binary mode of fromstring is removed, use frombuffer instead")
    dtype = _a.dtype(dtype)
    number = _reader(dtype)
    string = _text(string)
    words = string.split() if not sep.strip() else string.split(sep.strip())
    if words and not words[-1].strip():  # the text may end with a separator
        words.pop()
    if count >= 0:
        words = words[:count]
    numbers = []
    for word in words:
        try:
            numbers.append(number(word.strip()))
        except ValueError:
            raise ValueError("string or file could not be read to its end due to unmatched data") from None
    if len(numbers) < count:
        raise ValueError(f"string is smaller than requested size: expected {count} numbers, got {len(numbers)}")
    return _a.array(numbers, dtype)
