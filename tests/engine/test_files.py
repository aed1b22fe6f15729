"""Arrays in npy and npz files: NumPy reads what we write and the other way round; pickles are refused; from a task's
bundle."""

import io
import pickle
import zipfile

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.hosts import bundle

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
SHAPES = [(), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)]


def same(got, wanted):
    got = numpy.asarray(got)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    numpy.testing.assert_array_equal(got, wanted)


@each("dtype", DTYPES)
@each("shape", SHAPES)
def test_both_ways(dtype, shape):
    a = (numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape) % 7).astype(dtype)
    for array in (a, numpy.asfortranarray(a)):
        ours, theirs = io.BytesIO(), io.BytesIO()
        np.save(ours, np.asarray(array))
        numpy.save(theirs, array)
        assert ours.getvalue() == theirs.getvalue()
        same(np.load(io.BytesIO(theirs.getvalue())), array)
        swapped = io.BytesIO()
        numpy.save(swapped, array.astype(array.dtype.newbyteorder(">")))
        same(np.load(io.BytesIO(swapped.getvalue())), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_the_format(version):
    file, a = io.BytesIO(), numpy.arange(6.0).reshape(2, 3)
    numpy.lib.format.write_array(file, a, version)
    same(np.load(io.BytesIO(file.getvalue())), a)


@pytest.mark.parametrize("compressed", [False, True])
def test_archives(compressed, tmp_path):
    a, b = numpy.arange(6.0).reshape(2, 3), numpy.array([True, False])
    name = "savez_compressed" if compressed else "savez"
    getattr(np, name)(tmp_path / "ours", np.asarray(a), flags=np.asarray(b))
    with numpy.load(tmp_path / "ours.npz") as archive:
        same(archive["arr_0"], a)
        same(archive["flags"], b)
    getattr(numpy, name)(tmp_path / "theirs.npz", a, flags=b)
    with np.load(str(tmp_path / "theirs.npz")) as archive:
        assert sorted(archive) == ["arr_0", "flags"] and "flags" in archive and len(archive) == 2
        same(archive["arr_0"], a)
        same(archive.get("flags"), b)
        with pytest.raises(KeyError, match="not a file in the archive"):
            archive["other"]
    with pytest.raises(ValueError, match="un-named"):
        np.savez(io.BytesIO(), np.ones(1), arr_0=np.ones(1))


def test_several_in_one_file(tmp_path):
    with open(tmp_path / "two.npy", "wb") as file:
        np.save(file, np.ones(3))
        np.save(file, np.zeros((2, 2)))
    with open(tmp_path / "two.npy", "rb") as file:
        same(np.load(file), numpy.ones(3))
        same(np.load(file), numpy.zeros((2, 2)))
        with pytest.raises(EOFError):
            np.load(file)
    np.save(tmp_path / "plain", np.ones(2))
    same(np.load(tmp_path / "plain.npy"), numpy.ones(2))


def saved(array, **how):
    file = io.BytesIO()
    numpy.save(file, array, **how)
    return file.getvalue()


def header(shape, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@each(
    ("data", "why"),
    [
        (saved(numpy.array([{}], dtype=object), allow_pickle=True), "never"),
        (pickle.dumps([1]), "pickle"),
        (b"hello there", "no npy or npz"),
        (saved(numpy.ones(4))[:-3], "EOF"),
        (saved(numpy.ones(4))[:20], "EOF"),
        (saved(numpy.array(["a"])), "absent"),
        (saved(numpy.zeros(2, "i4,f8")), "structured"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "version"),
        (saved(numpy.ones(4)).replace(b"'shape': (4,)", b"'shape': (-4)"), "Header|shape"),
        (saved(numpy.ones(4)).replace(b"'shape'", b"'forms'"), "Header"),
        (saved(numpy.ones(4)).replace(b"(4,)", b"(9,)"), "EOF"),
        (saved(numpy.ones(4)).replace(b"False", b"f()  "), "Header"),
        (saved(numpy.ones(4))[:5], "expected 8 bytes got 5"),
        (header("(4611686018427387904, 4)"), "larger than any memory"),
        (header("(99999999999999999999999999,)"), "larger than any memory"),
        (header("(2**9,)"), "Header"),
        (header("(True,)"), "shape is not valid"),
        (header("(-1,)"), "Header"),
        (header("3"), "shape is not valid"),
        (header("(" + "1," * 70 + ")") + bytes(8), "maximum supported dimension"),
        (header("(" * 3000), "Header"),
        (header("{'a':" * 1500), "Header"),
        (header("(2,)") + bytes(9), "expected 16 bytes got 9"),
    ],
)
def test_what_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        np.load(io.BytesIO(data))


def test_an_array_that_cannot_be_is_a_memory_error():
    with pytest.raises(MemoryError):
        np.load(io.BytesIO(header("(1000000000000000000,)")))


def test_bytes_of_booleans_are_booleans():
    assert np.load(io.BytesIO(header("(4,)", "|b1") + b"\0\1\xff\2")).sum() == 3


def test_an_archive_that_says_more_than_it_holds():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", header("(9000000,)", "|u1") + bytes(5))
        file.writestr("b.npy", header("(9000000,)", "|u1") + bytes(9000000))
    with np.load(io.BytesIO(archive.getvalue())) as members:
        with pytest.raises(ValueError, match="a.npy: EOF: reading array data, expected 9000000 bytes got 5"):
            members["a"]
        assert len(members["b"]) == 9000000
    source = """
        import io
        import vmhost.engine.numpy as np

        def run(data):
            return len(np.load(io.BytesIO(data))["b"])
    """
    with vmhost.Host(allow_unsigned=True) as host:  # what it unpacks to counts
        with pytest.raises(vmhost.MemoryLimitError):
            host.load(bundle(source, limits={"memory": "8 MiB"}))(archive.getvalue())


def test_pickles_are_never_allowed():
    with pytest.raises(ValueError, match="never"):
        np.load(io.BytesIO(saved(numpy.ones(1))), allow_pickle=True)


def test_from_a_bundle_in_a_sealed_vm(tmp_path):
    archive = io.BytesIO()
    numpy.savez_compressed(archive, weights=numpy.arange(4.0))
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            bundle(
                """
            import io
            import vmhost.engine.numpy as np

            def run(data):
                with np.load(io.BytesIO(data)) as archive:
                    weights = archive["weights"]
                file = io.BytesIO()
                np.save(file, weights * 2)
                file.seek(0)
                return np.load(file)
        """,
                name="files",
            )
        )
        same(task(archive.getvalue()), numpy.arange(4.0) * 2)


def test_an_archive_names_its_file_and_gives_arrays_as_attributes(tmp_path):
    path = str(tmp_path / "many.npz")
    np.savez(path, *[np.ones(1)] * 6)
    with zipfile.ZipFile(path, "a") as archive, archive.open("bare", "w") as member:
        np.save(member, np.arange(3))
    found = []
    for module in (numpy, np):
        with module.load(path) as archive:
            found.append((repr(archive), archive.f.arr_1.tolist(), archive["bare"].tolist()))
    assert found[0] == found[1]
