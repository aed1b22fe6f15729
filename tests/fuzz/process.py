"""The host's half of the fuzzer: rounds of batches in VMs of this process, and after each round a look at all that no
task may change.

`python -m tests.fuzz.process FOLDER SEED FIRST SECONDS ROUNDS [fitting]` is started by tests/fuzz/__main__.py, which
tells what the process died of. It writes a line of JSON for each round. Exit status: 0 the time is over, 3 a task had
an effect (told on the last line), 4 a VM was lost: the next rounds want a new process.
"""

import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import sys
import termios
import time
import warnings
from pathlib import Path

import vmhost
from tests import networks
from tests.fuzz.exclusions import SKIPPED
from tests.fuzz.guest_notes import notes
from vmhost.bytecode.compiler import compile_sources
from vmhost.compiler import compile_folder
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy
from vmhost.stdlib.policy import POLICY

HERE = Path(__file__).parent
BATCHES, STEPS, FITTING_STEPS, THREADS = 6, 400, 4000, 2
BATCH_S, GRACE_S, FITTING_GRACE_S = 4.0, 2.0, 20.0
MEMORY_BYTES = 256 << 20
GROWTH_BYTES = (
    768 << 20
)  # beyond what the process had after its first round: caches, arenas that are kept, one wedged VM's heap
SETTLE_S = 5.0
SQLITE_FLAGS = f"0{os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | 0o100000:o}"  # and O_LARGEFILE, which os has as 0
DATABASES_MOST = 8
SECRET = "vmhost-fuzz-secret-7Qx"


PURE = """
         abc argparse asyncio base64 bisect calendar codecs collections collections.abc colorsys concurrent.futures
    configparser contextlib contextvars copy copyreg     csv dataclasses datetime decimal difflib email.message
    email.parser enum fnmatch fractions functools glob gzip hashlib heapq hmac html html.parser http.client
    importlib.resources inspect io ipaddress json keyword linecache locale logging lzma mimetypes numbers operator
    os pathlib pickle pkgutil posixpath pprint     queue quopri random re reprlib sched secrets select selectors
    shelve shlex shutil signal socket sqlite3 ssl stat statistics string string.templatelib     struct subprocess
    tempfile textwrap threading time timeit tokenize traceback types typing unicodedata urllib.parse urllib.request
    uuid warnings wave weakref     xml.etree.ElementTree xml.dom.minidom xml.sax zipfile zlib zoneinfo bz2
    compression.zstd     vmhost.guest vmhost.guest.files vmhost.guest.folders vmhost.guest.texts
    vmhost.guest.assembler vmhost.guest.expressions vmhost.guest.deferred _vmhost     vmhost.engine.numpy
    vmhost.engine.numpy.linalg vmhost.engine.numpy.fft vmhost.engine.numpy.random vmhost.engine.numpy.lib.stride_tricks
    vmhost.engine.numpy.testing
"""


