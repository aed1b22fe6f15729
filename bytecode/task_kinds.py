"""Kinds of a task's fields: one definition for task.yaml, manifests and a host's limits."""

import re

from .fields import END_OF_TIME_S, GRANTS, MAX_GRANT_CHARS, MAX_PERMISSIONS
from .kinds import Items, Size, Text, Time, Whole

TASK_NAME = Text(
    "a name of lower-case letters, digits, '-' and '_' that begins with a letter, such as digits",
    re.compile(r"[a-z][a-z0-9_-]{0,63}"),
)
VERSION = Text("a version such as 1.2.0", re.compile(r"[0-9]+(\.[0-9]+){0,3}([-+.][0-9A-Za-z.+-]{1,40})?"), 64)
# CPython's own version string, also of a standard library: "3.15.0a1+"
EXACT_PYTHON = Text("a Python version such as 3.14.8", re.compile(r"[0-9][0-9A-Za-z.+_-]{0,63}"))
PYTHON = Text("a Python version such as 3.14", re.compile(r"3\.[1-9][0-9]"))
ENTRY = Text("`module:function`", re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"), 255)
ARCHITECTURE = Text("an architecture such as x86_64", re.compile(r"[A-Za-z0-9_]{1,64}"))
MODELS = Items(Text("the name of a model, such as digits", re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"), 64), max_items=1024)
PRIORITY = Whole(-100, 100)
_TIME = Time(lt=END_OF_TIME_S, words="a time above 0 and below 1e9 s")
# By their names in manifests.
LIMITS = {
    "memory_bytes": Size(4 << 20, 1 << 48, "4 MiB to 256 TiB"),  # a bare VM takes 1.7 MB
    "wall_time_s": _TIME,
    "cpu_time_s": _TIME,
    "stack_bytes": Size(96 << 10, 256 << 20, "96 KiB to 256 MiB"),  # less: errors other than RecursionError
    "concurrency": Whole(1, 1024),
    "descriptors": Whole(1, 1 << 20),
    "output_bytes": Size(1 << 10, 1 << 40, "1 KiB to 1 TiB"),
}
PERMISSIONS = {
    name: Items(Text(words, pattern, MAX_GRANT_CHARS), max_items=MAX_PERMISSIONS)
    for name, (pattern, words) in GRANTS.items()
}
