"""If, Loop, Scan and SequenceMap. Bodies are inlined (bodies.py).

If: a constant condition selects its branch. Otherwise both branches are read and the condition selects between their
results; layers that only one of them needs are skipped when the other is taken (guards.py). A counted size (parts.py)
is taken to be at least 1, except where only the branch for 0 fits what follows.

Loop, Scan and SequenceMap are unrolled, so that the compiler fuses and plans across iterations and the arena holds only
live tensors. The number of iterations is bounded at compile time. Where a condition is known only at run time,
iterations after the end are skipped and keep the earlier values."""

import numpy

from .bodies import MAX_READ, Body, TooLong, choose, scalar, truth
from .lowering import Lowering
from .parts import counted_size
from .readers import Unsupported, reads_whole
from .shape_values import if_none
from .structures import Sequence, stacked, structure_of, unstacked

_MAX_ITERATIONS = 1 << 12  # iterations of a loop
_MAX_WHILE_ITERATIONS = 1 << 10  # iterations of a loop that perhaps only its condition ends


@reads_whole("If")
def branch(reader, node):
    if len(node.inputs) != 1 or not reader.knows(node.inputs[0]) or structure_of(reader, node.inputs[0]) is not None:
        raise Unsupported("has a condition that nothing computes")
    condition = node.inputs[0]
    constant_condition = truth(reader, condition)
    if constant_condition is not None:
        name = "then_branch" if constant_condition else "else_branch"
        results = _branch_for_zero(reader, node, condition, name) or Body(reader, node, name, name).read()
        if results is not None:
            _same_count(node, len(results))
            for output, name in zip(node.outputs, results):
                if output:
                    reader.same(output, name)
        return
    add = Lowering(reader, node)
    condition = scalar(add, reader.as_tensor(condition, node))
    then_results = Body(reader, node, "then_branch", "then_branch").read()
    else_results = Body(reader, node, "else_branch", "else_branch").read()
    if then_results is None or else_results is None:
        return
    _same_count(node, len(then_results))
    _same_count(node, len(else_results))
    for output, a, b in zip(node.outputs, then_results, else_results):
        if output:
            choose(reader, node, condition, a, b, output, any_sizes=True)


def _branch_for_zero(reader, node, condition, taken):
    """The results of the branch for a counted size of 0, if that branch passes tensors through, and the branch `taken`
    at other sizes gives tensors of other ranks: what follows works on those of one branch alone. Calls at which that
    size is not 0 are then refused. None: the branch `taken` serves all calls.

    KNNImputer's graph is the case: rows without a neighbour go through such a branch, at which ONNX Runtime fails."""
    network, compared = reader.network, reader.producers.get(condition)
    if compared is None or not network.counted:
        return None
    values = [name and network.values.get(name, network.constants.get(name)) for name in compared.inputs]
    zero_case = if_none(compared, values, network.counted)
    if zero_case is None or zero_case[1] == (taken == "then_branch"):
        return None
    other_body = Body(reader, node, "else_branch" if taken == "then_branch" else "then_branch", "none")
    passed = other_body.passed()
    if passed is None or not all(reader.knows(name) and structure_of(reader, name) is None for name in passed):
        return None
    saved = [(mapping, dict(mapping)) for mapping in (network.counted, network.needs)]
    problems, layers = len(reader.problems), len(network.layers)
    results = Body(reader, node, taken, taken).read()
    if results is not None and [_rank(reader, name) for name in results] == [_rank(reader, name) for name in passed]:
        return results
    for mapping, contents in saved:
        mapping.clear()
        mapping.update(contents)
    del reader.problems[problems:]
    network.forget(layers)
    network.must_be_zero.add(zero_case[0])
    return passed


def _rank(reader, name):
    return len(reader.shape(name)) if structure_of(reader, name) is None else None


def _same_count(node, count):
    if len(node.outputs) != count:
        raise Unsupported(f"has {len(node.outputs)} outputs, and a graph within that gives {count}")