class Canaries:
    """Files, descriptors and settings of the host, and how they were."""

    def __init__(self, folder):
        self.folder = folder
        outside, inside, readable = (folder / name for name in ("outside", "inside", "readable"))
        for folder_ in (outside / "d", inside / "d", readable, folder / "notes"):
            folder_.mkdir(parents=True)
        for path in (outside / "secret", outside / "d" / "secret"):
            path.write_text(SECRET * 20)
        (readable / "r").write_text("may be read")
        (inside / "link").symlink_to(outside / "secret")
        (inside / "up").symlink_to(outside)
        os.environ["VMHOST_FUZZ_SECRET"] = SECRET
        self.held = [open(outside / "secret", "rb+", buffering=0), open(outside / "d" / "secret", "ab", buffering=0)]
        self.pipe, self.sockets = os.pipe(), socket.socketpair()
        os.write(self.pipe[1], SECRET.encode())
        self.sockets[0].send(SECRET.encode())
        self.held[0].seek(5)
        self.descriptors = (
            [one.fileno() for one in self.held] + list(self.pipe) + [one.fileno() for one in self.sockets]
        )
        self.before = None
        self.databases = set()

    def close(self):
        for one in (*self.held, *self.sockets):
            one.close()
        for number in self.pipe:
            os.close(number)

    def state(self):
        """Everything that must be the same after each round, by name."""
        files = {}
        for top in ("outside", "readable"):
            for path in sorted((self.folder / top).rglob("*")):
                status = path.lstat()
                files[str(path)] = (
                    status.st_mode,
                    status.st_mtime_ns,
                    status.st_uid,
                    path.read_bytes() if path.is_file() else None,
                )
        own = Path("/proc/self/status").read_text().splitlines()
        status = {line.partition(":")[0]: line for line in own}
        return {
            "files": files,
            "descriptors": self.descriptors_now(),
            "environment": dict(os.environb),
            "current folder": os.getcwd(),
            "pipe": self.peek(),
            "umask": status["Umask"],
            "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
            "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
            "timers": signal.getitimer(signal.ITIMER_REAL),
            "limits": [resource.getrlimit(number) for number in range(16)],
            "users": (os.getresuid(), os.getresgid(), os.getgroups()),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
            "affinity": os.sched_getaffinity(0),
            "name": Path("/proc/self/comm").read_text(),
            "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
            "host name": socket.gethostname(),
            "recursion": sys.getrecursionlimit(),
            "digits": sys.get_int_max_str_digits(),
            "switch": sys.getswitchinterval(),
            "warnings": len(warnings.filters),
            "zone": time.tzname,
            "modules": "main" in sys.modules,
        }

    def descriptors_now(self):
        """Those that stay: others of the process (the warden's, this listing's) come and go."""
        seen = []
        for _ in range(3):
            found = {}
            for number in map(int, os.listdir("/proc/self/fd")):
                try:
                    info = os.fstat(number)
                    position = (
                        Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()[:2]
                        if number in self.descriptors
                        else None
                    )
                    found[number] = (info.st_dev, info.st_ino, position)
                except OSError:
                    pass
            seen.append(found)
            time.sleep(0.01)
        return {number: about for number, about in seen[0].items() if all(one.get(number) == about for one in seen)}

    def peek(self):
        """The data waiting in the pipe and in the socket; it stays there."""
        waiting = fcntl.ioctl(self.pipe[0], termios.FIONREAD, bytes(4))
        return waiting, self.sockets[1].recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)

    def changed(self, lost):
        """Sentences on the changes. A lost VM keeps the descriptors that it had."""
        now = self.state()
        if self.before is None:
            while True:  # the last descriptors of the first host's VM go after its end was told
                time.sleep(0.3)
                self.before, now = now, self.state()
                if now["descriptors"] == self.before["descriptors"]:
                    return []
        changes = []
        for name, was in self.before.items():
            if name == "descriptors":
                gone = [number for number, about in was.items() if now[name].get(number) != about]
                more = [
                    number for number in now[name] if number not in was and not lost and not self.is_database(number)
                ]
                changes += [f"descriptor {number} was {was[number]} and is {now[name].get(number)}" for number in gone]
                changes += [f"descriptor {number} was left open: {descriptor_text(number)}" for number in more]
            elif now[name] != was:
                changes.append(f"{name}: was {was!r:.500}, is {now[name]!r:.500}")
        return changes

    def is_database(self, number):
        """A file of the granted folder that SQLite opened (exclusions.py: KEPT). At most DATABASES_MOST of them are
        let pass."""
        path, _, about = descriptor_text(number).partition(" ")
        if Path(path).parent == self.folder / "inside" and about.split()[-1:] == [SQLITE_FLAGS]:
            self.databases.add(number)
        return number in self.databases and len(self.databases) <= DATABASES_MOST


def descriptor_text(number):
    try:
        return (
            f"{os.readlink(f'/proc/self/fd/{number}')}"
            f" {' '.join(Path(f'/proc/self/fdinfo/{number}').read_text().split()[:4])}"
        )
    except FileNotFoundError:  # garbage of a VM's, closed since: the next look tells
        return "closed since"


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slow(folder):
    """The calls that have been under way for a second."""
    now = time.time()
    return [
        f"{lines[-1]} since {now - (folder / f'{thread}.notes').stat().st_mtime:.1f} s"
        for thread, lines in notes(folder).items()
        if lines and now - (folder / f"{thread}.notes").stat().st_mtime > 1
    ]


def good_bundle():
    return compile_sources(
        {"main": ("def run(value):\n    return value\n", "main.py", False)},
        entry="main:run",
        name="good",
        version="1.0.0",
    )


