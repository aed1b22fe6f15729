"""A guest reaches its own descriptors and no others: not with a number that it has closed and the host got, not by
naming two at once, not while its threads close what they use. The cases are in taken_numbers.py, which runs in a
process of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("taken_numbers.py")
# CPython's errors for a closed descriptor.
RAISE = """
file read, file readall, file readinto, file write, file seek, file tell, file truncate, file readline, file __next__,
socket recv, socket recv_into, socket recvfrom, socket recvmsg, socket send, socket sendall, socket sendmsg,
socket _accept, socket listen, socket getpeername, socket getsockname, socket getsockopt, socket setsockopt,
socket setblocking, socket settimeout, socket shutdown, socket close, epoll poll, epoll close, double_close,
double_close_of_two, double_close_of_a_socket, buffered_writer, text_reader, made_again, tls, closed_while_it_is_named,
made_in_the_midst False, made_in_the_midst True
"""


@pytest.fixture(scope="module")
def cases():
    done = subprocess.run(
        [sys.executable, PROGRAM],
        cwd=PROGRAM.parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {case.pop("case"): case for case in map(json.loads, done.stdout.splitlines())}
    assert len(found) > 250
    return found


def test_every_method_of_a_file_a_socket_and_an_epoll_object_is_tried(cases):
    assert cases["unfiled"]["changed"] == [], (
        "methods that this Python has, and that the tables of taken_numbers.py do not call"
    )


def test_nothing_of_the_hosts_is_read_changed_or_closed(cases):
    reached = {
        name: case
        for name, case in cases.items()
        if name != "unfiled" and (case["changed"] or "SECRET" in str(case["got"]))
    }
    assert reached == {}


def test_a_closed_descriptor_is_said_to_be_one(cases):
    for name in RAISE.replace("\n", " ").split(", "):
        name = name.strip() + (" True" if name.strip().startswith("file ") else "")
        assert cases[name]["got"] == "EBADF", name


def test_what_names_two_descriptors_is_asked_once(cases):
    for name in ("sendfile_from", "sendfile_to", "read", "lseek", "dup"):
        for flips in (False, True):
            assert "own" in cases[f"lie {name} {flips}"]["got"], name
    assert cases["lie write True"]["got"] == "1xwn file"


def test_who_waits_for_a_descriptor_that_is_closed_gets_nothing_of_the_next_ones(cases):
    for name in ("waiting_read", "waiting_socket", "waiting_select"):
        assert cases[name]["got"] == "['EBADF']", name
    assert cases["waiting_file"]["got"] == "['ValueError']", "I/O operation on closed file"


def test_threads_that_close_what_others_use(cases):
    assert set(cases["race"]["got"].strip("[]").split(", ")) <= {
        "\"b'own fi'\"",
        "\"b''\"",
        "\"b'le'\"",
        "'EBADF'",
        "'ValueError'",
        '"the host\'s number"',
    }


def test_threads_that_make_a_socket_again_and_close_it(cases):
    got = re.sub(r"'-?\d+'", "'number'", cases["made_and_closed"]["got"])
    # made again or detached, a socket leaves its descriptor open: the task may come to its limit
    assert set(got.strip("[]").split(", ")) <= {"'number'", "'EBADF'", "'None'", "'EMFILE'"}


def test_what_a_file_has_is_closed_before_it_is_made_again(cases):
    assert cases["made_again_in_vain"]["got"] == "ValueError", "I/O operation on closed file"


def test_a_folder_is_scanned_by_its_path(cases):
    assert cases["scandir_of_a_descriptor"]["got"] == "TypeError", "the entries would go on using the number"


def test_options_that_carry_descriptors_addresses_or_programs_are_refused(cases):
    options = [case["got"] for name, case in cases.items() if name.startswith("option ")]
    assert len(options) == 8 and all(got == ["denied", "denied"] for got in options)


def test_a_socket_is_of_the_family_that_it_is_of(cases):
    assert cases["family"]["got"] == ["EAFNOSUPPORT", "denied"]


def test_a_vm_closes_what_its_task_left_open(cases):
    assert cases["left open"]["changed"] == []
