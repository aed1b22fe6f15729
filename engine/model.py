"""Model: a network compiled from ONNX that is ready to run, its inputs and outputs, and the steps of its runs."""

from vmhost.engine import _array

_TYPES = {"float32": "float", "float64": "double", "str": "string"}  # ONNX's names, if they differ


class Port:
    """An input or output of a model: its `name`, `dtype` and `shape`. A size that each call chooses is its name in the
    ONNX model, a str; in outputs it may be an expression of such sizes, e.g. "2*batch + 1".

    Texts have the dtype "str": nested lists of str, in that shape. An output with `labels`, a tuple of them, is a list
    with a dict for each row: labels to numbers of that dtype. An output with `items`, a tuple of Ports, is a list of
    what these describe; `shape` is theirs if all have the same, else ()."""

    __slots__ = ("name", "dtype", "shape", "labels", "items")

    def __init__(self, name, dtype, shape, labels=None, items=None):
        self.name, self.dtype, self.shape, self.labels, self.items = name, dtype, shape, labels, items

    @property
    def type(self):
        """The type as ONNX Runtime names it: "tensor(float)"."""
        if self.items is not None:
            return f"seq({self.items[0].type})"
        of_numbers = f"tensor({_TYPES.get(str(self.dtype), self.dtype)})"
        if self.labels is None:
            return of_numbers
        return f"seq(map({'string' if isinstance(self.labels[0], str) else 'int64'},{of_numbers}))"

    def __repr__(self):
        labels = "" if self.labels is None else f", labels={self.labels!r}"
        return f"Port(name={self.name!r}, dtype={self.dtype!r}, shape={self.shape!r}{labels})"


class Step:
    """A step of a model: its node's `name`, the operator's `kind`, the `algorithm` ("" if there is only one), `dtype`
    and `shape` of its result, the number of `products` (of convolutions and matrix products), the `bytes` that it reads
    and writes, the `expected_ms` on one core, and in a profile the measured `ms`."""

    __slots__ = ("name", "kind", "algorithm", "dtype", "shape", "products", "bytes", "expected_ms", "ms")

    def __init__(self, name, kind, algorithm, dtype, shape, products, size, expected_ns, ms=None):
        self.name, self.kind, self.algorithm, self.dtype, self.shape = name, kind, algorithm, dtype, shape
        self.products, self.bytes, self.expected_ms, self.ms = products, size, expected_ns / 1e6, ms

    def __repr__(self):
        return f"Step({', '.join(f'{field}={getattr(self, field)!r}' for field in self.__slots__)})"


