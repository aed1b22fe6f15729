"""A device image: its size, the memory of an idle host, and the time to the first answer, beside a plain Python that
runs the task's source.

Times are CPU times of whole processes, all threads included; a promised time is read from the best round, as other load
only adds to it. If no image can be made, the run is reported as invalid."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from compression import zstd
from pathlib import Path

from bench import contenders
from bench.functions import ROOT
from bench.measure import Figure, Result, interleaved
from vmhost.image import ImageError, folder

_TASK = ROOT / "tasks" / "digits"
_IDLE_S = 2.5  # an idle host evicts pages twice in this time
_PLAIN = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import main; main.setup();"
    " print(json.dumps(main.run(json.load(open(sys.argv[2])))))"
)


def _cpu_ms(command):
    """CPU time of a process from start to end, all threads included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_TASK)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _start(image, bundle, rounds):
    shown = _TASK / "image.json"
    figures = interleaved(
        {
            "vmrun run": lambda: _cpu_ms([image / "vmrun", "run", bundle, "--allow-unsigned", "--input", shown]),
            "python, the task's source": lambda: _cpu_ms([sys.executable, "-I", "-c", _PLAIN, _TASK, shown]),
        },
        rounds,
        "ms CPU",
        "less",
    )
    best = figures["vmrun run"].best
    return Result(
        "device: start to first result, task digits",
        figures,
        promises=((f"{best:.1f} ms of CPU in the best round (reach 60 ms)", best < 60),),
    )


def _resident_mb(image, served):
    with subprocess.Popen(
        [image / "vmrun", "serve", served, "--allow-unsigned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    ) as process:
        value = json.loads((_TASK / "image.json").read_text(encoding="utf-8"))
        process.stdin.write(json.dumps({"id": 1, "task": "digits", "input": value}) + "\n")
        process.stdout.readline()
        time.sleep(_IDLE_S)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
        process.stdin.close()
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _idle(image, bundle, folder_name, rounds):
    served = Path(folder_name, "served")
    served.mkdir()
    shutil.copy(bundle, served / "digits.vmb")
    figures = interleaved({"vmrun serve, one VM": lambda: _resident_mb(image, served)}, rounds, "MB", "less")
    held = figures["vmrun serve, one VM"].median
    return Result(
        "device: resident memory of an idle host", figures, promises=((f"{held:.1f} MB (reach 12 MB)", held < 12),)
    )


def _sizes(image):
    contents = {path.name: path.read_bytes() for path in image.iterdir()}
    packed = {name: len(zstd.compress(data, level=19)) / 1e6 for name, data in contents.items()}
    bare = len(contents["vmrun"]) / 1e6
    return Result(
        "device: size without the engine",
        {"image, zstd -19": Figure((sum(packed.values()),), "MB", "less")},
        promises=(
            (f"executable {bare:.2f} MB (reach 5.5 MB)", bare < 5.5),
            (f"executable compressed {packed['vmrun']:.2f} MB (reach 1.9 MB)", packed["vmrun"] < 1.9),
            (f"image compressed {sum(packed.values()):.2f} MB (reach 3 MB)", sum(packed.values()) < 3),
        ),
    )


def run(quick):
    with tempfile.TemporaryDirectory() as folder_name:
        image, bundle = Path(folder_name, "image"), contenders.bundle("digits")
        try:
            folder.make(image)
        except ImageError as error:
            return [Result("device", {"vmrun": Figure((0.0,), "", "less")}, promises=((f"invalid: {error}", False),))]
        return [
            _sizes(image),
            _start(image, bundle, 3 if quick else 30),
            _idle(image, bundle, folder_name, 1 if quick else 5),
        ]
