"""The tape that records a function's operators, and the functions that take gradients with it."""

import sys
from types import FunctionType

from vmhost.engine import _array as _a
from vmhost.engine.grad.rows import RowGradient
from vmhost.engine.grad.rules import CONSTANT, OF_LISTS, RULES
from vmhost.engine.grad.traced import PRIMITIVES, Traced, function, highest, levels
from vmhost.engine.grad.trees import is_array, leaves, mapped

_writes = _a._writes
_PLAIN = (float, int)  # the result then has the dtype of the array
_OPERANDS = {name: one.nin for name, one in vars(_a).items() if isinstance(one, _a.ufunc)}
# Keyword arguments of ufuncs that do not affect the gradient.
_IGNORED = {"casting", "order", "subok", "device", "like"}


class NoGradientError(TypeError):
    """The gradient of an operator was needed that has none here (docs/gradients.md)."""


class Tape:
    """The recorded operators of one function call. An entry is (result, ((argument, pull), ...), name, number of writes
    into arrays until then); each is read once."""

    __slots__ = ("entries", "level", "paused")
    differentiates = True  # stop_gradient takes values off this tape

    def __init__(self):
        self.entries, self.level, self.paused = [], next(levels), False

    def apply(self, name, args, kwargs):
        if self.entries is None:
            raise NoGradientError(
                f"{name}: a traced array was used after its gradient was computed; return it from the function as a "
                "result, or keep stop_gradient(array)"
            )
        rule = None if self.paused else RULES.get(name)
        if rule is None:
            if name not in CONSTANT and not self.paused:
                raise NoGradientError(
                    f"engine.grad: no gradient through {_public(name)}; docs/gradients.md lists what has one. "
                    "stop_gradient(array) takes the value alone"
                )
            called = function(name)
            outs = [*args[called.nin :], kwargs.get("out")] if isinstance(called, _a.ufunc) else [kwargs.get("out")]
            if highest(outs) is not None:
                raise NoGradientError(f"engine.grad: {name}() cannot write into a traced array")
            return called(*self.plain(args), **{key: self.plain(one) for key, one in kwargs.items()})
        if kwargs:
            args, kwargs = self.settled(name, args, kwargs)
        if len(args) > _OPERANDS.get(name, 99):
            raise NoGradientError(f"engine.grad: {name}() of a traced array takes no out=")
        if name in OF_LISTS:
            inputs = args[0]
            value, pulls = rule(self.plain(inputs), *args[1:], **kwargs)
        else:
            inputs = args
            for one in args:
                if type(one) is list or type(one) is tuple:
                    inputs = args = self.without_lists(args)
                    break
            value, pulls = rule(
                *[one.value if type(one) is Traced and one.tape is self else one for one in args], **kwargs
            )
        notes = []
        for one, pull in zip(inputs, pulls):
            if type(one) is Traced and one.tape is self and pull is not None:
                notes.append((one, pull))
        if len(inputs) > len(pulls) and any(type(one) is Traced and one.tape is self for one in inputs[len(pulls) :]):
            raise NoGradientError(f"engine.grad: {_public(name)}() has gradients for {len(pulls)} arguments only")
        if not notes:
            return value
        if value.dtype.kind == "c":
            raise NoGradientError(f"engine.grad: {name}() returns complex numbers; gradients are of real numbers only")
        result = Traced(value, self)
        self.entries.append((result, notes, name, _writes()))
        return result

    def apply_binary(self, name, x, y):
        """The same for a binary operator, where `x` is on this tape, and `y` is on it or not traced at all."""
        both = type(y) is Traced
        if self.entries is None or self.paused or not (both or type(y) in _PLAIN):
            return self.apply(name, (x, y), {})
        rule = RULES.get(name)
        if rule is None:
            return self.apply(name, (x, y), {})
        value, (pull, other) = rule(x.value, y.value if both else y)
        result = Traced(value, self)
        notes = ((x, pull), (y, other)) if both and other is not None else ((x, pull),)
        self.entries.append((result, notes, name, _writes()))
        return result

    def leave(self, traced):
        """The plain value of a traced array that Python reads. A function of engine.numpy that does so would lose its
        gradient."""
        if not self.paused and (function := _numpys_function()) is not None:
            raise NoGradientError(
                f"engine.grad: no gradient through {function}: it reads arrays as plain numbers. "
                "stop_gradient(array) takes the value alone"
            )
        return traced.value

    def plain(self, args):
        """The arguments with arrays of this tape replaced by their values."""
        if type(args) is Traced:
            return args.value if args.tape is self else args
        if type(args) is list or type(args) is tuple:
            return type(args)([self.plain(one) for one in args])
        return args

    def without_lists(self, args):
        """The arguments with lists of traced arrays as one array each."""

        def stacked(one):
            return self.stacked(one) if type(one) in (list, tuple) and highest(one) is not None else one

        return tuple(map(stacked, args))

    def stacked(self, arrays):
        """A list of arrays of one shape, and numbers, as one array."""
        rows = [_a.asarray(self.stacked(one) if type(one) is list or type(one) is tuple else one) for one in arrays]
        return _a.concatenate([_a.reshape(one, (1, *one.shape)) for one in rows])

    def settled(self, name, args, kwargs):
        """The arguments without keywords that do not matter; a ufunc's dtype= is a cast of its arrays."""
        kwargs = {key: one for key, one in kwargs.items() if key not in _IGNORED and one is not None}
        if name == "clip":
            low, high = kwargs.pop("min", kwargs.pop("a_min", None)), kwargs.pop("max", kwargs.pop("a_max", None))
            args = (*args, low)[:2] if len(args) < 2 else args
            args = (*args, high)[:3] if len(args) < 3 else args
        if isinstance(getattr(_a, name, None), _a.ufunc):
            dtype = kwargs.pop("dtype", None)
            if kwargs.get("where") is True:
                del kwargs["where"]
            if kwargs:
                raise NoGradientError(f"engine.grad: {name}() of a traced array takes no {', '.join(kwargs)}=")
            if dtype is not None:
                args = [_a.astype(_a.asarray(one), dtype) for one in args]
        for key, one in kwargs.items():
            if type(one) is Traced:
                raise NoGradientError(f"engine.grad: {name}() takes a traced array by position only, not as {key}=")
        return args, kwargs

    def propagate(self, result, gradient):
        """Propagates the gradient to every argument that led to `result`."""
        result.gradient = gradient
        entries, now = self.entries, _writes()
        while entries:
            node, notes, name, writes = entries.pop()
            if type(node) is _Checkpoint:
                node.run(self, writes)
                continue
            g = node.gradient
            if g is None:
                continue
            node.gradient = None
            if type(g) is RowGradient:
                g = g.dense()
            if writes < now:  # else no array was written since
                _refuse_written(name, [pull for _, pull in notes], writes)
            for one, pull in notes:
                more = pull(g)
                old = one.gradient
                one.gradient = more if old is None else old + more


