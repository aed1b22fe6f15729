"""Training over several processes of one machine: each has a shard of the tables' keys and a part of each batch, and
all make each step together. docs/training.md shows a script."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.spawn import get_preparation_data, prepare

import numpy

from vmhost.engine import embedding
from vmhost.engine.embedding import checkpoints, save_folders
from vmhost.training.errors import ShardError
from vmhost.training.exchange import BOX, Exchange, OtherCallError, PeerLostError, own_part

SHARDS_MAX = 64
_SAVE = re.compile(r"sharded-(\d{6,})\.json")


class Shard(embedding.Shards):
    """This process's place in the run: `rank`, `count`, and the members of Shards (`table`, `averaged`, `of_first`,
    `wait`)."""

    @property
    def functions(self):
        """Host functions for a task that is trained in shards, with one VM in each process: its permissions name
        `shard` and `exchange`, and it makes `embedding.Shards.of(host)`."""
        return {
            "shard": lambda _=None: {"rank": self.rank, "count": self.count},
            "exchange": lambda asked: self.exchange(*asked),
        }

    def save(self, tables, folder, *, incremental=False, step=None):
        """Saves this shard's part of the tables (ShardedTables, or their EmbeddingVariables) in a folder of its own
        below `folder`; all shards must call it. The save counts once all have written theirs. Returns its path."""
        tables = _own(tables)
        folder = save_folders.absolute(folder)
        path = embedding.save(tables, part(folder, self.rank, self.count), incremental=incremental, step=step)
        self.wait("saves")
        number = max((number for number, _ in _saves(folder)), default=0) + 1
        self.wait("names its save")
        save_path = os.path.join(folder, f"sharded-{number:06}.json")
        names = self.exchange("saves", [[_text(os.path.basename(path))]] * self.count)
        if self.rank == 0:
            manifest = {"count": self.count, "saves": [bytes(one[0]).decode() for one in names]}
            unfinished = save_folders.unfinished(folder, os.path.basename(save_path))
            save_folders.write(unfinished, json.dumps(manifest).encode())
            os.rename(unfinished, save_path)
            save_folders.flush(folder)
        self.wait("has saved")
        return save_path

    def restore(self, tables, folder):
        """Restores the last save of all shards into this shard's tables, which must be empty; returns the global step.
        The save may be from another number of shards. CheckpointError."""
        return restore(tables, folder, self.rank, self.count)


def alone():
    """The shard of a process that trains alone."""
    return Shard(0, 1, lambda what, parts: [own_part(parts[0])])


def restore(tables, folder, rank=0, count=1):
    """Reads the last save of shards into empty tables: the keys of shard `rank` of `count`, or all of them."""
    tables = _own(tables)
    folder = save_folders.absolute(folder)
    saves = _saves(folder)
    if not saves:
        raise embedding.CheckpointError(f"{folder}: there is no save of shards")
    path = os.path.join(folder, saves[-1][1])
    try:
        with open(path, "rb") as file:
            manifest = json.loads(file.read())
        names = [str(one) for one in manifest["saves"]]
        if len(names) != manifest["count"]:
            raise ValueError(f"{len(names)} saves of {manifest['count']} shards")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise embedding.CheckpointError(f"{path}: cannot be read: {error}") from error
    if len(names) == count:
        return embedding.restore(tables, part(folder, rank, count), upto=names[rank])
    steps = [
        checkpoints.restore_some(tables, part(folder, number, len(names)), name, lambda keys: keys % count == rank)
        for number, name in enumerate(names)
    ]
    return max(steps)


def _own(tables):
    tables = tables.values() if isinstance(tables, dict) else tables
    return [getattr(one, "own", one) for one in tables]


def part(folder, rank, count):
    """The folder of a shard's own files."""
    return os.path.join(folder, f"shard-{rank}-of-{count}")


def parts(folder):
    """Names of the existing folders of shards."""
    try:
        return sorted(name for name in os.listdir(folder) if re.fullmatch(r"shard-\d+-of-\d+", name))
    except FileNotFoundError:
        return []


def _saves(folder):
    """(number, name) of each save, in order."""
    try:
        found = [(int(match[1]), name) for name in os.listdir(folder) if (match := _SAVE.fullmatch(name))]
    except FileNotFoundError:
        return []
    return sorted(found)


