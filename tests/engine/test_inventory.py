"""The lists of operators that `vmhost doctor` prints agree with the sources, and the savings of lowering are counted
from them."""

import re
from pathlib import Path

import pytest

import vmhost.engine.numpy
from tests.engine.test_every_operator import operators as of_the_headers
from vmhost.engine import _array, inventory
from vmhost.engine._vme import lib

ROOT = Path(__file__).parents[2]
DEFINITION = re.compile(r"^(static )?[a-z][\w *]*?\b(\w+)\([^;{}]*?\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
# Whose kernels a part of the backends' tables is: others that use it have none of their own.
KERNELS_OF = {
    "raster": r"->move\.|move_kernels",
    "copy": r"elementwise\.cast\[",
    "unary": r"elementwise\.unary\[",
    "binary": r"elementwise\.binary\[",
    "where": r"elementwise\.choose\[",
    "reduce": r"reduce\.(fold|rows)|->(fold|rows)\[",
    "matmul": r"gemm\.of\[",
    "sort": r"kernels->order\b",
    "argsort": r"kernels->order\b",
    "top": r"kernels->order\b",
    "partition": r"kernels->order\b",
    "philox": r"random\.blocks",
    "searchsorted": r"order\.search\b",
    "interpolate": r"order\.search\b",
    "bits_pack": r"kernels->pack\(",
    "bits_unpack": r"kernels->unpack\(",
    "split": r"kernels->split\[",
    "patches": r"images->patches\[",
    "patches_sum": r"images->patches_sum\[",
    "max_pool": r"images->max_pool\[",
    "max_pool_gradient": r"images->max_pool_gradient\[",
    "depthwise_forward": r"images->depthwise\[",
    "depthwise_images": r"images->depthwise_images\[",
    "depthwise_weights": r"images->depthwise_weights\[",
    "normalize": r"kernels->normalize\[",
    "normalize_gradient": r"kernels->normalize_gradient\[",
}
LOOPS = r"\bvme_parallel\(|\bvme_stopping\("


@pytest.fixture(scope="module")
def functions():
    """{(file or None for what all files see, name): body} of the library's C functions."""
    found = {}
    for path in (
        path for room in ("runtime", "operators", "models") for path in (ROOT / "engine" / "src" / room).glob("*.c")
    ):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for static, name, body in DEFINITION.findall(text):
            found[path.name if static else None, name] = path.name, body
    return found


def reached(functions, operator):
    """(file of its definition, the text of all functions that it calls before another operator is called)."""
    others = of_the_headers() - {f"vme_{operator}"}
    if operator not in ("raster", "copy"):
        others.add("vme_move")  # what raster is within the library
    waiting, seen, texts = [(None, f"vme_{operator}")], set(), []
    home = functions[None, f"vme_{operator}"][0]
    while waiting:
        key = waiting.pop()
        if key in seen or key not in functions:
            continue
        seen.add(key)
        file, body = functions[key]
        texts.append(body)
        names = set(re.findall(r"\b\w+\b", body)) - others
        waiting += [key for name in names for key in ((file, name), (None, name))]
    return home, "\n".join(texts)


def of_the_headers_without_prefix():
    return {name.removeprefix("vme_") for name in of_the_headers()}


def test_every_operator_of_the_headers_is_listed():
    listed = [operator.name for operator in inventory.listed()]
    assert sorted(listed) == sorted(of_the_headers_without_prefix())


def test_operators_are_made_as_the_list_says(functions):
    wanted = {}
    for operator in inventory.listed():
        home, text = reached(functions, operator.name)
        kernels = KERNELS_OF.get(operator.name)
        if kernels is not None and re.search(kernels, text):
            wanted[operator.name] = inventory.KERNELS
        elif re.search(LOOPS, text):
            wanted[operator.name] = inventory.LOOPS
        else:
            assert home == "transform.c", f"{operator.name} is lowered outside of engine/src/operators/transform.c"
            wanted[operator.name] = inventory.LOWERED
    assert dict(inventory.listed()) == wanted


def test_what_transform_c_offers_is_lowered(functions):
    exported = {
        name.removeprefix("vme_")
        for (file, name), (home, _) in functions.items()
        if home == "transform.c" and file is None
    }
    assert exported and exported == {name for name, making in inventory.listed() if making == inventory.LOWERED}


def test_families_are_counted_one_by_one():
    names = [operator.name for operator in inventory.operators()]
    assert {"raster", "negative", "conjugate", "add", "logical_xor", "sum", "fmin", "cumsum", "roll"} <= set(names)
    assert (
        len(names)
        == len(inventory.listed())
        - 4
        + lib.VME_UNARY_COUNT
        + lib.VME_BINARY_COUNT
        + lib.VME_REDUCE_COUNT
        + lib.VME_SCAN_COUNT
    )


def test_a_backend_counts_the_kernels_that_it_brings():
    kernels = inventory.kernels()
    # the portable one has all: at least one for each unary operator and dtype that computes in itself
    loop, result = inventory.ffi.new("vme_dtype *"), inventory.ffi.new("vme_dtype *")
    loops = sum(
        lib.vme_unary_types(op, dtype, loop, result) == lib.VME_OK and loop[0] == dtype
        for op in range(lib.VME_UNARY_COUNT)
        for dtype in range(lib.VME_DTYPE_COUNT)
        if dtype != lib.VME_FLOAT16
    )
    assert kernels["portable"] > loops > 200
    assert all(0 < count < kernels["portable"] * 2 for count in kernels.values())
    assert lib.vme_backend_kernels(-1) == lib.vme_backend_kernels(99) == 0


def test_what_the_surface_lowers_is_listed():
    lowered = set(inventory.lowered())
    assert {
        "concatenate",
        "pad",
        "tile",
        "roll",
        "transpose",
        "flip",
        "moveaxis",
        "hstack",
        "diff",
        "kron",
        "tensordot",
        "isclose",
        "clip",
        "unique",
        "einsum",
        "linspace",
        "median",
        "histogram",
        "kaiser",
        "divmod",
    } <= lowered
    assert not lowered & {operator.name for operator in inventory.operators() if operator.making != inventory.LOWERED}
    # one function, one name
    functions = [getattr(vmhost.engine.numpy, name) for name in lowered]
    assert len({id(function) for function in functions}) == len(lowered)


def test_what_is_no_operator_is_still_there():
    files = set(vmhost.engine.numpy._FILE_OF.values())
    assert inventory._NO_OPERATORS <= files
    for name in inventory._NOT_OPERATORS | inventory._NUMPY_NAMED:
        assert callable(getattr(vmhost.engine.numpy, name)), name


def test_functions_of_the_array_module_are_lowered_when_they_call_no_kernel_of_their_own():
    """A new function in C is listed here, as made of operators or as an operator itself."""
    builtins = {name for name in inventory.lowered() if hasattr(_array, name)}
    assert builtins == {
        "ascontiguousarray",
        "broadcast_to",
        "clip",
        "concatenate",
        "diagonal",
        "dot",
        "mean",
        "ravel",
        "reshape",
        "squeeze",
        "swapaxes",
        "trace",
        "transpose",
    }


def test_pieces_are_counted_as_walle_counts():
    makings = [operator.making for operator in inventory.operators()]
    backends, lowered = lib.vme_backend_count(), len(inventory.lowered())
    own = sum(making != inventory.LOWERED for making in makings)
    assert inventory.pieces() == (
        makings.count("kernels") * backends + makings.count("loops") + lowered,
        (own + lowered) * backends,
    )