def _refuse_written(name, read, writes):
    """Refuses arrays that were written after the first `writes`."""
    for array in _arrays(read):
        if _writes(array) > writes:
            raise NoGradientError(
                f"engine.grad: {name}: an array of shape {array.shape} that its gradient needs was written in the "
                "meantime; write into a copy"
            )


def _arrays(one):
    """The arrays in lists and tuples, and in what functions refer to."""
    while type(one) is Traced:
        one = one.value
    if type(one) is _a.ndarray:
        yield one
    elif isinstance(one, (list, tuple)):
        for part in one:
            yield from _arrays(part)
    elif type(one) is FunctionType:
        yield from _arrays(one.__defaults__)
        for cell in one.__closure__ or ():
            try:
                yield from _arrays(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue


# These modules show values; that of others leaves the trace.
_SHOWING = ("vmhost.engine.numpy._printing", "vmhost.engine.numpy.testing")


def _numpys_function():
    """The function of engine.numpy that the program has called, if one is running."""
    frame, found = sys._getframe(2), None
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith("vmhost.engine."):
        if module in _SHOWING:
            return None
        if module.startswith("vmhost.engine.numpy."):
            found = frame.f_code.co_qualname.partition(".")[0]
        frame = frame.f_back
    return found


def _public(name):
    """The name of an operator for a message: that of the function of engine.numpy which the program has called."""
    return (name.startswith("_") and _numpys_function()) or name


class _Checkpoint:
    """The record of a checkpointed call: when its gradients are needed, the function is called again and its operators
    are recorded."""

    __slots__ = ("args", "function", "kwargs", "results")

    def __init__(self, function, args, kwargs, results):
        self.function, self.args, self.kwargs, self.results = function, args, kwargs, results

    def run(self, tape, writes):
        gradients = [one.gradient if type(one) is Traced and one.tape is tape else None for one in self.results]
        if not any(one is not None for one in gradients):
            return
        _refuse_written("checkpoint", [self.function, list(self.args), list(self.kwargs.values())], writes)
        again = [one for _, one in leaves(self.function(*self.args, **self.kwargs))]
        if len(again) != len(gradients):
            raise ValueError("checkpoint: the function has returned something else when it was called again")
        for one, before, gradient in zip(again, self.results, gradients):
            if gradient is not None:
                before.gradient = None
                if type(one) is Traced and one.tape is tape:
                    old = one.gradient
                    one.gradient = gradient if old is None else old + gradient


def checkpoint(function):
    """`function`, with its intermediate results recomputed for the gradient instead of kept: trades time for memory. It
    must return arrays, or trees (dicts, lists, tuples) of them, and the same each time."""

    def checkpointed(*args, **kwargs):
        tape = _tape_of(args, kwargs, function)
        if tape is None or tape.paused:
            return function(*args, **kwargs)
        writes = _writes()
        tape.paused = True
        try:
            result = function(*args, **kwargs)
        finally:
            tape.paused = False
        result = mapped(lambda one: _recorded(tape, one), result)
        results = [one for _, one in leaves(result)]
        tape.entries.append((_Checkpoint(function, args, kwargs, results), None, "checkpoint", writes))
        return result

    return checkpointed


_LEAVES = (bool, int, float, complex, str, bytes)


def _recorded(tape, value):
    value = tape.plain(value)
    if is_array(value) or type(value) is Traced:
        return Traced(value, tape) if value.dtype.kind == "f" else value
    if not isinstance(value, _LEAVES):
        raise NoGradientError(
            f"checkpoint: the function has returned {type(value).__name__}, in which gradients would be lost; expected "
            "arrays, or dicts, lists and tuples of them"
        )
    return value


_open = []  # active tapes of this interpreter, for checkpoint() of functions that read traced arrays from a closure


def _tape_of(args, kwargs, function):
    found = None

    def look(leaf):
        nonlocal found
        if type(leaf) is Traced and (found is None or leaf.tape.level > found.level):
            found = leaf.tape

    mapped(look, [list(args), dict(kwargs)])
    return found if found is not None else next((tape for tape in reversed(_open) if tape.entries is not None), None)


def stop_gradient(x):
    """The value of `x`, a constant for every gradient. For a tree, the tree of values."""
    return mapped(_value, x)


def _value(leaf):
    while type(leaf) is Traced and leaf.tape.differentiates:
        leaf = leaf.value
    return leaf


def value_and_grad(f, argnums=0):
    """A function that returns (value of f, gradient) for the arguments of `f`.

    `f` returns a float array of one element, the loss, or a tuple whose first item is the loss; further items are
    returned with the value. `argnums`: the positional argument to differentiate, or a tuple of them, then the gradient
    is a tuple. Such an argument is an array, a float, or a tree (dict, list, tuple) of them; its gradient has the same
    structure, with None for leaves that are not floats. Tables of which rows were read by index (`table[ids]`,
    `take(table, ids, 0)`) and that were used in no other way get a RowGradient.
    """
    several = not isinstance(argnums, int)
    numbers = tuple(argnums) if several else (argnums,)

    def with_gradient(*args, **kwargs):
        tape = Tape()
        given = list(args)
        count = len(args)
        for number in numbers:
            if not -count <= number < count:
                raise ValueError(f"argnums: {number}, but the function was called with {count} arguments by position")
            given[number] = _watched(tape, args[number], number)
        _open.append(tape)
        try:
            result = f(*given, **kwargs)
            loss = result[0] if isinstance(result, tuple) else result
            if type(loss) is Traced and loss.tape is tape:
                if loss.size != 1 or loss.dtype.kind != "f":
                    raise ValueError(
                        f"the function gives an array of shape {loss.shape} and dtype {loss.dtype}; a gradient is of "
                        "one float: take its sum() or mean()"
                    )
                value = loss.value
                tape.propagate(loss, _a.ones(value.shape, value.dtype))
            elif not (is_array(loss) or type(loss) in (Traced, float, int)):
                raise TypeError(f"the function gives {type(loss).__name__}; a gradient is of one float in an array")
            result = _without(tape, result)
            seen = set()
            gradients = tuple([_gradients(given[number], seen) for number in numbers])
        finally:
            tape.entries = None
            _open.remove(tape)
        return result, gradients if several else gradients[0]

    return with_gradient


def grad(f, argnums=0):
    """Like value_and_grad, returning the gradient only."""
    both = value_and_grad(f, argnums)

    def gradient(*args, **kwargs):
        return both(*args, **kwargs)[1]

    return gradient


def _watched(tape, tree, number):
    if type(tree) is _a.ndarray and tree.dtype.kind == "f":
        return Traced(tree, tape)

    def watch(leaf):
        if type(leaf) is float:
            leaf = _a.asarray(leaf)
        if (is_array(leaf) or type(leaf) is Traced) and leaf.dtype.kind == "f":
            return Traced(leaf, tape)
        return leaf

    if is_array(tree) or type(tree) in (float, Traced):
        watched = watch(tree)
    else:
        watched = mapped(watch, tree)
    if type(watched) is not Traced and (is_array(watched) or isinstance(watched, (int, complex))):
        kind = watched.dtype if is_array(watched) else type(watched).__name__
        raise TypeError(f"argnums: argument {number} is {kind}; gradients are of float arrays")
    return watched


def _gradient(leaf, seen):
    """The leaf's gradient, in memory of its own: it may be changed in place. `seen`: ids of the arrays given out."""
    if type(leaf) is not Traced:
        return None
    g, value = leaf.gradient, leaf.value
    leaf.gradient = None
    if g is None:
        return _a.zeros(value.shape, value.dtype)
    array = g.rows if type(g) is RowGradient else g
    if type(array) is _a.ndarray:
        if id(array) in seen or not _a._alone(array):
            return RowGradient(g.ids, array.copy(), g.shape) if type(g) is RowGradient else g.copy()
        seen.add(id(array))
    return g


def _gradients(watched, seen):
    return _gradient(watched, seen) if type(watched) is Traced else mapped(lambda leaf: _gradient(leaf, seen), watched)


def _without(tape, result):
    if type(result) is Traced and result.tape is tape:
        return result.value

    def plain(leaf):
        return leaf.value if type(leaf) is Traced and leaf.tape is tape else leaf

    return plain(result) if type(result) is Traced else mapped(plain, result)


__all__ = ["PRIMITIVES", "NoGradientError", "Tape", "checkpoint", "grad", "stop_gradient", "value_and_grad"]
