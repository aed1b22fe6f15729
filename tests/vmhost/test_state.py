"""The state folder when things go wrong: damage, a full disk, two processes, kill -9, Ctrl-C anywhere. Hosts start,
errors are typed, nothing is left behind."""

import logging
import math
import os
import resource
import shutil
import struct
import subprocess
import sys

import msgpack
import pytest

import vmhost
from tests.hosts import PROLOGUE, ROOT, bundle, in_a_process
from vmhost.runtime.state import StateFolder

KEY = ["echo", "1.0.0", "digest"]
SAVED = {"reason": "it wedged", "trips": 1, "open_s": 1.0, "until": 2e9}
SLOT = struct.Struct("@iiiQ96s96s")  # vmh_crash_slot
ECHO = "def run(value):\n    return value\n"


def packed(breakers=(), crashes=(), **others):
    return msgpack.packb({"format": 1, "breakers": breakers, "crashes": crashes} | others)


def saved(**others):
    return packed([[KEY, SAVED | others]])


def test_what_is_kept_is_read_again(tmp_path):
    (tmp_path / "breakers.msgpack").write_bytes(packed([[KEY, SAVED]], [[["echo", "2.0.0"], "SIGSEGV"]]))
    folder = StateFolder(tmp_path)
    assert folder.breaker(tuple(KEY)) == SAVED and folder.take_crash("echo", "2.0.0") == "SIGSEGV"
    folder.close()


@pytest.mark.parametrize(
    "content",
    [
        packed([[KEY, None]]),
        packed([[KEY, {"reason": "x"}]]),
        packed([[KEY]]),
        packed([["echo", SAVED]]),
        packed([[[1, 2, 3], SAVED]]),
        packed([[[[], "1", "2"], SAVED]]),
        packed(crashes=[[["echo", "1.0.0"], 7]]),
        packed(crashes=7),
        saved(until="soon"),
        saved(until=math.nan),
        saved(open_s=math.inf),
        saved(open_s=-1),
        saved(trips=None),
        saved(trips=-3),
        saved(reason=b"x"),
        packed(format=2),
        b"\x81" * 5000,
        msgpack.packb([]),
        b"\xc7\x0c\xff" + b"\xff" * 12,
        saved() + b"more",
        "a folder",
        "a full folder",
        "a pipe",
    ],
)
def test_damage_is_put_aside_and_told_once(tmp_path, content, caplog):
    file = tmp_path / "breakers.msgpack"
    if content == "a pipe":
        os.mkfifo(file)
    elif isinstance(content, str):
        file.mkdir()
        if "full" in content:
            (file / "somebody's own").touch()
    else:
        file.write_bytes(content)
    with vmhost.Host(allow_unsigned=True, state=tmp_path) as host:
        assert host.load(bundle(ECHO, "echo"))(1) == 1
    with vmhost.Host(state=tmp_path):
        pass
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 1 and str(file) in records[0].getMessage(), caplog.text
    assert (tmp_path / "breakers.damaged").exists()
    assert "full" not in str(content) or (tmp_path / "breakers.damaged" / "somebody's own").exists()


def test_a_second_damaged_file_takes_the_place_of_the_first(tmp_path):
    for content in (b"\xc1", b"\xc1\xc1"):
        (tmp_path / "breakers.msgpack").write_bytes(content)
        StateFolder(tmp_path).close()
        assert (tmp_path / "breakers.damaged").read_bytes() == content


def test_an_empty_folder_is_not_in_a_damaged_files_way(tmp_path):
    (tmp_path / "breakers.damaged").mkdir()
    (tmp_path / "breakers.msgpack").write_bytes(b"\xc1")
    StateFolder(tmp_path).close()
    assert (tmp_path / "breakers.damaged").read_bytes() == b"\xc1"


def test_what_cannot_be_put_aside_is_one_typed_error_and_the_folder_is_free(tmp_path):
    (tmp_path / "breakers.msgpack").write_bytes(b"\xc1")
    (tmp_path / "breakers.damaged" / "in the way").mkdir(parents=True)
    for _ in range(2):  # not "already in use", the second time
        with pytest.raises(vmhost.ConfigurationError, match="breakers.damaged"):
            vmhost.Host(state=tmp_path)
    shutil.rmtree(tmp_path / "breakers.damaged")
    vmhost.Host(state=tmp_path).close()


