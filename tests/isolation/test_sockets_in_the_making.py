"""A socket that is closed while another thread makes it: its number is not the host's before the maker is through.

The maker is stopped where CPython has released the GIL and is about to set the descriptor's mode (held_ioctl.c)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hosts import in_a_process

SCRIPT = """
    import ctypes, fcntl
    held = ctypes.CDLL(None)
    SOURCE = '''
        import _socket, threading
        from vmhost.guest import host

        def run(of_number):
            end, said = _socket.socket(), []
            more = {"fileno": end.detach()} if of_number else {}
            end.close()
            _socket.setdefaulttimeout(5)
            def make():
                try:
                    end.__init__(**more)
                    said.append("made")
                except OSError as error:
                    said.append(error.args[1])
            host.arm(None)
            maker = threading.Thread(target=make)
            maker.start()
            host.wait(None)
            number = end.fileno()
            end.close()
            taken = host.occupy(number)
            host.go_on(None)
            maker.join()
            _socket.setdefaulttimeout(None)
            return taken, said[0], host.look(None)
    '''
    files = {}

    def occupy(number):
        fd = -1
        while fd < number:
            fd = os.open("/dev/null", os.O_RDWR)
            files[fd] = os.fstat(fd).st_ino, fcntl.fcntl(fd, fcntl.F_GETFL)
        return number in files

    def look(_):
        changed = []
        for fd, state in files.items():
            try:
                if (os.fstat(fd).st_ino, fcntl.fcntl(fd, fcntl.F_GETFL)) != state:
                    changed.append(fd)
                os.close(fd)
            except OSError as error:
                changed.append(str(error))
        files.clear()
        return changed

    functions = {"arm": lambda _: held.held_arm(), "wait": lambda _: held.held_wait(),
                 "go_on": lambda _: held.held_go_on(), "occupy": occupy, "look": look}
    permissions = {"net": ["127.0.0.1:*"], "host": list(functions)}
    with vmhost.Host(allow_unsigned=True, functions=functions) as host:
        task = host.load(bundle(SOURCE, permissions=permissions))
        for of_number in (False, True):
            print(*task(of_number))
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The file to preload: held_ioctl.c."""
    library = tmp_path_factory.mktemp("held") / "held.so"
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, Path(__file__).with_name("held_ioctl.c")], check=True)
    return library


def test_the_number_of_a_socket_that_is_being_made_is_not_the_hosts(held):
    done = in_a_process(SCRIPT, LD_PRELOAD=str(held))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False Bad file descriptor []\n" * 2
