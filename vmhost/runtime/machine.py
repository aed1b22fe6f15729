"""Queries about the memory that this process may use: the machine's, or less where a control group (a container) limits
it."""

import functools
import os


def memory_bytes():
    """The memory that this process may use, in bytes."""
    try:
        machine = _kibibytes("MemTotal") << 10
    except OSError:  # no /proc
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(limit for limit, _ in _limits())])


def memory_used_percent():
    """The share of memory in use, in percent, of the machine or of a control group of this process, whichever is
    higher; 0 if there is no /proc."""
    try:
        total = _kibibytes("MemTotal")
        machine = 100 * (total - _kibibytes("MemAvailable")) / total
    except OSError:
        return 0.0
    return max([machine, *(100 * used / limit for limit, used in _limits() if limit > 0)])


def _kibibytes(name):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0])
    raise OSError(f"/proc/meminfo has no line {name}")


def _limits(process="/proc/self"):
    """(limit, bytes used) of each control group that this process is in, from its own to the outermost; groups without
    a limit are left out. Cached file contents do not count as used: the kernel drops them before it kills.

    https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html"""
    for folder, names in _groups(process):
        limits = [limit for name in names.limits if (limit := _number(f"{folder}/{name}")) is not None]
        used = _number(f"{folder}/{names.used}")
        if limits and used is not None:
            yield min(limits), max(0, used - _inactive(f"{folder}/memory.stat", names.inactive))


class _V1:
    limits = ("memory.limit_in_bytes",)
    used = "memory.usage_in_bytes"
    inactive = "total_inactive_file"


class _V2:
    limits = ("memory.max", "memory.high")
    used = "memory.current"
    inactive = "inactive_file"


def _groups(process):
    """(folder, _V1 or _V2) of the group of this process for memory, and of the groups around it."""
    try:
        with open(f"{process}/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = _V1 if controllers else _V2
        mount = _mounts(process).get(names)
        if mount is None:
            continue
        root, point = mount
        # A container sees its own group as the root of the mount; the path may be written as the machine sees it.
        inside = "" if root != "/" and not f"{path}/".startswith(f"{root}/") else path.removeprefix(root.rstrip("/"))
        parts = [part for part in inside.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield "/".join([point, *parts[:depth]]), names


@functools.cache
def _mounts(process):
    """{_V1 or _V2: (the group that is the mount's root, where it is mounted)}."""
    found = {}
    try:
        with open(f"{process}/mountinfo") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        fields, _, kind = line.partition(" - ")
        root, point = fields.split(" ")[3:5]
        kind, _, options = kind.split(" ", 2)
        if kind == "cgroup" and "memory" in options.split(","):
            found.setdefault(_V1, (root, point))
        elif kind == "cgroup2":
            found.setdefault(_V2, (root, point))
    return found


def _number(path):
    """The number in a file; None: none ("max", or version 1's "no limit"), or no such file."""
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < 1 << 62 else None


def _inactive(path, name):
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith(f"{name} ")), 0)
    except OSError:
        return 0
