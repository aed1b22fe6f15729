"""Memory shared with others without a copy: the buffer protocol and DLPack, in and out; and what is refused."""

import array as standard_array
import copy
import pickle

import numpy
import pytest

import vmhost.engine.numpy as np


def test_numpy_reads_and_writes_our_memory():
    ours = np.arange(6.0).reshape(2, 3)
    theirs = numpy.asarray(ours)
    theirs[0, 1] = 42
    assert ours[0, 1] == 42
    assert theirs.strides == ours.strides
    assert numpy.asarray(ours.T).tolist() == ours.T.tolist()


def test_we_read_and_write_numpys_memory():
    theirs = numpy.arange(12.0).reshape(3, 4)
    ours = np.asarray(theirs[::-1, ::2])
    assert ours.strides == theirs[::-1, ::2].strides
    ours[0, 0] = 7
    assert theirs[2, 0] == 7


def test_operators_beside_numpys_are_ours():
    for ours, theirs in (
        (np.arange(3.0), numpy.arange(3.0)),
        (np.arange(3.0), numpy.float64(2)),
        (np.arange(3.0)[2], numpy.arange(3.0)),
        (np.arange(3.0)[2], numpy.float64(2)),
        (np.arange(3)[2], numpy.int8(2)),
    ):
        for result in (ours + theirs, theirs + ours, ours * theirs, theirs * ours, ours == theirs, theirs <= ours):
            assert isinstance(result, np.ndarray)
        assert numpy.asarray(theirs - ours).tolist() == (theirs - numpy.asarray(ours)).tolist()
    assert {numpy.int64(3): 1}[np.arange(4)[3]] == {np.arange(4)[3]: 1}[numpy.int64(3)] == 1


def test_our_view_keeps_their_object():
    theirs = standard_array.array("d", [1, 2, 3])
    ours = np.asarray(theirs)
    with pytest.raises(BufferError):
        theirs.append(4)
    del ours
    theirs.append(4)


def test_read_only_stays_read_only():
    ours = np.asarray(memoryview(b"abc"))
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        ours[0] = 1
    fixed = np.broadcast_to(np.arange(3), (2, 3))
    assert memoryview(fixed).readonly
    assert not numpy.asarray(fixed).flags.writeable


def test_buffers_that_do_not_fit():
    with pytest.raises(TypeError, match="no dtype"):
        np.asarray(numpy.array(["a"]))
    with pytest.raises(ValueError, match="ndarray is not C-contiguous"):
        np.frombuffer(np.arange(10)[::2])
    with pytest.raises(TypeError, match="buffer is too small for requested array"):
        np.ndarray((3,), "f8", bytearray(16))
    with pytest.raises(ValueError, match="strides is incompatible"):
        np.ndarray((2,), "f8", bytearray(16), 0, (16,))


def test_dlpack_to_numpy_and_back():
    ours = np.arange(6.0).reshape(2, 3)
    theirs = numpy.from_dlpack(ours)
    theirs[0, 0] = 9
    assert ours[0, 0] == 9
    back = np.from_dlpack(theirs[:, ::2])
    back[1, 1] = 8
    assert theirs[1, 2] == 8
    assert ours.__dlpack_device__() == (1, 0)


def test_dlpack_says_read_only():
    fixed = np.broadcast_to(np.arange(3), (2, 3))
    assert not numpy.from_dlpack(fixed).flags.writeable
    with pytest.raises(BufferError, match="Cannot export readonly array"):
        fixed.__dlpack__()
    theirs = numpy.arange(3)
    theirs.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        np.from_dlpack(theirs)[0] = 1


def test_dlpack_from_another_device_is_refused():
    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(BufferError, match="Unsupported device in DLTensor: device type 2"):
        np.from_dlpack(Elsewhere())


def test_a_capsule_that_nobody_takes_frees_its_memory():
    np.arange(1000.0).__dlpack__()
    np.arange(1000.0).__dlpack__(max_version=(1, 0))


def test_copies_and_pickles():
    a = np.arange(4)
    for other in (copy.copy(a), copy.deepcopy(a)):
        other[0] = 9
    assert a.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="arrays are not pickled"):
        pickle.dumps(a)