def fuzz_bundle(folder, fitting):
    """The guest's half as a task, with two models for the calls that fit: one of them for any number of images."""
    task = folder / "task"
    task.mkdir(exist_ok=True)
    models = {"fixed": networks.small(), "open": networks.images()} if fitting else {}
    for name in ("guest", "fitting"):
        shutil.copy(HERE / f"{name}.py", task / f"{'main' if name == 'guest' else name}.py")
    for name, model in models.items():
        (task / f"{name}.onnx").write_bytes(model)
    granted = {"read": ("inside", "readable", "notes"), "write": ("inside", "notes")}
    permissions = {kind: [str(folder / name) for name in names] for kind, names in granted.items()} | {"host": ["echo"]}
    (task / "task.yaml").write_text(
        f'name: fuzz\nversion: "1.0.0"\nentry: main:run\npython: "{sys.version_info.major}.{sys.version_info.minor}"\n'
        f"limits: {{memory: {MEMORY_BYTES >> 20} MiB, concurrency: 1, output: 4 KiB}}\n"
        f"models: {json.dumps({name: f'{name}.onnx' for name in models})}\n"
        f"permissions: {json.dumps(permissions)}\n"
    )
    return compile_folder(task).to_bytes()


def one_round(canaries, folder, seed, number, modules, fitting):
    """One round: a host, a task, some batches. Returns its counts, and errors."""
    counts = {
        "round": number,
        "steps": 0,
        "timeouts": 0,
        "lost": 0,
        "errors": 0,
        "functions": 0,
        "types": 0,
        "slow": [],
        "effects": [],
    }
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    inside, readable = str(folder / "inside"), str(folder / "readable")
    task_bundle = fuzz_bundle(folder, fitting)
    grace_s = FITTING_GRACE_S if fitting else GRACE_S
    functions = {"echo": lambda value: value}
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=grace_s, task=calm), functions=functions) as host:
        task, good = host.load(task_bundle), host.load(good_bundle())
        for batch in range(BATCHES):
            settings = {
                "seed": f"{seed}/{number}/{batch}",
                "steps": FITTING_STEPS if fitting else STEPS,
                "fitting": fitting,
                "fitting_s": BATCH_S / 2,
                "threads": THREADS,
                "modules": modules,
                "skipped": sorted(SKIPPED),
                "inside": inside,
                "outside": str(folder / "outside"),
                "readable": readable,
                "notes": str(folder / "notes"),
                "descriptors": canaries.descriptors,
                "secret": SECRET[::-1],
            }
            try:
                answer = task(settings, timeout_s=3 * BATCH_S if fitting else BATCH_S)
            except vmhost.TimeLimitError:
                counts["timeouts"] += 1
                counts["slow"] += slow(folder / "notes")
            except vmhost.VMLostError:
                counts["lost"] += 1
                counts["slow"] += slow(folder / "notes")
                if fitting:  # all that it calls is the engine's, and ends soon after a stop
                    counts["effects"].append(f"a stop did not end the call: {slow(folder / 'notes')}")
            except vmhost.VMHostError as error:
                counts["errors"] += 1
                counts["slow"] += [
                    f"{type(error).__name__} after {lines[-1]}" for lines in notes(folder / "notes").values() if lines
                ]
            else:
                counts["steps"] += answer["steps"]
                counts["functions"], counts["types"] = answer["functions"], answer["types"]
                counts["effects"] += [f"read what was not granted: {what}" for what in answer["leaks"]]
            if good(batch) != batch:
                counts["effects"].append("the next VM answers wrongly")
        counts["lost"] += len(host.close())
    end = time.monotonic() + SETTLE_S
    while (changed := canaries.changed(counts["lost"])) and time.monotonic() < end:
        time.sleep(0.1)  # a VM's last steps come after its end is reported
    counts["effects"] += changed
    return counts


def main(folder, seed, first, seconds, rounds, fitting):
    folder = Path(folder)
    modules = sorted({*POLICY, *PURE.split()})
    canaries = Canaries(folder)
    end, number, resident = time.monotonic() + seconds, first, None
    with vmhost.Host(allow_unsigned=True) as host:  # what the process keeps from its first host on
        host.load(good_bundle())(0)
    canaries.changed(0)
    while time.monotonic() < end and number - first < rounds:
        for note in (folder / "notes").iterdir():
            note.unlink()
        begun = time.monotonic()
        counts = one_round(canaries, folder, seed, number, modules, fitting)
        resident = resident or resident_bytes()
        if resident_bytes() > resident + GROWTH_BYTES:
            counts["effects"].append(
                f"memory: {resident_bytes() >> 20} MiB resident, {resident >> 20} after the first round"
            )
        print(
            json.dumps(
                {**counts, "seconds": round(time.monotonic() - begun, 1), "resident_mib": resident_bytes() >> 20}
            ),
            flush=True,
        )
        if counts["effects"]:
            return 3
        if counts["lost"]:
            return 4
        number += 1
    return 0


if __name__ == "__main__":
    status = main(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), "fitting" in sys.argv[6:]
    )
    sys.stdout.flush()
    os._exit(status)  # a VM that was lost would be waited for
