"""Einstein summation: parse the subscripts, choose an order of pairs, lower each pair to a batched matrix product.

The letters of a pair form four groups: in both and kept (batch), in one and kept (rows, columns), in both and not kept
(summed by the product). Letters of one operand that nothing else needs are summed first; repeated letters of one
operand select its diagonal."""

import functools
from operator import index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._statistics import _finish

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _letters(numbers):
    """Letters for the alternative form of numpy.einsum's subscripts: a list of numbers and Ellipsis."""
    text = ""
    for number in numbers:
        if number is Ellipsis:
            text += "..."
        else:
            if not 0 <= index(number) < len(_LETTERS):
                raise ValueError(f"subscript is not within the valid range [0, {len(_LETTERS)})")
            text += _LETTERS[index(number)]
    return text


def _read(operands):
    """Returns (letters of each operand, letters of the result, arrays); each ellipsis is expanded to letters of its
    own."""
    if not operands:
        raise ValueError("No input operands")
    if operands[0] is None or not isinstance(operands[0], str) and len(operands) < 2:
        raise TypeError("einsum takes subscripts and operands, or operands and their lists of subscripts")
    if isinstance(operands[0], str):
        text, arrays = operands[0].replace(" ", ""), [_a.asarray(array) for array in operands[1:]]
    else:
        rest = list(operands)
        arrays, terms = [], []
        while len(rest) >= 2:
            arrays.append(_a.asarray(rest.pop(0)))
            terms.append(_letters(rest.pop(0)))
        text = ",".join(terms) + ("->" + _letters(rest[0]) if rest else "")
    inputs, result = _subscripts(text, tuple(array.ndim for array in arrays))
    return list(inputs), result, arrays


@functools.lru_cache(maxsize=128)
def _subscripts(text, ranks):
    """(letters of each operand, letters of the result) of operands of these ranks."""
    for letter in text.replace("...", "").replace("->", "").replace(",", ""):
        if letter not in _LETTERS:
            raise ValueError(f"Character {letter} is not a valid symbol.")
    inputs, arrow, result = text.partition("->")
    inputs = inputs.split(",")
    if len(inputs) != len(ranks):
        raise ValueError("Number of einsum subscripts must be equal to the number of operands.")
    unused = [letter for letter in _LETTERS if letter not in text]
    max_extra = 0
    for term, rank in zip(inputs, ranks):
        if "..." in term:
            max_extra = max(max_extra, rank - len(term.replace("...", "")))
    dots = "".join(unused[len(unused) - max_extra :])
    for i, (term, rank) in enumerate(zip(inputs, ranks)):
        named = len(term.replace("...", ""))
        if "..." in term:
            extra = rank - named
            if extra < 0:
                raise ValueError(f"einstein sum subscripts string contains too many subscripts for operand {i}")
            inputs[i] = term.replace("...", dots[max_extra - extra :])
        elif named != rank:
            raise ValueError(
                "operand has more dimensions than subscripts given in einstein sum, but no '...' ellipsis provided to "
                "broadcast the extra dimensions."
                if named < rank
                else f"einstein sum subscripts string contains too many subscripts for operand {i}"
            )
    if not arrow:
        joined = "".join(inputs)
        result = dots + "".join(
            sorted(letter for letter in set(joined) if joined.count(letter) == 1 and letter not in dots)
        )
    else:
        if dots and "..." not in result:
            raise ValueError(
                "output has more dimensions than subscripts given in einstein sum, but no '...' ellipsis provided to"
                " broadcast the extra dimensions."
            )
        result = result.replace("...", dots)
        for letter in result:
            if letter not in "".join(inputs):
                raise ValueError(
                    f"einstein sum subscripts string included output subscript '{letter}' which never appeared in an"
                    " input"
                )
            if result.count(letter) > 1:
                raise ValueError(f"einstein sum subscripts string includes output subscript '{letter}' multiple times")
    return tuple(inputs), result


def _sizes(inputs, arrays):
    sizes = {}
    for i, (term, array) in enumerate(zip(inputs, arrays)):
        for letter, n in zip(term, array.shape):
            known = sizes.setdefault(letter, n)
            if known != n and n != 1:
                if known != 1:
                    raise ValueError(
                        f"operands could not be broadcast together with remapped shapes: size of label '{letter}' for "
                        f"operand {i} ({n}) does not match previous terms ({known})."
                    )
                sizes[letter] = n
    return sizes


