"""What lets test modules be imported in a VM: answers of `test.support` to questions that need modules a VM does not have."""

import concurrent.futures
import sys
import types
import unittest

from gaps import Gap


def install():
    """To be called in a VM before the test module is imported. What depends on an absent module fails when it is used."""
    from test import support
    from test.support import import_helper

    import_with_gaps()
    support._has_huge_c_stack = lambda *_: False
    # a fresh import finds no frozen modules in a bundle anyway
    import_helper._imp = types.SimpleNamespace(_override_frozen_modules_for_tests=lambda _: None,
                                               _override_multi_interp_extensions_check=lambda _: 0)
    for name in ("InterpreterPoolExecutor", "ProcessPoolExecutor"):
        setattr(concurrent.futures, name, Gap(f"concurrent.futures.{name}", "a VM starts neither processes nor interpreters"))


def import_with_gaps():
    """What a test module asks for at its top and can't have is a gap, rather than the end of the test module."""
    from test.support import import_helper

    import_module = import_helper.import_module

    def import_module_or_gap(name, *args, **keywords):
        try:
            return import_module(name, *args, **keywords)
        except unittest.SkipTest as skipped:
            if sys._getframe(1).f_code.co_name != "<module>":
                raise
            return Gap(name, str(skipped))      # not the whole test module is skipped for it

    import_helper.import_module = import_module_or_gap