@reads_whole("Loop")
def loop(reader, node):
    body = Body(reader, node, "body", "body")
    trips, condition = _trips(reader, node.input(0)), _condition(reader, node.input(1))
    carried = list(node.inputs[2:])
    for name in carried:
        if name is None or not reader.knows(name):
            raise Unsupported("has a loop-carried value that nothing computes")
    scans = len(body.outputs) - 1 - len(carried)
    if scans < 0:
        raise Unsupported(f"has a body of {len(body.outputs)} outputs, expected at least {1 + len(carried)}")
    _same_count(node, len(carried) + scans)
    rows, add, number = [[] for _ in range(scans)], Lowering(reader, node), 0
    active = None  # name of a bool tensor: whether the iteration takes effect
    body_inputs = carried  # with counters as constants, since iterations that take effect come in order
    if condition is not None and not isinstance(condition, bool):
        active, condition = scalar(add, reader.as_tensor(condition, node)), True
    problems = len(reader.problems)
    while condition is not False and (trips is None or number < trips):
        is_while = active is not None and (trips is None or trips > _MAX_ITERATIONS)
        if is_while and number >= _MAX_WHILE_ITERATIONS:
            raise Unsupported(_WHILE)
        if number >= _MAX_ITERATIONS:
            raise Unsupported(
                f"has {'an unknown number of' if trips is None else f'{trips:,}'} iterations; loops are unrolled, up to"
                f" {_MAX_ITERATIONS:,} iterations: give it a constant number of iterations"
            )
        count = f"{body.prefix}/pass {number}"
        reader.keep_constant(count, numpy.int64(number))
        iteration_condition = (
            active if active is not None else reader.keep_constant(f"{count}/condition", numpy.bool_(True))
        )
        try:
            results = body.read([count, iteration_condition, *body_inputs], number)
        except TooLong:
            if is_while:
                raise Unsupported(_WHILE) from None
            raise
        if results is None and is_while and reader.read_in_bodies > MAX_READ:  # a graph within the body was too long
            del reader.problems[problems:]
            raise Unsupported(_WHILE)
        if results is None:
            return
        continues, new = results[0], results[1 : 1 + len(carried)]
        counters = [reader.constant(name) is not None for name in new]
        body_inputs = new
        if active is not None:
            if scans:
                raise Unsupported("ends at an iteration that is known only at run time, and has scan outputs")
            new = [
                _selected(reader, node, active, pair, f"{count}/carried {index}")
                for index, pair in enumerate(zip(new, carried))
            ]
            body_inputs = [
                constant if is_counter else name for constant, is_counter, name in zip(body_inputs, counters, new)
            ]
        for row, name in zip(rows, results[1 + len(carried) :]):
            row.append(name)
        carried, number = new, number + 1
        constant_condition = truth(reader, continues)
        if constant_condition is None:
            continues = scalar(add, reader.as_tensor(continues, node))
            active = continues if active is None or continues == active else add.where(active, continues, False)
        elif constant_condition is False:
            break
    for output, name in zip(node.outputs, carried):
        if output:
            reader.same(output, name)
    if scans and not number:
        _no_rows(reader, node, body, carried)
    else:
        _stack(reader, node, node.outputs[len(carried) :], rows, [0] * scans)


def _no_rows(reader, node, body, carried):
    """The scan outputs of a loop without an iteration: tensors of as many rows as are counted, which is none. An
    iteration that nothing uses tells the shapes."""
    add = Lowering(reader, node)
    first = reader.keep_constant(f"{body.prefix}/none", numpy.int64(0))
    active = reader.keep_constant(f"{body.prefix}/true", numpy.bool_(True))
    results = body.read([first, active, *carried], 0)
    for output, name in zip(node.outputs[len(carried) :], results[1 + len(carried) :] if results is not None else ()):
        if output:
            none = counted_size(reader, node, add.constant([0], numpy.int64))
            row = add.expand(add.constant(0, add.dtype(name)), (1, *add.shape(name)))
            add.done(add.part(row, 0, 0, none), output)


_WHILE = (
    "is a while loop that only its condition ends, which is computed at run time; loops are unrolled: add a constant"
    f" limit to the condition (while i < 100 and ...), at most {_MAX_WHILE_ITERATIONS:,}, or give Loop a constant"
    " maximum number of iterations"
)


def _selected(reader, node, active, pair, output):
    new, old = pair
    choose(reader, node, active, new, old, output)
    return reader.name_of(output) if structure_of(reader, output) is None else output


def _trips(reader, name):
    """The maximum number of iterations of a loop; None if there is none."""
    if name is None:
        return None
    value = reader.constant(name)
    if value is None or name in reader.network.values:
        raise Unsupported(
            "has a number of iterations that is computed at run time; loops are unrolled: export it with a constant"
            " number of iterations"
        )
    if value.size != 1 or value.dtype.kind not in "iu":
        raise Unsupported(f"has a number of iterations of {value.dtype.name}{value.shape}, expected one int64")
    return max(0, int(value.reshape(())[()]))


def _condition(reader, name):
    """True, False, or the name of a condition known only at run time."""
    if name is None:
        return True
    if not reader.knows(name) or structure_of(reader, name) is not None:
        raise Unsupported("has a condition that nothing computes")
    constant_condition = truth(reader, name)
    return name if constant_condition is None else constant_condition


