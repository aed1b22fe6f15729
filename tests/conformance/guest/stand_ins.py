"""Lets test modules be imported in a VM: answers of `test.support` that would need modules a VM does not
have."""

import builtins
import concurrent.futures
import gc
import inspect
import logging
import os
import sys
import types
import unittest

from gaps import Gap


class Place(str):
    """A file in the original folder. Equal to the name that the bundle has for it too, as code in it and warnings have
    that."""

    def __new__(cls, home, name):
        self = super().__new__(cls, os.path.join(home, name.partition("/test/")[2]))
        self._name = name
        return self

    def __eq__(self, other):
        return str.__eq__(self, other) is True or self._name == other

    def __ne__(self, other):
        return not self == other

    def __format__(self, specification):
        return format(self._name, specification)  # texts that tests make with it are what they expect of tracebacks

    __hash__ = str.__hash__


def place(home):
    """Gives `place_of(__file__)`, which test modules have in place of `__file__`: the file in the original folder
    `home`."""
    builtins.place_of = lambda name: Place(home, name)


def install():
    """To be called in a VM before the test module is imported. Functions that need an absent module fail when they are
    used."""
    from test import support
    from test.support import import_helper, strace_helper

    import_with_gaps()
    logging.root.handlers.clear()  # as a program has it that configures logging itself
    logging.root.setLevel(logging.WARNING)
    strace_helper._can_strace = lambda: False
    support.skip_if_unlimited_stack_size = support.no_tracing = lambda test: test  # a VM traces nothing
    if not hasattr(gc, "set_debug"):
        gc.set_debug = _set_debug
    support._has_huge_c_stack = lambda *_: False
    # a fresh import finds no frozen modules in a bundle anyway
    import_helper._imp = types.SimpleNamespace(
        _override_frozen_modules_for_tests=lambda _: None, _override_multi_interp_extensions_check=lambda _: 0
    )
    for name in ("InterpreterPoolExecutor", "ProcessPoolExecutor"):
        setattr(
            concurrent.futures,
            name,
            Gap(f"concurrent.futures.{name}", "a VM starts neither processes nor interpreters"),
        )


def _set_debug(flags):
    if flags:
        raise NotImplementedError("gc.set_debug: a VM does not have it")  # none is what a VM has anyway


def import_with_gaps():
    """Missing imports at the top of a test module become gaps, so that the module itself can be imported."""
    from test.support import import_helper

    import_module = import_helper.import_module

    def import_module_or_gap(name, *args, **keywords):
        try:
            return import_module(name, *args, **keywords)
        except unittest.SkipTest as skipped:
            if sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED:  # asked for in a function, by one test
                raise
            return Gap(name, str(skipped))  # not the whole test module is skipped for it

    import_helper.import_module = import_module_or_gap