def test_a_crash_map_with_wrong_contents_is_told_and_no_more(tmp_path):
    slot = SLOT.pack(1, 4711, 99, 3, b"echo", b"1.0.0") + SLOT.pack(1, 11, -5, 3, b"\xff" * 96, b"1.0.0")
    (tmp_path / "crash.map").write_bytes(struct.pack("@8siI", b"VMHCRSH1", -1, 0) + slot + bytes(1022 * SLOT.size))
    done = in_a_process(
        """
        import logging
        logging.basicConfig()
        for _ in range(2):
            with vmhost.Host(state=sys.argv[1]) as host:
                print([(crash.phase, crash.signal) for crash in host.crashes])
    """,
        tmp_path,
    )
    assert done.returncode == 0 and "there is no signal 4711" in done.stderr, done.stderr
    assert done.stdout.splitlines() == ["[('idle', 'SIGSEGV')]", "[]"]


def test_a_crash_map_that_is_no_file_is_done_without(tmp_path):
    os.mkfifo(tmp_path / "crash.map")
    done = in_a_process(
        """
        import logging
        logging.basicConfig()
        with vmhost.Host(allow_unsigned=True, state=sys.argv[1]) as host:
            print(host.crashes, host.load(bundle("def run(value): return value"))(1))
    """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "() 1\n") and "crashes will not be traced" in done.stderr, done.stderr


# -- a full disk ------------------------------------------------------------------------------------------------------

FULL = """
    import logging
    logging.basicConfig()
    path = sys.argv[1]
    if sys.argv[2] == "full":
        with open(os.path.join(path, "filler"), "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
    with vmhost.Host(allow_unsigned=True, state=path) as host:
        tasks = [host.load(bundle("def run(value): return value", f"task{number}")) for number in range(8)]
        print(sum(task(1) for task in tasks))
        for task in tasks:
            host._service._current[task.name].breaker.trip("a test")
    print(sorted(os.listdir(path)))
"""


