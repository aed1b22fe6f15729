"""Replaces the standard library's `_colorize`: no colours.

A VM's output goes to the host's logger, never to a terminal. CPython's module defines its themes as dataclasses, so
that every process that formats a traceback imports dataclasses, inspect, ast and dis.
"""

COLORIZE = False


class _NoColor:
    """Every attribute and key is the empty string; a theme's sections are objects of this class."""

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
