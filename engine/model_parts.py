"""Models in parts: if sizes depend on values, such as the number of boxes found, the parts of a model run in turn, each
with the sizes that earlier parts determined (docs/model-format.md)."""

from vmhost.engine import _array

DAMAGED = "not a model file that this engine can run: its notes on parts are damaged; compile it again"
_LARGEST = 1 << 30  # of a size


def sizes_of_files(data):
    """Where each of the concatenated model files begins and ends."""
    at, found = 0, []
    while at < len(data):
        size = int.from_bytes(data[at + 16 : at + 24], "little")
        end = at + size if 128 <= size < len(data) - at else len(data)
        found.append((at, end))
        at = end
    return found


class Parts:
    """`sessions` of all parts, and the `notes` in the first part's file, a dict: what the runner needs to know."""

    __slots__ = ("_counted", "_empty", "_ports", "inputs", "outputs", "sessions")

    def __init__(self, notes, sessions):
        try:
            inputs, outputs, parts = notes["inputs"], notes["outputs"], notes["parts"]
            self._counted = [
                (item["part"], item["count"], item["ruler"], item["size"], item.get("most", _LARGEST))
                for item in notes["counted"]
            ]
            self._empty = notes["empty"]
            self.sessions = tuple(sessions)
            self._ports = [_array._model_ports(session)[:2] for session in self.sessions]
            given = {port[0]: port for some, _ in reversed(self._ports) for port in some}
            made = {port[0]: port for _, some in self._ports for port in some}
            self.inputs = [given[name] for name in inputs if name in given]
            self.outputs = [made[name] for name in outputs]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(DAMAGED) from error
        if parts != len(self.sessions) or len(self.inputs) != len(inputs):
            raise ValueError(DAMAGED)

    @property
    def count(self):
        return len(self.sessions)

    def run(self, model, arrays, profile=False):
        """A tuple of the outputs' arrays; with `profile` a pair of that and a list of (step, nanoseconds). ValueError:
        a size is 0, and an output is computed from it."""
        pool = {port[0]: array for port, array in zip(self.inputs, arrays)}
        nothing, steps = set(), []
        for number, session in enumerate(self.sessions):
            self._count(model, number, pool, nothing)
            inputs, outputs = self._ports[number]
            given = tuple(pool[port[0]] for port in inputs)
            made = _array._model_run(session, given, profile)
            if profile:
                made, times = made
                steps += zip(_array._model_steps(session, given), times)
            pool.update((port[0], array) for port, array in zip(outputs, made))
        self._count(model, self.count, pool, nothing)
        results = tuple(self._without(model, port[0], pool[port[0]], nothing) for port in self.outputs)
        return (results, steps) if profile else results

    def _count(self, model, number, pool, nothing):
        """Adds to `pool` the rulers of what is counted before part `number`, and to `nothing` the sizes that are 0."""
        for part, count, ruler, size, most in self._counted:
            if part == number:
                found = int(pool[count].reshape(-1)[0])
                if not 0 <= found <= most:
                    raise ValueError(f"{model}: {size} is {found:,}, expected at most {most:,}")
                if found == 0:
                    nothing.add(size)
                pool[ruler] = _array.zeros((max(found, 1),), "bool")

    def _without(self, model, name, array, nothing):
        """The output if these sizes are 0: parts ran as if they were 1."""
        for size, axes in self._empty.get(name, {}).items():
            if size in nothing:
                if axes is None:
                    raise ValueError(f"{model}: {size} is 0, and the output {name!r} is made of what it counts")
                array = array[tuple(slice(0 if d in axes else None) for d in range(array.ndim))]
        return array

    def steps(self):
        """Steps of all parts, at small sizes."""
        return [step for session in self.sessions for step in _array._model_steps(session)]

    def backends(self):
        """The backends, as _model_backends returns them, summed over all parts."""
        totals = {}
        for session in self.sessions:
            for name, ns, chosen in _array._model_backends(session):
                total, own = totals.get(name, (0.0, chosen))
                totals[name] = (total + ns, own)
        return [(name, ns, chosen) for name, (ns, chosen) in totals.items()]
