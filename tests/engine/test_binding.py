"""The host's binding of the engine: cffi's declarations match the header, and the library answers."""

import re

import pytest

import vmhost.engine.numpy as np
from vmhost.engine import declarations, library
from vmhost.engine._vme import ffi, lib

TEXT = "".join(header.read_text() for header in declarations.HEADERS)


def header_functions():
    """Name to number of parameters of every function that the headers export."""
    text = re.sub(r"/\*.*?\*/", "", TEXT, flags=re.DOTALL)
    found = {}
    for name, parameters in re.findall(
        r"^VME_API [^;]*?\b(vme_\w+)\(((?:[^()]|\([^()]*\))*)\);", text, flags=re.MULTILINE
    ):
        while "(" in parameters:
            parameters = re.sub(r"\([^()]*\)", "", parameters)
        found[name] = 0 if parameters == "void" else parameters.count(",") + 1
    return found


def test_every_function_of_the_header_is_bound_with_its_parameters():
    functions = header_functions()
    assert len(functions) == TEXT.count("\nVME_API ") > 50
    assert {name: len(ffi.typeof(getattr(lib, name)).args) for name in functions} == functions


def test_the_table_for_the_isolation_core_is_of_this_header():
    table = lib.vme_api()
    assert table.abi == lib.VME_ABI
    assert table.size == ffi.sizeof("struct vme_api")
    assert all(
        getattr(table, name) != ffi.NULL
        for name, _ in ffi.typeof("struct vme_api").fields
        if name not in ("abi", "size")
    )


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


class Payer:
    """A context whose account has room for `room` bytes, and counts them; `room` None: a context without an
    account."""

    def __init__(self, room):
        self.paid, self.room = 0, room

        @ffi.callback("bool(void *, size_t)")
        def charge(owner, size):
            return self.inherit(size, False)

        @ffi.callback("void(void *, size_t)")
        def release(owner, size):
            self.paid -= size

        @ffi.callback("bool(void *, size_t, bool)")
        def inherit(owner, size, forced):
            return self.inherit(size, forced)

        self.kept = charge, release, inherit
        account = (
            ffi.NULL
            if room is None
            else ffi.new("vme_account *", {"charge": charge, "release": release, "inherit": inherit})
        )
        self.slot = ffi.new("vme_context **")
        assert lib.vme_context_new(account, 0, self.slot) == lib.VME_OK
        self.context = self.slot[0]

    def inherit(self, size, forced):
        if self.paid + size > self.room and not forced:
            return False
        self.paid += size
        return True

    def share(self, buffer):
        share = ffi.new("vme_buffer **")
        assert lib.vme_buffer_share(self.context, buffer, share) == lib.VME_OK
        return share[0]

    @property
    def live(self):
        statistics = ffi.new("vme_statistics *")
        lib.vme_context_statistics(self.context, statistics)
        assert self.room is None or self.paid == statistics.live_bytes
        assert (statistics.buffers > 0) == (statistics.live_bytes > 0)
        return statistics.live_bytes


def sent(payer, size=1000):
    """A buffer of `payer`, frozen by a wall; the caller's reference."""
    buffer = ffi.new("vme_buffer **")
    assert lib.vme_buffer_new(payer.context, size, False, buffer) == lib.VME_OK
    lib.vme_buffer_freeze(buffer[0])
    return buffer[0]


@pytest.mark.parametrize(
    ("rooms", "heir"),
    [
        ([], None),
        ([5000], 0),
        ([10], 0),
        ([10, 5000], 1),
        ([5000, 10], 0),
        ([None], 0),
        ([None, 5000], 1),
        ([None, 10], 1),
    ],
    ids=str,
)
def test_when_its_payer_ends_one_holder_pays(rooms, heir):
    maker, holders = Payer(10_000), [Payer(room) for room in rooms]
    buffer = sent(maker)
    shares = [holder.share(buffer) for holder in holders]
    kept = lib.vme_buffer_ref(buffer)  # on the way in a message, say
    lib.vme_buffer_unref(buffer)
    assert maker.live == 1000
    lib.vme_context_end(maker.context)
    assert maker.live == 0
    assert [holder.live for holder in holders] == [1000 * (number == heir) for number in range(len(rooms))]
    for share in shares:
        lib.vme_buffer_unref(share)
    lib.vme_buffer_unref(kept)
    assert [holder.live for holder in holders] == [0] * len(rooms)
    for payer in [maker, *holders]:
        lib.vme_context_unref(payer.context)


def test_the_charge_goes_on_from_heir_to_heir():
    payers = [Payer(10_000) for _ in range(4)]
    buffer = sent(payers[0])
    shares = [payer.share(buffer) for payer in payers[1:]]
    lib.vme_buffer_unref(buffer)
    for ending, payer in enumerate(payers[:-1]):
        lib.vme_context_end(payer.context)
        assert sorted(one.live for one in payers) == [0, 0, 0, 1000]
        assert not any(one.live for one in payers[: ending + 1])
        if ending:
            continue
        unpaid = next(number for number in (1, 2, 3) if not payers[number].live)
        lib.vme_buffer_unref(shares[unpaid - 1])  # who holds it no more does not inherit
        shares[unpaid - 1] = None
    for share in shares:
        if share is not None:
            lib.vme_buffer_unref(share)
    assert not any(payer.live for payer in payers)
    for payer in payers:
        lib.vme_context_unref(payer.context)


def test_the_last_holder_of_a_share_may_write():
    maker, holder = Payer(10_000), Payer(10_000)
    buffer = sent(maker)
    share, other = holder.share(buffer), holder.share(buffer)
    assert lib.vme_buffer_whole(share) == lib.vme_buffer_whole(buffer) == buffer
    assert lib.vme_buffer_data(share) == lib.vme_buffer_data(buffer)
    for reference in (buffer, other):
        assert not lib.vme_buffer_writable(share)
        lib.vme_buffer_unref(reference)
    assert lib.vme_buffer_writable(share)
    lib.vme_buffer_unref(share)
    assert maker.live == holder.live == 0
    for payer in (maker, holder):
        lib.vme_context_unref(payer.context)


def test_the_hosts_own_arrays_are_counted():
    before = library.statistics()
    array = np.zeros(1 << 17)
    held = library.statistics()
    assert (held.live_bytes - before.live_bytes, held.buffers - before.buffers) == (1 << 20, 1)
    assert held.peak_bytes >= held.live_bytes
    array += 1
    assert library.statistics().operators > held.operators
    del array
    assert library.statistics().live_bytes == before.live_bytes


def test_a_backend_that_is_not_there_cannot_be_forced():
    current = lib.vme_backend_current()
    assert lib.vme_backend_force(99) == lib.VME_UNSUPPORTED
    assert b"cannot run on this machine" in ffi.string(lib.vme_message())
    assert lib.vme_backend_current() == current
    assert lib.vme_backend_force(0) == lib.VME_OK and lib.vme_backend_current() == 0
    assert lib.vme_backend_force(-1) == lib.VME_OK and lib.vme_backend_current() == current
