"""Links as QR codes, for a terminal and for a page. Needs segno, from the extra `operations`."""

_LEVEL = "m"  # 15 % of it may be unreadable
_BORDER = 2  # modules; terminals and pages have margins of their own


def code(text):
    """The QR code for a text; ImportError says what to install."""
    try:
        import segno
    except ModuleNotFoundError as error:
        raise ImportError("a QR code needs segno: pip install 'vmhost[operations]'", name="segno") from error
    return segno.make(text, error=_LEVEL, micro=False, boost_error=False)


def terminal(text):
    """Lines for a terminal, each with two rows of modules. Dark modules are left blank, which is right on a dark
    background; phones read the inverse too."""
    rows = [list(row) for row in code(text).matrix_iter(border=_BORDER)]
    if len(rows) % 2:
        rows.append([1] * len(rows[0]))
    shown = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
    return ["".join(shown[bool(high), bool(low)] for high, low in zip(*pair)) for pair in zip(rows[::2], rows[1::2])]


def svg(text):
    """An <svg> element, black on white regardless of the page's colours."""
    return code(text).svg_inline(border=4, scale=4, dark="#000", light="#fff")
