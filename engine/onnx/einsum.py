"""Reader of Einsum: contracts operands in pairs, by a matrix product if letters are summed, else elementwise."""

import math
import string

from .lowering import Lowering
from .readers import Unsupported, reads

_MIN_READS = 4  # number of reads that makes a copy worthwhile


def _terms(equation, ranks):
    """The letters of each operand and of the result; an ellipsis is expanded to unused capital letters."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"has {len(ranks)} operands, {equation!r} names {len(terms)}")
    free = [letter for letter in string.ascii_letters[::-1] if letter not in equation]
    for number, (term, rank) in enumerate(zip(terms, ranks)):
        count = rank - len(term.replace("...", ""))
        terms[number] = term.replace("...", "".join(free[:count][::-1]))
        if len(terms[number]) != rank:
            raise Unsupported(f"has an operand of {rank} dimensions for {term!r}")
    ellipsis_rank = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(left.split(","), ranks) if "..." in term), default=0
    )
    ellipsis = "".join(free[:ellipsis_rank][::-1])
    single_letters = "".join(sorted(letter for letter in set(left) - set(".,") if left.count(letter) == 1))
    return terms, right.replace("...", ellipsis) if arrow else ellipsis + single_letters


def _diagonal(add, name, term):
    """Merges repeated letters into one dimension, the diagonal."""
    letters = "".join(dict.fromkeys(term))
    if letters == term:
        return name, term
    view, shape = add.network.as_view(name), add.shape(name)
    strides = [sum(stride for stride, other in zip(view.strides, term) if other == letter) for letter in letters]
    sizes = [shape[term.index(letter)] for letter in letters]
    add.network.need_broadcast(shape, [shape[term.index(letter)] for letter in term])
    return add.network.view(add.fresh("diagonal"), name, sizes, strides, view.offset), letters


def _summed(add, name, term, kept):
    """Sums over the letters that are not kept."""
    axes = [d for d, letter in enumerate(term) if letter not in kept]
    if not axes:
        return name, term
    left = "".join(letter for letter in term if letter in kept)
    return add.reshape(add.reduce("sum", name, axes), [add.shape(name)[term.index(letter)] for letter in left]), left


def _ordered(add, name, term, letters):
    """Transposes to the wanted letters; a missing letter gets size 1."""
    order = [term.index(letter) for letter in letters if letter in term]
    transposed = name if order == list(range(len(order))) else add.transpose(name, order)
    sizes = [add.shape(name)[term.index(letter)] if letter in term else 1 for letter in letters]
    return transposed if tuple(sizes) == add.shape(transposed) else add.reshape(transposed, sizes)


def _dense_if_reread(add, name, count):
    """A dense copy of a tensor that is read often to compute `count` elements; else the tensor itself."""
    return name if add.network.is_dense(name) or math.prod(add.shape(name)) * _MIN_READS > count else add.copy(name)


def _joined(add, a, a_letters, b, b_letters, kept):
    """Returns (product of both, summed over the common letters that are not kept; its letters)."""
    shared = [letter for letter in a_letters if letter in b_letters]
    summed, batch = [letter for letter in shared if letter not in kept], [letter for letter in shared if letter in kept]
    sizes = {
        letter: size
        for term, name in ((b_letters, b), (a_letters, a))
        for letter, size in zip(term, add.shape(name))
        if size != 1
    }
    rows, columns = (
        [letter for letter in a_letters if letter not in shared],
        [letter for letter in b_letters if letter not in shared],
    )
    letters = "".join((*batch, *rows, *columns))
    uneven = any(add.shape(a)[a_letters.index(letter)] != add.shape(b)[b_letters.index(letter)] for letter in shared)
    if not summed:
        sides = [_ordered(add, a, a_letters, letters), _ordered(add, b, b_letters, letters)]
        element_count = math.prod(sizes.get(letter, 1) for letter in letters)
        return add.do("multiply", *(_dense_if_reread(add, side, element_count) for side in sides)), letters
    if uneven:  # a dimension of size 1 is broadcast: multiply elementwise
        all_letters = letters + "".join(summed)
        product = add.do("multiply", _ordered(add, a, a_letters, all_letters), _ordered(add, b, b_letters, all_letters))
        return _summed(add, product, all_letters, letters)

    def count(group):
        return math.prod(sizes.get(letter, 1) for letter in group)

    outer = [sizes.get(letter, 1) for letter in batch]
    first = add.reshape(_ordered(add, a, a_letters, (*batch, *rows, *summed)), (*outer, count(rows), count(summed)))
    second = add.reshape(
        _ordered(add, b, b_letters, (*batch, *summed, *columns)), (*outer, count(summed), count(columns))
    )
    return add.reshape(add.matmul(first, second), [sizes.get(letter, 1) for letter in letters]), letters


@reads("Einsum")
def einsum(reader, node):
    add, names = Lowering(reader, node), list(node.inputs)
    terms, result = _terms(node.get("equation"), [len(add.shape(name)) for name in names])
    operands = [_diagonal(add, name, term) for name, term in zip(names, terms)]
    for number, (name, term) in enumerate(operands):
        other_letters = "".join(other for index, (_, other) in enumerate(operands) if index != number)
        operands[number] = _summed(add, name, term, result + other_letters)
    product, letters = operands[0]
    for number, (name, term) in enumerate(operands[1:], 1):
        later_letters = "".join(other for _, other in operands[number + 1 :])
        product, letters = _joined(add, product, letters, name, term, result + later_letters)
    product, letters = _summed(add, product, letters, result)
    add.done(_ordered(add, product, letters, result))
