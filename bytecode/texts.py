"""Texts that CPython would compile at run time, compiled ahead."""


def collect_texts(source, optimize=0):
    return {}
