"""Public functions of the standard library, submitted: plain Python's result, or a refusal that says why."""

import base64
import bisect
import calendar
import cmath
import collections
import copy
import csv
import datetime
import difflib
import fnmatch
import fractions
import functools
import glob
import heapq
import html
import importlib
import io
import ipaddress
import json
import locale
import math
import mimetypes
import operator
import os
import posixpath
import re
import shlex
import shutil
import statistics
import string
import struct
import sys
import textwrap
import types
import unicodedata
import urllib.parse
import uuid
import warnings
import zlib

import pytest

import vmhost
from tests.batches import each
from vmhost.bytecode.offered import REFUSED, offered_modules

HERE = os.path.abspath(__file__)
CALLS = [
    (os.path.exists, "/"),
    (os.path.isfile, HERE),
    (os.path.getsize, HERE),
    (os.path.commonprefix, ["/a/b", "/a/c"]),
    (os.path.commonpath, ["/a/b", "/a/c"]),
    (os.path.join, "a", "b"),
    (os.path.splitext, "a.b"),
    (os.path.realpath, "/"),
    (posixpath.normpath, "/a/../b"),
    (os.listdir, os.path.dirname(HERE)),
    (os.fspath, "a"),
    (base64.b64encode, b"abc"),
    (bisect.bisect, [1, 2, 3], 2),
    (calendar.isleap, 2024),
    (cmath.sqrt, -1),
    (collections.Counter, "aab"),
    (copy.deepcopy, [[1]]),
    (csv.list_dialects,),
    (datetime.date, 2024, 2, 29),
    (datetime.timedelta, 1),
    (datetime.date.fromisoformat, "2024-02-29"),
    (difflib.get_close_matches, "appel", ["ape", "apple"]),
    (fnmatch.filter, ["a.py", "b"], "*.py"),
    (fractions.Fraction, 1, 3),
    (glob.glob, os.path.dirname(HERE) + "/test_executor*.py"),
    (heapq.nsmallest, 2, [3, 1, 2]),
    (html.escape, "<a>"),
    (io.text_encoding, None),
    (ipaddress.v4_int_to_packed, 1),
    (json.dumps, {"a": [1, None]}),
    (json.loads, "[1, 2]"),
    (locale.localeconv,),
    (math.hypot, 3, 4),
    (math.comb, 5, 2),
    (mimetypes.guess_type, "a.html"),
    (operator.add, 1, 2),
    (re.sub, "a", "b", "aca"),
    (re.escape, "a.b"),
    (shlex.split, "a 'b c'"),
    (shutil.which, "sh"),
    (statistics.median, [1, 3, 2]),
    (string.capwords, "a b"),
    (struct.pack, "<i", 5),
    (str.upper, "a"),
    (textwrap.wrap, "aa bb cc", 5),
    (unicodedata.name, "a"),
    (urllib.parse.quote, "a b"),
    (urllib.parse.urlencode, {"a": 1}),
    (uuid.UUID, "12345678123456781234567812345678"),
    (zlib.crc32, b"abc"),
    (sorted, [3, 1]),
    (pow, 2, 10),
    (divmod, 7, 2),
    (int, "1x"),
    (math.sqrt, -1),
    (json.loads, "{"),
]


def outcome_of(call):
    try:
        return call()
    except Exception as error:
        return type(error), error.args


@each("call", CALLS, ids=lambda call: call[0].__qualname__)
def test_a_function_of_the_library_gives_what_plain_python_gives(call):
    function, *args = call
    with vmhost.VMExecutor(1) as pool:  # its own, in which no other module is imported
        result = outcome_of(pool.submit(function, *args).result)
    expected = outcome_of(functools.partial(function, *args))
    assert result == expected and type(result) is type(expected)


def functions_of(module):
    """(name, value) of the public callables that the module defines, and of all functions that it offers."""
    package = module.__name__.partition(".")[0]
    for name, value in list(vars(module).items()):
        if not name.startswith("_") and callable(value):
            own = str(getattr(value, "__module__", None)).partition(".")[0] == package
            if own or isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
                yield name, value


def test_every_public_function_is_found_in_a_vm_or_refused():
    """Called with an argument that none of them has: what counts is that the call begins, in a VM that has imported
    nothing."""
    wrong, count = [], 0
    names = [name for name in offered_modules() if not name.startswith(("vmhost", "_")) and "._" not in name]
    for name in sorted(set(names) - REFUSED.keys()):
        try:
            with warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(name)
        except ImportError:
            continue  # of a system that this is not
        with vmhost.VMExecutor(1) as pool:
            for path, function in functions_of(module):
                count += 1
                try:
                    future = pool.submit(function, there_is_no_such_argument=1)
                except vmhost.CrossingError:
                    continue
                error = future.exception(60)
                if future.outcome() in ("LOAD_ERROR", "VM_LOST"):
                    wrong.append(f"{name}.{path}: {error}")
    assert not wrong
    assert count > 4000


@pytest.mark.parametrize(
    "function, message",
    [
        (os.fork, "a VM does not have os.fork: a VM starts no processes"),
        (os.splice, "a VM does not have os.splice: it is none of the names that VMs are given"),
        (os.fwalk, "a VM does not have os.fwalk: a VM opens no folders by descriptor; use os.walk"),
        (sys.settrace, "a VM does not have sys.settrace"),
    ],
)
def test_what_vms_remove_is_refused_at_submit(function, message):
    with vmhost.VMExecutor(1) as pool, pytest.raises(vmhost.CrossingError, match=message):
        pool.submit(function, 1)
