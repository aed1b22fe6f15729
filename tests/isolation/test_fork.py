"""fork(2) in a process that runs VMs: the parent goes on, the child lives without them and says so. It crashed once, inside CPython."""

from tests.hosts import in_a_process

PROGRAM = """
import os
import sys
import warnings

warnings.simplefilter("ignore", DeprecationWarning)     # CPython's, that a process with threads forks
with vmhost.Host(allow_unsigned=True) as host:
    task = host.load(bundle("def run(value):\\n    return value + 1\\n"))
    assert task(1) == 2
    for number in range(10):
        child = os.fork()
        if child == 0:
            try:
                task(1)
            except RuntimeError as error:
                sys.exit(7 if "forked" in str(error) else 8)
            sys.exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert task(number) == number + 1
"""


def test_a_child_lives_without_the_vms_and_the_parent_goes_on():
    done = in_a_process(PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
