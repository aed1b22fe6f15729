"""Confinement: a process in namespaces of its own, for builds of what somebody pushed.

It sees a root folder with nothing but this system's libraries, its Python and the folders that it is given, all
read-only, beside an empty /tmp in memory; no network, no other process, no privileges. Where this process is root, it
runs as `nobody`; elsewhere as a user namespace's `nobody`, with this user's number outside of it.

Linux only, by system calls that Python does not have; `why_not` says why a machine cannot do it (often a container
without the right to make namespaces). This file is also the program that starts the process, without vmhost's imports:

    python -I -S confinement.py SPECIFICATION     (JSON; see `command`)

It ends with the process's status, or 128 plus the number of the signal that ended it.
"""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

NOBODY = 65534
MEMORY_BYTES = 2 << 30  # of files in /tmp
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PROBE_S = 60.0
_FAILED = 125  # status where the namespaces could not be made; stderr says why

# <sys/mount.h>, <linux/mount.h>, <sys/prctl.h>
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_MOUNT_SETATTR = 442  # the same number on all architectures
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "loongarch64": 41, "ppc64le": 203, "s390x": 217}


def command(folder, arguments, shown, hidden=()):
    """The command that runs `arguments` confined. `folder`: an empty folder, used for nothing else; `shown`: paths that
    the process may read, at the same place; `hidden`: paths that it must not see, even below a shown one."""
    specification = {
        "root": str(folder),
        "shown": [str(path) for path in shown],
        "hidden": [str(path) for path in hidden],
        "command": [str(each) for each in arguments],
    }
    return [sys.executable, "-I", "-S", __file__, json.dumps(specification)]


def why_not():
    """None if this machine can confine a process, else the reason."""
    if not sys.platform.startswith("linux"):
        return "it takes Linux's namespaces"
    with tempfile.TemporaryDirectory(prefix="vmhost-confined-") as folder:
        line = command(folder, [sys.executable, "-I", "-S", "-c", "pass"], python_paths())
        try:
            done = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PROBE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]


def python_paths():
    """Folders that this Python and what is installed for it are in."""
    found = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    found |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    found |= {str(Path(sys.executable).parent), str(Path(sys.executable).resolve().parent)}
    return sorted(path for path in found if os.path.isdir(path))


# ---- in the process that is started


def _start(specification):
    libc = ctypes.CDLL(None, use_errno=True)
    is_root = os.getuid() == 0
    user, group = os.getuid(), os.getgid()
    _call("prctl", libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    apart = os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS
    try:
        os.unshare(apart if is_root else apart | os.CLONE_NEWUSER)
    except PermissionError:
        if not is_root:
            raise
        os.unshare(apart | os.CLONE_NEWUSER)  # root without the right: as any other user
        is_root = False
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
    _enter_root(libc, specification)
    init = os.fork()  # the first process of its namespace: when it ends, all others are killed
    if init:
        _end_as(init)
    _call("prctl", libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        _mount(libc, "proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        pass  # some containers do not allow it; the process then has an empty /proc
    child = os.fork()
    if child:
        _end_as(child)
    os.setsid()
    if is_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("prctl", libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir("/tmp")
    line = specification["command"]
    os.execv(line[0], line)  # the kernel takes the capabilities of a user namespace here


def _enter_root(libc, specification):
    """Makes the root folder, and leaves the old one for good."""
    root = specification["root"]
    _mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount(libc, "tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=16m,mode=755")
    os.chdir(root)
    os.mkdir("old")
    _call("pivot_root", libc.syscall, _PIVOT_ROOT[platform.machine()], b".", b"old")
    os.chdir("/")
    os.makedirs("/proc")
    for path in ("/tmp", "/dev/shm"):  # first: what is shown may be in /tmp
        os.makedirs(path)
        _mount(libc, "tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={MEMORY_BYTES},mode=1777")
    shown = _SYSTEM + _FILES + tuple(specification["shown"])
    for path in sorted(dict.fromkeys(shown), key=lambda each: each.count("/")):
        _show(libc, path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    for path in _DEVICES:
        _show(libc, path, _ATTR_NOSUID | _ATTR_NOEXEC)
    for path in specification["hidden"]:
        if os.path.isdir(path):
            _mount(libc, "tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=4k,mode=755")
            _restrict(libc, path, _ATTR_RDONLY)
    _call("umount", libc.umount2, b"/old", _MNT_DETACH)
    os.rmdir("/old")
    _restrict(libc, "/", _ATTR_RDONLY, recursive=False)


def _show(libc, path, attributes):
    """Shows a path of the old root here, if it is there; as the same link where it is one."""
    old = f"/old{path}"
    if os.path.islink(old):
        _make_parent(path)
        if not os.path.lexists(path):
            os.symlink(os.readlink(old), path)
        real = _resolved(path)
        if real is None or real == path:
            return
        path, old = real, f"/old{real}"
    if not os.path.exists(old):
        return
    _make_parent(path)
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        with open(path, "xb"):
            pass
    _mount(libc, old, path, None, _MS_BIND | _MS_REC)
    _restrict(libc, path, attributes)


def _resolved(path):
    """The path in the old root without links."""
    found = os.path.realpath(f"/old{path}")  # absolute links in it lead to the new root, so step by step
    for _ in range(40):
        if found.startswith("/old/"):
            return found.removeprefix("/old")
        found = os.path.realpath(f"/old{found}")
    return None


def _make_parent(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)


def _mount(libc, source, target, kind, flags, options=None):
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind)]
    data = None if options is None else options.encode()
    _call(f"mount {target}", libc.mount, *encoded, ctypes.c_ulong(flags), data)


def _restrict(libc, path, attributes, recursive=True):
    """Adds attributes (mount_setattr, Linux 5.12) to the mount at `path` and, if `recursive`, to those below it."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    numbers = (_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(wanted), ctypes.sizeof(wanted))
    _call(f"mount_setattr {path}", libc.syscall, *numbers)


def _call(what, function, *arguments):
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _end_as(child):
    """Ends this process as its child ends."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    try:
        _start(json.loads(sys.argv[1]))
    except (OSError, KeyError) as error:
        print(f"cannot make namespaces: {error.strerror if isinstance(error, OSError) else error}", file=sys.stderr)
        os._exit(_FAILED)