class Model:
    """A model, ready to run: `model({"input": x})` returns `{"output": y}`. `inputs` and `outputs` are tuples of Port.

    Its arena is allocated when it is opened, and charged to the owner who opened it. If sizes are open, the arrays of a
    call determine them: the first call with new sizes plans its steps and arena, and the last eight plans are cached.
    """

    __slots__ = ("name", "inputs", "outputs", "_continued", "_input_names", "_parts", "_session", "_texts")

    def __init__(self, name, session, part=None):
        """`part`, for a model in parts (engine/model_parts.py): a function from a part's number to its session."""
        self.name = name
        self._session = session
        *ports, continued, notes = _array._model_ports(session)
        self._texts = self._parts = None
        if notes:
            from vmhost.engine import model_texts

            found = model_texts.read(notes)
            if "parts" in found:
                from vmhost.engine.model_parts import Parts

                count = found["parts"].get("parts") if isinstance(found["parts"], dict) else 0
                further = [] if part is None or not isinstance(count, int) else map(part, range(1, min(count, 64)))
                self._parts = Parts(found["parts"], [session, *further])
                ports = self._parts.inputs, self._parts.outputs
        self.inputs, self.outputs = (tuple(Port(*port) for port in group) for group in ports)
        self._continued = () if self._parts is not None else continued
        if notes and found.keys() - {"parts"}:
            self._texts = model_texts.Texts(found, self.inputs, self.outputs)
            if "sequences" in found:
                self.outputs, self._continued = self._texts.outputs(), ()
        plain = self._parts is None and all(port.dtype != "str" for port in self.inputs)
        self._input_names = tuple(port.name for port in self.inputs) if plain else None

    def __call__(self, inputs, out=None):
        """The outputs by name. `inputs` maps each input's name to an array of its dtype and shape; `out` maps names of
        outputs to arrays that receive them.

        An array may be both an input and the output that continues it (`continued`): then it is updated in place.
        TypeError and ValueError name the input that is missing, unknown, or has a wrong dtype or shape, or the open
        sizes at which the model does not work."""
        return self._named(self._run(self._arrays(inputs), self._targets(out)))

    @property
    def continued(self):
        """{output: input} for outputs that continue an input of the same shape, as a decoder's caches do."""
        pairs = zip(self.outputs, self._continued)
        return {port.name: self.inputs[number].name for port, number in pairs if number is not None}

    def _run(self, arrays, out=None):
        if self._parts is not None:
            return self._parts.run(self.name, arrays)
        return _array._model_run(self._session, arrays, False, out)

    def _targets(self, out):
        """The `out` argument of _model_run, or None."""
        if not out:
            return None
        if self._parts is not None or self._texts is not None:
            raise ValueError(
                f"{self.name}: out: a model with texts or lists, or in parts, writes to arrays of its own only"
            )
        known = {port.name for port in self.outputs}
        for name in out:
            if name not in known:
                raise ValueError(f"{self.name}: out: there is no output {name!r}")
        return tuple(_array.asarray(out[port.name]) if port.name in out else None for port in self.outputs)

    def run(self, inputs, feed=None, run_options=None, *, profile=False):
        """Like calling the model; with `profile` a pair of the outputs and a tuple of Steps, in the order in which they
        ran, with their times in `ms`.

        run(names, feed) is compatible with ONNX Runtime's InferenceSession: a list of the outputs with these names, of
        all outputs if `names` is None. `run_options` must be None."""
        if feed is not None or inputs is None:
            return self._listed(inputs, feed, run_options)
        if not profile:
            return self(inputs)
        arrays = self._arrays(inputs)
        if self._parts is not None:
            results, steps = self._parts.run(self.name, arrays, profile=True)
            return self._named(results), tuple(Step(*step, time / 1e6) for step, time in steps)
        results, times = _array._model_run(self._session, arrays, True)
        return self._named(results), tuple(
            Step(*step, time / 1e6) for step, time in zip(_array._model_steps(self._session, arrays), times)
        )

    def _listed(self, names, feed, run_options):
        if run_options is not None:
            raise TypeError(f"{self.name}: run_options: expected None; options of runs are those of engine.load")
        if feed is None:
            raise TypeError(f"{self.name}: run(names, feed): the feed is missing; expected {self._names()}")
        if isinstance(names, str):
            raise TypeError(f"{self.name}: run(names, feed): expected a list of names or None, got {names!r}")
        outputs = [port.name for port in self.outputs]
        names = outputs if names is None else list(names)
        for name in names:
            if name not in outputs:
                raise ValueError(f"{self.name}: there is no output {name!r}; expected {', '.join(map(repr, outputs))}")
        found = self(feed)
        return [found[name] for name in names]

    def get_inputs(self):
        """The inputs as ONNX Runtime's InferenceSession returns them: a list of objects with `name`, `type` and
        `shape`, a list in which open sizes are their names."""
        return [Port(port.name, port.dtype, list(port.shape), port.labels) for port in self.inputs]

    def get_outputs(self):
        """The same for the outputs."""
        return [Port(port.name, port.dtype, list(port.shape), port.labels, port.items) for port in self.outputs]

    def warmup(self, sizes=None):
        """Runs once on zeros, so that the first real run finds its plan, memory and helper threads ready. `sizes` maps
        names of open sizes to numbers; the others are 1."""
        shapes = self.shapes_at(sizes)
        zeros = (
            _array.zeros(shapes[port.name], "int64" if port.dtype == "str" else port.dtype) for port in self.inputs
        )
        self._run(tuple(zeros))

    def shapes_at(self, sizes=None):
        """The inputs' shapes by name, with open sizes taken from the mapping `sizes`; the others are 1.

        ValueError names the open sizes if one is unknown.
        """
        sizes, known = sizes or {}, {size for port in self.inputs for size in port.shape if isinstance(size, str)}
        for name in sizes:
            if name not in known:
                raise ValueError(
                    f"{self.name}: there is no open size {name!r}; expected"
                    f" {', '.join(map(repr, sorted(known))) or 'none: all are fixed'}"
                )
        return {
            port.name: tuple(sizes.get(size, 1) if isinstance(size, str) else size for size in port.shape)
            for port in self.inputs
        }

    def session(self, number):
        """The session of that part; ValueError: no such part."""
        sessions = (self._session,) if self._parts is None else self._parts.sessions
        if number >= len(sessions):
            raise ValueError(f"{self.name} has {len(sessions)} parts, no number {number}")
        return sessions[number]

    @property
    def parts(self):
        """The number of parts, which run in turn: more than one if sizes depend on values."""
        return 1 if self._parts is None else self._parts.count

    @property
    def steps(self):
        """The steps of a run, as a tuple of Steps without times; shapes of open sizes are small examples."""
        found = _array._model_steps(self._session) if self._parts is None else self._parts.steps()
        return tuple(Step(*step) for step in found)

    @property
    def backends(self):
        """The candidate backends, as a dict of the expected milliseconds of a run on one core with each, in ascending
        order: the first one is the model's."""
        found = _array._model_backends(self._session) if self._parts is None else self._parts.backends()
        ordered = sorted(found, key=lambda backend: not backend[2])
        return {name: ns / 1e6 for name, ns, _ in ordered}

    def _array(self, port, value):
        try:
            return _array.asarray(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{self.name}: input {port.name!r}: {error}") from error

    def _arrays(self, inputs):
        if self._input_names is not None:
            arrays = _array._model_arrays(self._session, self._input_names, inputs)
            if arrays is not None:
                return arrays
        if not hasattr(inputs, "keys"):
            raise TypeError(
                f"{self.name}: expected a mapping of names to arrays, with {self._names()}, got a"
                f" {type(inputs).__name__}"
            )
        arrays, sizes = [], {}
        for port in self.inputs:
            if port.name not in inputs:
                raise ValueError(f"{self.name}: input {port.name!r} is missing; expected {self._names()}")
            if port.dtype == "str":
                array = self._texts.numbers(self.name, port, inputs[port.name])
            else:
                array = self._array(port, inputs[port.name])
            if port.dtype != "str" and array.dtype != port.dtype:
                raise TypeError(
                    f"{self.name}: input {port.name!r}: expected {port.dtype}, got {array.dtype}; convert it with"
                    " astype"
                )
            if array.shape != port.shape and not self._fits(port, array.shape, sizes):
                raise ValueError(
                    f"{self.name}: input {port.name!r}: expected shape {_text(port.shape)}{_where(sizes, port)}, got"
                    f" {array.shape}"
                )
            arrays.append(array)
        if len(inputs) != len(arrays):
            known = {port.name for port in self.inputs}
            for unknown in inputs:
                if unknown not in known:
                    raise ValueError(f"{self.name}: there is no input {unknown!r}; expected {self._names()}")
        return tuple(arrays)

    def _fits(self, port, shape, sizes):
        """Whether the shape fits the port; `sizes` holds the open sizes known so far, and receives those that a fitting
        shape determines."""
        if len(shape) != len(port.shape):
            return False
        new = None
        for wanted, size in zip(port.shape, shape):
            if wanted == size:
                continue
            if not isinstance(wanted, str):
                return False
            known = sizes.get(wanted)
            if known is None:
                new = {} if new is None else new
                known = new.setdefault(wanted, size)
            if known != size:
                return False
        if new is not None:
            sizes.update(new)
        return True

    def _named(self, arrays):
        if self._texts is not None:
            return self._texts.decoded(self.outputs, arrays)
        return {port.name: array for port, array in zip(self.outputs, arrays)}

    def _names(self):
        return ", ".join(repr(port.name) for port in self.inputs)

    def __repr__(self):
        return f"<engine model {self.name!r}: {self._names()} -> {', '.join(repr(port.name) for port in self.outputs)}>"


def _text(shape):
    """A shape as a tuple is shown, with the names of open sizes unquoted."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _where(sizes, port):
    """The sizes that other inputs determined, for an error about this one."""
    known = [f"{name} = {sizes[name]}" for name in port.shape if name in sizes]
    return f" with {', '.join(known)}" if known else ""