def _diagonal(array, term):
    """Takes diagonals over repeated letters. Returns (array, its letters, each once)."""
    once = "".join(dict.fromkeys(term))
    if len(once) == len(term):
        return array, term
    shape, strides = [], []
    for letter in once:
        axes = [i for i, other in enumerate(term) if other == letter]
        lengths = {array.shape[i] for i in axes}
        if len(lengths) > 1:
            raise ValueError(
                f"dimensions in single operand for collapsing index '{letter}' don't match ({min(lengths)} !="
                f" {max(lengths)})"
            )
        shape.append(array.shape[axes[0]])
        strides.append(sum(array.strides[i] for i in axes))
    if 0 in shape:
        return _a.zeros(tuple(shape), array.dtype), once
    return _a._as_strided(array, tuple(shape), tuple(strides)), once


def _summed_out(array, term, kept, dtype):
    """Sums over the letters that nothing else needs."""
    summed = tuple(i for i, letter in enumerate(term) if letter not in kept)
    if summed:
        array = _a.any(array, summed) if dtype.kind == "b" else _a.sum(array, summed, dtype)
        array = _a.asarray(array)
    return array, "".join(letter for letter in term if letter in kept)


def _product(sizes):
    count = 1
    for n in sizes:
        count *= n
    return count


def _pair(a, a_term, b, b_term, kept, sizes):
    """Returns (product of two operands, its letters), all letters in `kept`."""
    both = [letter for letter in a_term if letter in b_term]
    batch = [letter for letter in both if letter in kept]
    summed = [letter for letter in both if letter not in kept]
    rows = [letter for letter in a_term if letter not in b_term]
    columns = [letter for letter in b_term if letter not in a_term]
    if not summed:  # nothing to sum: a broadcast multiplication
        term = batch + rows + columns
        left = a.transpose([a_term.index(letter) for letter in batch + rows])
        right = b.transpose([b_term.index(letter) for letter in batch + columns])
        left = left.reshape(left.shape + (1,) * len(columns))
        right = right.reshape(right.shape[: len(batch)] + (1,) * len(rows) + right.shape[len(batch) :])
        return left * right, "".join(term)
    for letter in both:  # a dimension of size 1 is broadcast
        a, b = (_widened(array, term.index(letter), sizes[letter]) for array, term in ((a, a_term), (b, b_term)))
    left = a.transpose([a_term.index(letter) for letter in batch + rows + summed])
    right = b.transpose([b_term.index(letter) for letter in batch + summed + columns])
    lead = left.shape[: len(batch)]
    row_sizes = left.shape[len(batch) : len(batch) + len(rows)]
    column_sizes = right.shape[len(batch) + len(summed) :]
    count = _product(left.shape[len(batch) + len(rows) :])
    if not batch and not rows and not columns:
        return _a.asarray(_a.dot(left.reshape(count), right.reshape(count))), ""
    left = left.reshape(*lead, _product(row_sizes), count)
    right = right.reshape(*lead, count, _product(column_sizes))
    return (left @ right).reshape(lead + row_sizes + column_sizes), "".join(batch + rows + columns)


def _widened(array, axis, size):
    if array.shape[axis] == size:
        return array
    return _a.broadcast_to(array, array.shape[:axis] + (size,) + array.shape[axis + 1 :])


# ---- the most frequent forms, planned once for each shape


@functools.lru_cache(maxsize=128)
def _plan(text, shapes):
    """A function of arrays of these shapes: a sum of one operand, or a product of two. None for any other form."""
    inputs, result = _subscripts(text.replace(" ", ""), tuple(map(len, shapes)))
    sizes = {letter: n for term, shape in zip(inputs, shapes) for letter, n in zip(term, shape)}
    if any(sizes[letter] != n for term, shape in zip(inputs, shapes) for letter, n in zip(term, shape)):
        return None  # a letter has different sizes, 1 included
    if len(inputs) == 1:
        return _plan_of_sum(*inputs, result)
    letters = set("".join(inputs))
    if any(len(set(term)) < len(term) for term in inputs) or any(
        letter not in result and not all(letter in term for term in inputs) for letter in letters
    ):
        return None  # diagonals; letters of one operand that are summed
    return _plan_of_product(*inputs, result, sizes)


def _plan_of_sum(term, result):
    twice = [letter for letter in dict.fromkeys(term) if term.count(letter) > 1]
    if len(twice) == 1 and term.count(twice[0]) == 2 and twice[0] not in result:
        paired_axes = (term.index(twice[0]), term.rindex(twice[0]))
        term = term.replace(twice[0], "") + twice[0]
    elif not twice:
        paired_axes = None
    else:
        return None
    summed = tuple(i for i, letter in enumerate(term) if letter not in result)
    kept = [letter for letter in term if letter in result]
    order = [kept.index(letter) for letter in result]
    if not summed:
        return None  # a view

    def total(array):
        array = array if paired_axes is None else _a.diagonal(array, 0, *paired_axes)
        array = _a.any(array, summed) if array.dtype.kind == "b" else _a.sum(array, summed, array.dtype)
        return array if len(order) < 2 else array.transpose(order)

    return total


