"""Functions that raise exceptions of the standard library and builtin ones, in a VM or here."""

import asyncio
import configparser
import csv
import decimal
import errno
import importlib
import ipaddress
import json
import queue
import re
import socket
import ssl
import statistics
import struct
import tomllib
import uuid
import xml.etree.ElementTree as ElementTree
import zlib


def of_json():
    json.loads('{"a": }')


def of_tomllib():
    tomllib.loads("x")


def of_a_pattern():
    re.compile("(")


def of_a_queue():
    queue.Queue().get(False)


def of_decimal():
    decimal.Decimal("x")


def of_configparser():
    configparser.ConfigParser().read_string("x")


def of_csv():
    list(csv.reader(["\0" * 200_000]))


def of_struct():
    struct.unpack("i", b"")


def of_statistics():
    statistics.mean([])


def of_xml():
    ElementTree.fromstring("<a>")


def of_zlib():
    zlib.decompress(b"x")


def of_an_address():
    ipaddress.IPv4Address("x")


def of_a_name():
    raise socket.gaierror(socket.EAI_NONAME, "no name")


def of_ssl():
    raise ssl.SSLError(ssl.SSL_ERROR_SSL, "bad")


def of_a_stream():
    raise asyncio.IncompleteReadError(b"half", 9)


def of_a_key():
    return {}[1, 2]


def of_an_assertion():
    assert not uuid, (1, [2])


def of_a_large_int():
    raise ValueError(1 << 3000)


def of_a_number_of_a_class():
    raise OSError(errno.ENOENT, "none", "/x")


def of_a_group():
    raise ExceptionGroup(
        "two", [ValueError(1), ExceptionGroup("in", [KeyError((1, 2)), json.JSONDecodeError("a", "b", 0)])]
    )


def of_syntax():
    raise SyntaxError("bad", ("f.py", 1, 2, "x = ", 1, 3))


def of_memory():
    raise MemoryError("by code")


def of_attributes():
    error = RuntimeError("x")
    error.code, error.parts = 5, [decimal.Decimal(1)]
    error.add_note("noted")
    raise error


def of_an_import():
    raise ImportError("no", name="n", path="p")


class Falsehood(Exception):
    def __bool__(self):
        return False

    def __len__(self):
        return 0


def of_a_false_one():
    raise Falsehood(1)


FUNCTIONS = [function for name, function in list(globals().items()) if name.startswith("of_")]


def with_what_cannot_cross():
    error = ValueError("x")
    error.number, error.thing = 3, object()
    raise error


def group_with(error):
    raise ExceptionGroup("g", [ValueError(1), error])


def unknown_in_a_group():
    class Unknown(Exception):
        pass

    group_with(Unknown())


def in_rows(number):
    if number:
        of_json()
    return number


def raise_false(number):
    raise Falsehood(number)


def bare(name):
    """Raise the exception "module:Class", made without arguments."""
    module, _, path = name.partition(":")
    found = getattr(importlib.import_module(module), path)
    base = found
    while base.__flags__ & 1 << 9:
        base = base.__base__
    raise base.__new__(found)
