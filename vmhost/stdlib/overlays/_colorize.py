"""In place of the standard library's `_colorize`: no colours.

What a VM prints goes to the host's logger, never to a terminal. CPython's own module makes its themes of dataclasses,
which costs every process that formats a traceback the import of dataclasses, inspect, ast and dis.
"""

COLORIZE = False


class _NoColor:
    """Every attribute and every key is the empty string; of the theme itself, a section like this one."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ""

    def __getitem__(self, name):
        return ""

    def items(self):
        return ()


class _Theme:
    argparse = syntax = traceback = unittest = _NoColor()


NoColors = _NoColor()
theme_no_color = default_theme = _Theme()


def can_colorize(*, file=None):
    return False


def get_colors(colorize=False, *, file=None):
    return NoColors


def get_theme(*, tty_file=None, force_color=False, force_no_color=False):
    return theme_no_color


def decolor(text):
    import re

    return re.sub("\x1b\\[[0-9;]*m", "", text)