@pytest.mark.parametrize("how", ["tiny", "full"])
def test_a_full_disk_costs_traces_and_memory_of_breakers_and_nothing_else(tmp_path, how):
    """Breadcrumbs used to be mapped: a VM that took a slot on a page without a block got SIGBUS."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size=32k none {tmp_path}"
    if subprocess.run([*namespace, "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("this user may mount nothing, not even in a namespace of its own")
    script = PROLOGUE + "\n" + "\n".join(line.removeprefix("    ") for line in FULL.splitlines())
    done = subprocess.run(
        [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", script, tmp_path, how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and "crashes will not be traced: No space left on device" in done.stderr, (
        done.returncode,
        done.stderr,
    )
    left = {"tiny": ["breakers.msgpack", "crash.map", "lock"], "full": ["crash.map", "filler", "lock"]}[how]
    assert done.stdout.splitlines() == ["8", str(left)]
    assert ("cannot be saved" in done.stderr) == (how == "full")


def test_a_breaker_that_cannot_be_saved_leaves_what_was_saved_before(tmp_path):
    folder = StateFolder(tmp_path)
    folder.save_breaker(tuple(KEY), SAVED)
    before = (tmp_path / "breakers.msgpack").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(OSError):
            folder.save_breaker(("echo", "2.0.0", "digest"), SAVED)
        folder.add_crash("echo", "3.0.0", "SIGSEGV")  # told in the log
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(tmp_path)) == ["breakers.msgpack", "lock"]
    assert (tmp_path / "breakers.msgpack").read_bytes() == before
    folder.close()


# -- two processes, kill -9 -------------------------------------------------------------------------------------------


def test_the_folder_is_free_as_soon_as_its_process_was_killed_even_if_a_forked_child_lives_on(tmp_path):
    done = in_a_process(
        """
        import subprocess
        holder = '''
            import os, sys, time, warnings
            import vmhost
            warnings.simplefilter("ignore", DeprecationWarning)
            host = vmhost.Host(state=sys.argv[1])
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            print(child, flush=True)
            time.sleep(600)
        '''
        import textwrap
        first = subprocess.Popen([sys.executable, "-c", textwrap.dedent(holder), sys.argv[1]], stdout=subprocess.PIPE,
                                 text=True)
        child = int(first.stdout.readline())
        try:
            vmhost.Host(state=sys.argv[1])
        except vmhost.VMHostError as error:
            print(f"process {first.pid}" in str(error), type(error).__name__)
        first.kill()
        first.wait()
        try:
            with vmhost.Host(allow_unsigned=True, state=sys.argv[1]) as host:
                print(host.load(bundle("def run(value): return value"))(1))
        finally:
            os.kill(child, signal.SIGKILL)
    """,
        tmp_path,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True ConfigurationError\n1\n")


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_or_the_new(tmp_path):
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    done = in_a_process(
        """
        import random
        from vmhost.runtime.state import StateFolder
        choose, key, seen = random.Random(int(sys.argv[2])), ("echo", "1.0.0", "digest"), set()
        for _ in range(50):
            begun, begins = os.pipe()
            child = os.fork()
            if child == 0:
                folder = StateFolder(sys.argv[1])
                trips = 0
                while True:
                    trips += 1
                    folder.save_breaker(key,
                                        {"reason": "r" * (trips % 5000), "trips": trips, "open_s": 1.0, "until": 2e9})
                    if trips == 2:
                        os.write(begins, b".")
            os.read(begun, 1)
            time.sleep(choose.random() * 0.02)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(begun), os.close(begins)
            folder = StateFolder(sys.argv[1])
            found = folder.breaker(key)
            assert found["reason"] == "r" * (found["trips"] % 5000)
            seen.add(found["trips"])
            folder.close()
        print(len(seen) > 1, sorted(set(os.listdir(sys.argv[1])) - {"breakers.new"}))
    """,
        tmp_path,
        seed,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True ['breakers.msgpack', 'lock']\n")


# -- Ctrl-C, descriptors ----------------------------------------------------------------------------------------------


def test_ctrl_c_between_any_two_steps_of_making_or_closing_a_host_leaves_nothing(tmp_path):
    """Tries one step in 37, others in each run; all of them were tried once."""
    first = 1 + int.from_bytes(os.urandom(4)) % 37
    print("first", first)
    done = in_a_process(
        """
        import gc, itertools
        from tests import hosts
        def counts():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        policy = Policy(warm=0)
        for _ in range(2):
            vmhost.Host(state=sys.argv[1], policy=policy).close()
        until(lambda: counts()[0] <= 2)     # a service's thread ends a moment after its host
        before, interrupted = counts(), 0
        for number in itertools.count(int(sys.argv[2]), 37):
            sys.settrace(hosts.interrupt_at(number))
            try:
                host = vmhost.Host(state=sys.argv[1], policy=policy)
                # else it was interrupted in a finalizer, which CPython reports and forgets
                if sys.gettrace() is not None:
                    break
                host.close()
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
        for number in itertools.count(int(sys.argv[2]), 37):
            sys.settrace(hosts.interrupt_at(number))
            try:
                host.close()
                if sys.gettrace() is not None:
                    break
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            del host        # closes it, if that has not begun
            host = vmhost.Host(state=sys.argv[1], policy=policy)
        gc.collect()
        until(lambda: all(now <= then for now, then in zip(counts(), before)))
        vmhost.Host(state=sys.argv[1], policy=policy).close()
        print(interrupted > 50)
    """,
        tmp_path,
        first,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_at_the_descriptor_limit_a_failed_boot_says_so():
    done = in_a_process("""
        import resource
        host = vmhost.Host(allow_unsigned=True, policy=Policy(warm=0))
        task = host.load(bundle("def run(value): return value"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            task(1)
        except vmhost.VMLostError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(task(2))
        host.close()
    """)
    assert done.returncode == 0, done.stderr
    assert "Too many open files" in done.stdout and done.stdout.endswith("\n2\n"), done.stdout