def _text(text):
    return numpy.frombuffer(text.encode(), "uint8")


# ---- processes
def run(function, count, *arguments):
    """Calls `function(shard, *arguments)` in `count` processes at once; returns their results, in order.

    function: of an importable module, or of the main script behind `if __name__ == "__main__":`. Arguments and results
    are     pickled.

    If a shard returns while others still need it, is killed or raises, all end: ShardError names the first. Nothing is
    left running, even if this process is killed."""
    if type(count) is not int or not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"count: expected 1 to {SHARDS_MAX} shards, got {count!r}")
    pairs = {(a, b): socket.socketpair() for a in range(count) for b in range(a + 1, count)}
    memory = os.memfd_create("vmhost-shards")
    processes, controls = [], []
    try:
        os.ftruncate(memory, BOX * count * count)
        for rank in range(count):
            peers = {b if a == rank else a: ends[a != rank] for (a, b), ends in pairs.items() if rank in (a, b)}
            control, its_control = Pipe()
            controls.append(control)
            with its_control:
                processes.append(_started(rank, count, memory, peers, its_control))
            begins = get_preparation_data(f"shard {rank}")
            control.send({key: one for key, one in begins.items() if key != "authkey"})
            control.send((function, arguments))
        for ends in pairs.values():
            for one in ends:
                one.close()
        return _results(processes, controls)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for one in (*controls, *(end for ends in pairs.values() for end in ends)):
            one.close()
        os.close(memory)


def _started(rank, count, memory, peers, control):
    """Starts a process that waits for its function. It inherits only these descriptors."""
    arguments = rank, count, memory, {peer: end.fileno() for peer, end in peers.items()}, control.fileno()
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import child; child{arguments!r}"
    kept = (memory, control.fileno(), *arguments[3].values())
    return subprocess.Popen([sys.executable, "-c", code], pass_fds=kept, stdin=subprocess.DEVNULL)


def child(rank, count, memory, peers, control):
    """The main function of such a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all shards
    control = Connection(control)
    try:
        prepare(control.recv())
        function, arguments = control.recv()
        threading.Thread(target=_ends_with, args=(control,), daemon=True).start()
        ends = {peer: socket.socket(fileno=end) for peer, end in peers.items()}
        shard = Shard(rank, count, Exchange(rank, count, memory, ends))
        report = "result", function(shard, *arguments)
    except PeerLostError as error:
        report = "lost", error.rank
    except OtherCallError as error:
        report = "error", str(error)
    except BaseException:
        report = "error", traceback.format_exc().rstrip()
    try:
        control.send(report)
    except Exception:  # the result cannot be pickled
        control.send(("error", traceback.format_exc().rstrip()))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads of the function


def _ends_with(control):
    """Ends this process when its parent has ended."""
    try:
        control.recv()
    except EOFError, OSError:
        os._exit(1)


def _results(processes, controls):
    """The results of all processes; ShardError for the first that has none."""
    messages = [None] * len(processes)
    waiting = {report: rank for rank, report in enumerate(controls)}
    while waiting:
        for report in wait(list(waiting)):
            rank = waiting.pop(report)
            messages[rank] = _message_of(processes[rank], report)
            if messages[rank][0] != "result":
                raise ShardError(_failure_message(rank, processes, controls, messages))
    return [result for _, result in messages]


def _message_of(process, control):
    try:
        return control.recv()
    except EOFError, OSError:
        return "ended", process.wait()


def _failure_message(rank, processes, controls, messages):
    """The message about the shard that failed first; others only lost their connection to it."""
    kind, value = messages[rank]
    seen = set()
    while kind == "lost" and rank not in seen:
        seen.add(rank)
        waited_by, rank = rank, value
        if messages[rank] is None:
            messages[rank] = _message_of(processes[rank], controls[rank])
        kind, value = messages[rank]
    where = f"shard {rank} of {len(processes)}"
    if kind == "error":
        return f"{where}: {value}"
    if kind == "result":
        return (
            f"{where} returned while shard {waited_by} waits for it: all shards make the same calls in the same order"
        )
    if value is not None and value < 0:
        return f"{where} was killed by {signal.Signals(-value).name}"
    return f"{where} ended with exit code {value}"