def _plan_of_product(a_term, b_term, result, sizes):
    """The product of `_pair` for operands that are first transposed to batch, rows, columns."""
    both = [letter for letter in a_term if letter in b_term]
    batch, summed = [letter for letter in both if letter in result], [letter for letter in both if letter not in result]
    rows, columns = (
        [letter for letter in a_term if letter not in b_term],
        [letter for letter in b_term if letter not in a_term],
    )
    if not summed or 0 in sizes.values():
        return None
    a_order, b_order = (
        [a_term.index(letter) for letter in batch + rows + summed],
        [b_term.index(letter) for letter in batch + summed + columns],
    )
    lead, row_sizes, column_sizes = (tuple(sizes[letter] for letter in letters) for letters in (batch, rows, columns))
    count = _product(sizes[letter] for letter in summed)
    a_shape, b_shape = (*lead, _product(row_sizes), count), (*lead, count, _product(column_sizes))
    if not batch:
        a_shape, b_shape = a_shape if rows else (count,), b_shape if columns else (count,)
    joined_shape, order = lead + row_sizes + column_sizes, [(batch + rows + columns).index(letter) for letter in result]
    shaped, in_order = joined_shape == a_shape[:-1] + (b_shape[-1:] if batch or columns else ()), order == sorted(order)

    def product(a, b):
        if a.dtype != b.dtype:
            loop = _a.result_type(a, b)
            a, b = a.astype(loop, copy=False), b.astype(loop, copy=False)
        array = a.transpose(a_order).reshape(a_shape) @ b.transpose(b_order).reshape(b_shape)
        array = array if shaped else array.reshape(joined_shape)
        return array if in_order else array.transpose(order)

    return product


# ---- the order of pairs


def _cost(letters, sizes):
    return _product(sizes[letter] for letter in letters)


def _needed_letters(terms, chosen, result):
    """The letters that the other operands and the result need."""
    return set(result).union(*(set(term) for i, term in enumerate(terms) if i not in chosen))


def _greedy(terms, result, sizes):
    """Pairs in greedy order: the one whose result is smallest relative to its operands; ties go to the cheaper
    product."""
    terms, path = list(terms), []
    while len(terms) > 1:
        best = None
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                letters = set(terms[i]) | set(terms[j])
                joined = letters & _needed_letters(terms, (i, j), result)
                shared = bool(set(terms[i]) & set(terms[j]))
                rank = (
                    not shared,
                    _cost(joined, sizes) - _cost(set(terms[i]), sizes) - _cost(set(terms[j]), sizes),
                    _cost(letters, sizes),
                )
                if best is None or rank < best[0]:
                    best = (rank, i, j, joined)
        _, i, j, joined = best
        path.append((i, j))
        terms = [term for k, term in enumerate(terms) if k not in (i, j)] + ["".join(sorted(joined))]
    return path


def _optimal(terms, result, sizes):
    """The order with the fewest multiplications, by exhaustive search."""
    best = (float("inf"), [])

    def walk(terms, spent, path):
        nonlocal best
        if spent >= best[0]:
            return
        if len(terms) == 1:
            best = (spent, path)
            return
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                letters = set(terms[i]) | set(terms[j])
                joined = "".join(sorted(letters & _needed_letters(terms, (i, j), result)))
                walk(
                    [term for k, term in enumerate(terms) if k not in (i, j)] + [joined],
                    spent + _cost(letters, sizes),
                    [*path, (i, j)],
                )

    walk(list(terms), 0, [])
    return best[1]


def _order(terms, result, sizes, optimize):
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path":
        path = [tuple(step) for step in optimize[1:]]
        left = len(terms) - sum(len(step) - 1 for step in path)
        if left != 1:
            raise RuntimeError(f"Invalid einsum_path is specified: {left - 1} more operands has to be contracted.")
        return path
    kind = optimize[0] if isinstance(optimize, tuple) and optimize else optimize
    if kind not in (True, False, None, "greedy", "optimal"):
        raise TypeError(f"Did not understand the path: {optimize!r}")
    if len(terms) <= 2:
        return [tuple(range(len(terms)))]
    return _optimal(terms, result, sizes) if kind == "optimal" and len(terms) <= 7 else _greedy(terms, result, sizes)


def _memory_order(order, arrays):
    """C, F or K; A is F if all operands lie so, else C."""
    order = order.upper() if isinstance(order, str) else order
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if order != "A":
        return order
    return "F" if all(array.flags.f_contiguous and not array.flags.c_contiguous for array in arrays) else "C"


