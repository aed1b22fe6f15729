"""Links as QR codes, for a terminal and for a page. Needs segno, which the extra `operations` brings."""

_LEVEL = "m"  # 15 % of it may be unreadable
_BORDER = 2  # modules; terminals and pages have room around it


def code(text):
    """The code of a text; ImportError says what to install."""
    try:
        import segno
    except ModuleNotFoundError as error:
        raise ImportError("a QR code needs segno: pip install 'vmhost[operations]'", name="segno") from error
    return segno.make(text, error=_LEVEL, micro=False, boost_error=False)


def terminal(text):
    """Lines for a terminal, two rows of modules in each; dark modules are what is not drawn, so that it is right on a
    dark ground. Readers of phones take the inverse as well."""
    rows = [list(row) for row in code(text).matrix_iter(border=_BORDER)]
    if len(rows) % 2:
        rows.append([1] * len(rows[0]))
    shown = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
    return ["".join(shown[bool(high), bool(low)] for high, low in zip(*pair)) for pair in zip(rows[::2], rows[1::2])]


def svg(text):
    """An <svg> element, black on white whatever the page's colours are."""
    return code(text).svg_inline(border=4, scale=4, dark="#000", light="#fff")
