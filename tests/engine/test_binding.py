"""The host's binding of the engine: cffi was told what the header says, and the library answers."""

import re

import pytest

from engine import declarations
from engine._vme import ffi, lib


def header_functions():
    """Name to number of parameters of every function that vme.h exports."""
    text = re.sub(r"/\*.*?\*/", "", declarations.HEADER.read_text(), flags=re.DOTALL)
    found = {}
    for name, parameters in re.findall(r"^VME_API [^;]*?\b(vme_\w+)\(((?:[^()]|\([^()]*\))*)\);", text, flags=re.MULTILINE):
        while "(" in parameters:
            parameters = re.sub(r"\([^()]*\)", "", parameters)
        found[name] = 0 if parameters == "void" else parameters.count(",") + 1
    return found


def test_every_function_of_the_header_is_bound_with_its_parameters():
    functions = header_functions()
    assert len(functions) == declarations.HEADER.read_text().count("\nVME_API ") > 50
    assert {name: len(ffi.typeof(getattr(lib, name)).args) for name in functions} == functions


def test_the_table_for_the_isolation_core_is_of_this_header():
    table = lib.vme_api()
    assert table.abi == lib.VME_ABI
    assert table.size == ffi.sizeof("struct vme_api")
    assert all(getattr(table, name) != ffi.NULL for name, _ in ffi.typeof("struct vme_api").fields if name not in ("abi", "size"))


@pytest.mark.parametrize("refuse", [False, True])
def test_an_account_pays_for_what_its_context_allocates(refuse):
    paid = []

    @ffi.callback("bool(void *, size_t)")
    def charge(owner, size):
        paid.append(size)
        return not refuse

    @ffi.callback("void(void *, size_t)")
    def release(owner, size):
        paid.append(-size)

    account = ffi.new("vme_account *", {"charge": charge, "release": release})
    context, buffer = ffi.new("vme_context **"), ffi.new("vme_buffer **")
    assert lib.vme_context_new(account, 0, context) == lib.VME_OK
    status = lib.vme_buffer_new(context[0], 1000, True, buffer)
    statistics = ffi.new("vme_statistics *")
    lib.vme_context_statistics(context[0], statistics)
    if refuse:
        assert status == lib.VME_NO_MEMORY and b"1000 bytes" in ffi.string(lib.vme_message())
        assert (statistics.live_bytes, statistics.refused) == (0, 1)
    else:
        assert int(ffi.cast("uintptr_t", lib.vme_buffer_data(buffer[0]))) % lib.VME_ALIGNMENT == 0
        assert bytes(ffi.buffer(lib.vme_buffer_data(buffer[0]), 1000)) == bytes(1000)
        assert (statistics.live_bytes, statistics.peak_bytes, statistics.buffers) == (1000, 1000, 1)
        lib.vme_buffer_unref(buffer[0])
    lib.vme_context_unref(context[0])
    assert paid == ([1000] if refuse else [1000, -1000])


def test_the_account_outlives_its_context_with_the_last_buffer():
    gone = []

    @ffi.callback("void(void *)")
    def forget(owner):
        gone.append(True)

    account = ffi.new("vme_account *", {"forget": forget})
    context, buffer = ffi.new("vme_context **"), ffi.new("vme_buffer **")
    assert lib.vme_context_new(account, 0, context) == lib.VME_OK
    assert lib.vme_buffer_new(context[0], 1 << 20, False, buffer) == lib.VME_OK
    lib.vme_context_unref(context[0])
    assert not gone
    lib.vme_buffer_unref(buffer[0])
    assert gone == [True]


def test_an_heir_pays_on_and_a_refusal_leaves_the_payer():
    first, heir, buffer = ffi.new("vme_context **"), ffi.new("vme_context **"), ffi.new("vme_buffer **")

    @ffi.callback("bool(void *, size_t)")
    def charge(owner, size):
        return size < 5000

    assert lib.vme_context_new(ffi.NULL, 0, first) == lib.VME_OK
    assert lib.vme_context_new(ffi.new("vme_account *", {"charge": charge}), 0, heir) == lib.VME_OK

    def live(context):
        statistics = ffi.new("vme_statistics *")
        lib.vme_context_statistics(context[0], statistics)
        return statistics.live_bytes

    for size, status, expected in [(4000, lib.VME_OK, (0, 4000)), (6000, lib.VME_NO_MEMORY, (6000, 0))]:
        assert lib.vme_buffer_new(first[0], size, False, buffer) == lib.VME_OK
        assert lib.vme_buffer_inherit(buffer[0], heir[0]) == status
        assert (live(first), live(heir)) == expected
        lib.vme_buffer_unref(buffer[0])
        assert (live(first), live(heir)) == (0, 0)
    lib.vme_context_unref(first[0])
    lib.vme_context_unref(heir[0])


def test_a_backend_that_is_not_there_cannot_be_forced():
    current = lib.vme_backend_current()
    assert lib.vme_backend_force(99) == lib.VME_UNSUPPORTED
    assert b"cannot run on this machine" in ffi.string(lib.vme_message())
    assert lib.vme_backend_current() == current
    assert lib.vme_backend_force(0) == lib.VME_OK and lib.vme_backend_current() == 0
    assert lib.vme_backend_force(-1) == lib.VME_OK and lib.vme_backend_current() == current