def einsum(*operands, out=None, optimize=False, dtype=None, order="K", casting="safe"):
    """Sums products over the letters that the result does not name: `einsum("ij,jk->ik", a, b)`.

    More than two operands are always multiplied pairwise, in a greedy order unless `optimize` names another."""
    plain = dtype is None and out is None and order == "K" and casting == "safe"
    if 2 <= len(operands) <= 3 and plain and optimize is False and isinstance(operands[0], str):
        arrays = [_a.asarray(array) for array in operands[1:]]
        plan = _plan(operands[0], tuple([array.shape for array in arrays]))
        if plan is not None:
            return plan(*arrays)
    inputs, result, arrays = _read(operands)
    lies = _memory_order(order, arrays)
    sizes = _sizes(inputs, arrays)
    loop = _a.result_type(*arrays) if dtype is None else _a.dtype(dtype)
    for array in arrays:
        if not _a.can_cast(array.dtype, loop, casting):
            raise TypeError(
                f"Iterator operand 0 dtype could not be cast from {array.dtype!r} to {loop!r} according to the rule"
                f" '{casting}'"
            )
    plain = plain and len(arrays) == 1
    pairs = [_diagonal(array.astype(loop, copy=False), term) for array, term in zip(arrays, inputs)]
    pending = []
    for i, (array, term) in enumerate(pairs):
        needed = set(result).union(*(set(other) for j, (_, other) in enumerate(pairs) if j != i))
        pending.append(_summed_out(array, term, needed, loop))
    for step in _order([term for _, term in pending], result, sizes, optimize):
        chosen = [pending[i] for i in step]
        pending = [one for i, one in enumerate(pending) if i not in step]
        array, term = chosen[0]
        for other, other_term in chosen[1:]:
            kept = set(result).union(*(set(one) for _, one in pending), *(set(one) for _, one in chosen[2:]))
            array, term = _pair(array, term, other, other_term, kept, sizes)
        pending.append(_summed_out(array, term, set(result).union(*(set(one) for _, one in pending)), loop))
    array, term = pending[0]
    array = array.transpose([term.index(letter) for letter in result])
    shape = tuple(sizes[letter] for letter in result)
    if array.shape != shape:
        array = _a.broadcast_to(array, shape).copy()
    if out is not None:
        if isinstance(out, _a.ndarray) and not _a.can_cast(
            loop, out.dtype, "unsafe" if optimize and len(arrays) > 1 else casting
        ):
            raise TypeError(
                f"Iterator requested dtype could not be cast from {loop!r} to {out.dtype!r}, the operand"
                f" {len(arrays)} dtype, according to the rule '{casting}'"
            )
        return _finish(array.astype(out.dtype, copy=False) if isinstance(out, _a.ndarray) else array, out)
    if lies != "K":
        array = _a.asarray(array, order=lies)
    if not plain and array.ndim and any(array is one for one in arrays):
        array = array.copy()
    return array[()] if array.ndim == 0 and not plain or array.ndim == 0 and inputs[0] else array


def einsum_path(*operands, optimize="greedy", einsum_call=False):
    """Returns (the order in which `einsum` multiplies pairs, a readable table of it)."""
    inputs, result, arrays = _read(operands)
    sizes = _sizes(inputs, arrays)
    kind = optimize[0] if isinstance(optimize, tuple) and optimize and optimize[0] != "einsum_path" else optimize
    terms = ["".join(dict.fromkeys(term)) for term in inputs]
    path = [tuple(range(len(terms)))] if kind in (False, None) else _order(terms, result, sizes, optimize)
    naive = _cost(set("".join(terms)), sizes) * max(len(terms), 1)
    lines, spent, largest, left = [], 0, _cost(set(result), sizes), list(terms)
    for step in path:
        chosen = [left[i] for i in step]
        letters = set("".join(chosen))
        joined = "".join(sorted(letters & _needed_letters(left, step, result)))
        left = [term for i, term in enumerate(left) if i not in step] + [joined]
        if len(left) == 1:
            left = [result]
            joined = result
        spent += _cost(letters, sizes) * (2 if len(letters) > len(joined) else 1)
        largest = max(largest, _cost(set(joined), sizes))
        lines.append(f"{','.join(chosen)}->{joined}".rjust(24) + f"{','.join(left)}->{result}".rjust(40))
    text = (
        f"  Complete contraction:  {','.join(inputs)}->{result}\n         Naive scaling:  {len(set(''.join(terms)))}\n"
        f"      Naive FLOP count:  {float(naive):.3e}\n  Optimized FLOP count:  {float(spent):.3e}\n"
        f"  Largest intermediate:  {float(largest):.3e} elements\n" + "-" * 74 + "\n" + "\n".join(lines)
    )
    return ["einsum_path", *path], text
