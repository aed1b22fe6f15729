"""Ufuncs composed of a few operators each, with out=, where= and dtype=, and the methods reduce, accumulate, outer,
reduceat and at."""

from vmhost.engine import _array as _a


class Composite:
    """An elementwise function of `nin` arrays with `nout` results, computed by a Python function over the engine's
    operators."""

    __slots__ = ("_compute", "__name__", "__dict__", "nin", "nout", "nargs", "identity")

    def __init__(self, compute, nin, nout=1, identity=None, name=None):
        self._compute, self.__name__, self.__doc__ = compute, name or compute.__name__.strip("_"), compute.__doc__
        self.nin, self.nout, self.nargs, self.identity = nin, nout, nin + nout, identity

    def __repr__(self):
        return f"<ufunc '{self.__name__}'>"

    def __call__(self, *args, **options):
        if options or len(args) != self.nin:
            return self._called(args, **options)
        result = self._compute(*args)
        if self.nout == 1:
            return result if result.ndim else result[()]
        first, second = result
        return (first if first.ndim else first[()], second if second.ndim else second[()])

    def _called(self, args, out=None, where=True, casting="same_kind", order="K", dtype=None, subok=True):
        inputs, outputs = args[: self.nin], args[self.nin :]
        if len(inputs) < self.nin or len(outputs) > self.nout:
            raise TypeError(
                f"{self.__name__}() takes from {self.nin} to {self.nargs} positional arguments but {len(args)} were"
                " given"
            )
        if outputs and out is not None:
            raise TypeError("cannot specify 'out' as both a positional and keyword argument")
        if out is not None:
            outputs = out if isinstance(out, tuple) else (out,)
        if dtype is not None:
            inputs = [self._cast(one, dtype) for one in inputs]
        results = self._compute(*inputs)
        if self.nout == 1:
            results = (results,)
        if outputs or where is not True:
            outputs = tuple(outputs) + (None,) * (self.nout - len(outputs))
            results = tuple(self._written(one, into, where, casting) for one, into in zip(results, outputs))
        else:
            results = tuple(one if one.ndim else one[()] for one in results)
        return results[0] if self.nout == 1 else results

    def _cast(self, operand, dtype):
        array = _a.asarray(operand)
        if not isinstance(operand, (bool, int, float, complex)) and not _a.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast ufunc '{self.__name__}' input from {array.dtype!r} to {_a.dtype(dtype)!r} with casting"
                " rule 'same_kind'"
            )
        return array.astype(dtype, copy=False)

    def _written(self, result, out, where, casting):
        if out is None:
            from vmhost.engine.numpy._shapes import broadcast_shapes

            out = _a.zeros(
                result.shape if where is True else broadcast_shapes(result.shape, _a.asarray(where).shape), result.dtype
            )
        elif not _a.can_cast(result.dtype, out.dtype, casting):
            raise TypeError(
                f"Cannot cast ufunc '{self.__name__}' output from {result.dtype!r} to {out.dtype!r} with casting rule"
                f" '{casting}'"
            )
        out[...] = result if where is True else _a.where(where, result, out)
        return out

    def reduce(self, *args, **kwargs):
        from vmhost.engine.numpy._ufuncs import reduce

        return reduce(self, *args, **kwargs)

    def accumulate(self, *args, **kwargs):
        from vmhost.engine.numpy._ufuncs import accumulate

        return accumulate(self, *args, **kwargs)

    def outer(self, *args, **kwargs):
        from vmhost.engine.numpy._ufuncs import outer

        return outer(self, *args, **kwargs)

    def reduceat(self, *args, **kwargs):
        from vmhost.engine.numpy._ufuncs import reduceat

        return reduceat(self, *args, **kwargs)

    def at(self, *args, **kwargs):
        from vmhost.engine.numpy._ufuncs import at

        return at(self, *args, **kwargs)


def floating(x):
    """`x` as a floating-point array; integers are cast to the dtype that a ufunc computes them in."""
    x = _a.asarray(x)
    if x.dtype.kind in "biu":
        x = x.astype({1: _a.float16, 2: _a.float32}.get(x.itemsize, _a.float64))
    return x


def promoted(x1, x2):
    """Both operands as arrays of their common dtype; Python numbers adopt the other's dtype (NEP 50)."""
    x1, x2 = (x if isinstance(x, (int, float, complex)) else _a.asarray(x) for x in (x1, x2))
    dtype = _a.result_type(x1, x2)
    return _a.asarray(x1, dtype), _a.asarray(x2, dtype)
