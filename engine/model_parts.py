"""Models in parts: if sizes depend on values, such as the number of boxes found, the parts of a model run in turn, each
with the sizes that earlier parts determined (docs/model-format.md)."""

from vmhost.engine import _array

DAMAGED = "not a model file that this engine can run: its notes on parts are damaged; compile it again"
_MAX_SIZE = 1 << 30  # of one dimension


def sizes_of_files(data):
    """Where each of the concatenated model files begins and ends."""
    begin, found = 0, []
    while begin < len(data):
        size = int.from_bytes(data[begin + 16 : begin + 24], "little")
        end = begin + size if 128 <= size < len(data) - begin else len(data)
        found.append((begin, end))
        begin = end
    return found


class Parts:
    """`sessions` of all parts, and the `notes` in the first part's file, a dict: what the runner needs to know."""

    __slots__ = ("_counted", "_ports", "inputs", "outputs", "sessions")

    def __init__(self, notes, sessions):
        try:
            inputs, outputs, parts = notes["inputs"], notes["outputs"], notes["parts"]
            self._counted = [
                (item["part"], item["count"], item["ruler"], item["size"], item.get("most", _MAX_SIZE))
                for item in notes["counted"]
            ]
            self.sessions = tuple(sessions)
            self._ports = [_array._model_ports(session)[:2] for session in self.sessions]
            input_ports = {port[0]: port for ports, _ in reversed(self._ports) for port in ports}
            output_ports = {port[0]: port for _, ports in self._ports for port in ports}
            self.inputs = [input_ports[name] for name in inputs if name in input_ports]
            self.outputs = [output_ports[name] for name in outputs]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(DAMAGED) from error
        if parts != len(self.sessions) or len(self.inputs) != len(inputs):
            raise ValueError(DAMAGED)

    @property
    def count(self):
        return len(self.sessions)

    def run(self, model, arrays, profile=False):
        """A tuple of the outputs' arrays; with `profile` a pair of that and a list of (step, nanoseconds). ValueError:
        the model does not work at a size that was found."""
        pool = {port[0]: array for port, array in zip(self.inputs, arrays)}
        steps = []
        for number, session in enumerate(self.sessions):
            self._add_counts(model, number, pool)
            inputs, outputs = self._ports[number]
            given = tuple(pool[port[0]] for port in inputs)
            computed = _array._model_run(session, given, profile)
            if profile:
                computed, times = computed
                steps += zip(_array._model_steps(session, given), times)
            pool.update((port[0], array) for port, array in zip(outputs, computed))
        results = tuple(pool[port[0]] for port in self.outputs)
        return (results, steps) if profile else results

    def _add_counts(self, model, number, pool):
        """Adds to `pool` the rulers of what is counted before part `number`."""
        for part, count, ruler, size, limit in self._counted:
            if part == number:
                found = int(pool[count].reshape(-1)[0])
                if not 0 <= found <= limit:
                    raise ValueError(f"{model}: {size} is {found:,}, expected at most {limit:,}")
                pool[ruler] = _array.zeros((found,), "bool")

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
