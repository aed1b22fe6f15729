"""The files after power cuts: `write_log.c` logs every write and sync, `states` replays them up to a moment.

What was synced is there. Of what was written since, a part is there: none of it, all of it, or some writes and parts of
writes, in sectors of 512 bytes, in any order. Names of files are durable at once, as on a journaling file system.
"""

import faulthandler
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

_RECORD = struct.Struct("<BIIQ")
_SECTOR = 512
_ROOT = Path(__file__).parents[2]
CHILD_S = 300  # a process of a workload that takes longer hangs


def build(folder):
    """The library to preload."""
    library = folder / "write_log.so"
    source = Path(__file__).with_name("write_log.c")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(library), "-ldl"], check=True)
    return library


def environment(library, folder, log, **faults):
    """Of a process whose writes in `folder` are logged. `faults`: variables of write_log.c, such as WRITE_LOG_LAST."""
    names = dict(LD_PRELOAD=str(library), WRITE_LOG=str(log), WRITE_LOG_FOLDER=f"{folder}/", PYTHONPATH=str(_ROOT))
    return os.environ | names | {name: str(number) for name, number in faults.items()}


def end_if_hung(after_s=CHILD_S):
    """For the process of a workload: ends it then, with the stacks of its threads on stderr and status 1. Each call
    begins anew."""
    faulthandler.dump_traceback_later(after_s, exit=True)


def logged(library, folder, log, *command):
    """Runs a Python command whose writes in `folder` are logged; raises where it fails."""
    command = [sys.executable, *map(str, command)]
    subprocess.run(command, check=True, env=environment(library, folder, log), cwd=_ROOT)


def records(log):
    data, here = log.read_bytes(), 0
    while here < len(data):
        kind, name_length, length, offset = _RECORD.unpack_from(data, here)
        here += _RECORD.size
        name = data[here : here + name_length].decode()
        here += name_length
        yield chr(kind), os.path.basename(name), offset, data[here : here + length]
        here += length


def _apply(content, kind, offset, data):
    if kind == "t":
        del content[offset:]
        content.extend(bytes(max(0, offset - len(content))))
    else:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


def _left(dice, durable, pending):
    """The contents of one file after a cut."""
    content = bytearray(durable)
    way = dice.random()
    for kind, offset, data in pending:
        if way < 0.25 or (way > 0.5 and dice.random() < 0.5):
            continue
        if way > 0.75 and kind == "w" and len(data) > _SECTOR:
            start = dice.randrange(len(data) // _SECTOR) * _SECTOR
            end = start + dice.randrange(1, len(data) // _SECTOR + 1) * _SECTOR
            offset, data = offset + start, data[start:end]
        _apply(content, kind, offset, data)
    return bytes(content)


def states(log, seed, count, always=".promises"):
    """At `count` random moments: {file: bytes}. Files that end in `always` are whole: what was said was said."""
    dice = random.Random(seed)
    steps = list(records(log))
    moments = sorted(dice.choices(range(1, len(steps) + 1), k=count))
    durable, pending, here = {}, {}, 0
    for moment in moments:
        for kind, name, offset, data in steps[here:moment]:
            if name.endswith("-shm"):
                continue
            content, waiting = durable.setdefault(name, bytearray()), pending.setdefault(name, [])
            if kind == "u":
                del durable[name], pending[name]
            elif kind == "r":
                new = os.path.basename(data.decode())
                durable[new], pending[new] = durable.pop(name), pending.pop(name)
            elif kind == "s" or name.endswith(always):
                if kind != "s":
                    waiting.append((kind, offset, data))
                for write in waiting:
                    _apply(content, *write)
                waiting.clear()
            else:
                waiting.append((kind, offset, data))
        here = moment
        yield {name: _left(dice, content, pending[name]) for name, content in durable.items()}