def _stack(reader, node, outputs, rows, axes, backwards=()):
    for index, (output, row, axis) in enumerate(zip(outputs, rows, axes)):
        if not output:
            continue
        if not row:
            raise Unsupported("has no iterations and scan outputs, which would be empty tensors")
        if any(structure_of(reader, name) is not None for name in row):
            raise Unsupported("has a scan output that is a sequence")
        rank = len(reader.shape(row[0])) + 1
        row = row[::-1] if index < len(backwards) and backwards[index] else row
        if any(reader.shape(name) != reader.shape(row[0]) for name in row):
            raise Unsupported("has scan outputs whose shapes change between iterations")
        stacked(reader, node, row, axis + rank if axis < 0 else axis, output)


@reads_whole("Scan")
def scan(reader, node):
    body, inputs, batched = Body(reader, node, "body", "body"), list(node.inputs), node.opset < 9
    if batched:  # version 8: every tensor has a batch dimension, and sequences have lengths
        if inputs.pop(0) is not None:
            raise Unsupported("has lengths of its sequences (version 8); export it with opset 9 or later")
    count = node.get("num_scan_inputs")
    if not isinstance(count, int) or not 1 <= count <= len(inputs):
        raise Unsupported(f"has num_scan_inputs {count} of {len(inputs)} inputs")
    for name in inputs:
        if name is None or not reader.knows(name) or structure_of(reader, name) is not None:
            raise Unsupported("has an input that nothing computes")
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    if len(body.outputs) < len(states):
        raise Unsupported(f"has a body of {len(body.outputs)} outputs, expected at least {len(states)}")
    scan_count = len(body.outputs) - len(states)
    _same_count(node, len(body.outputs))
    if not batched:
        results = _scanned(reader, node, body, states, scanned, scan_count, "")
        for output, name in zip(node.outputs, results or ()):
            if output:
                reader.same(output, name)
        return
    parts = [unstacked(reader, name, 0, f"{body.prefix}/{index}") for index, name in enumerate((*states, *scanned))]
    if len({len(part) for part in parts}) != 1:
        raise Unsupported("has inputs of different batches")
    example_results = []
    for number, example in enumerate(zip(*parts)):
        results = _scanned(
            reader, node, body, example[: len(states)], example[len(states) :], scan_count, f"example {number}/"
        )
        if results is None:
            return
        example_results.append(results)
    _stack(reader, node, node.outputs, [list(row) for row in zip(*example_results)], [0] * len(node.outputs))


def _scanned(reader, node, body, states, scanned, scan_count, label):
    """Returns the names of the final states and of the scan outputs."""

    def option(name, count, default=0):
        values = node.get(name) or [default] * count
        if len(values) != count:
            raise Unsupported(f"has {len(values)} {name}, expected {count}")
        return values

    batched = node.opset < 9
    axes = option("scan_input_axes", len(scanned))
    backwards = option("directions" if batched else "scan_input_directions", len(scanned))
    parts = []
    for index, (name, axis, back) in enumerate(zip(scanned, axes, backwards)):
        rank = len(reader.shape(name))
        if not -rank <= axis < rank:
            raise Unsupported(f"has the scan axis {axis} of a tensor of {rank} dimensions")
        part = unstacked(reader, name, axis % rank, f"{body.prefix}/{label}scanned {index}")
        parts.append(part[::-1] if back else part)
    if len({len(part) for part in parts}) != 1:
        raise Unsupported(f"scans tensors of {' and '.join(str(len(part)) for part in parts)} parts")
    rows, states = [[] for _ in range(scan_count)], list(states)
    for number, elements in enumerate(zip(*parts)):
        results = body.read([*states, *elements], f"{label}{number}")
        if results is None:
            return None
        states = results[: len(states)]
        for row, name in zip(rows, results[len(states) :]):
            row.append(name)
    names = [f"{body.prefix}/{label}stacked {index}" for index in range(scan_count)]
    _stack(
        reader, node, names, rows, option("scan_output_axes", scan_count), option("scan_output_directions", scan_count)
    )
    return [*states, *(reader.name_of(name) for name in names)]


@reads_whole("SequenceMap")
def mapped(reader, node):
    body, first = Body(reader, node, "body", "body"), structure_of(reader, node.input(0))
    if not isinstance(first, Sequence):
        raise Unsupported(f"works on {node.input(0)!r}, which is not a sequence")
    _same_count(node, len(body.outputs))
    rows = [[] for _ in body.outputs]
    for number in range(len(first.items)):
        body_inputs = []
        for name in node.inputs:
            structure = structure_of(reader, name)
            if isinstance(structure, Sequence) and len(structure.items) != len(first.items):
                raise Unsupported(f"goes through sequences of {len(first.items)} and {len(structure.items)} tensors")
            body_inputs.append(structure.items[number] if isinstance(structure, Sequence) else name)
        results = body.read(body_inputs, number)
        if results is None:
            return
        for row, name in zip(rows, results):
            row.append(name)
    for output, row in zip(node.outputs, rows):
        if output:
            reader.structures[output] = Sequence(row, reader.dtype(row[0]) if row else None)
