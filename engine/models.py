"""Models: what tools/compile_cloud.py made of ONNX, run by the engine. `engine.load` is the way in.

In a VM a task opens the models of its own bundle by name; the host has prepared them when it loaded the bundle, and all VMs share
their weights. Elsewhere a model is read from its file.
"""

from engine import _array


class Port:
    """An input or output of a model: its `name`, `dtype` and `shape`."""

    __slots__ = ("name", "dtype", "shape")

    def __init__(self, name, dtype, shape):
        self.name, self.dtype, self.shape = name, dtype, shape

    def __repr__(self):
        return f"Port(name={self.name!r}, dtype={self.dtype!r}, shape={self.shape!r})"


class Model:
    """A model, ready to run: `model({"input": x})` gives `{"output": y}`. `inputs` and `outputs` are tuples of Port.

    Its arena is allocated when it is opened, and paid for by who opened it.
    """

    __slots__ = ("name", "inputs", "outputs", "_session")

    def __init__(self, name, session):
        self.name = name
        self._session = session
        self.inputs, self.outputs = (tuple(Port(*port) for port in ports) for ports in _array._model_ports(session))

    def __call__(self, inputs):
        """The outputs by name. `inputs` maps each input's name to an array of its dtype and shape.

        TypeError and ValueError name the input that is missing, unknown, or of another dtype or shape.
        """
        arrays = []
        for port in self.inputs:
            if port.name not in inputs:
                raise ValueError(f"{self.name}: input {port.name!r} is missing; expected {self._names()}")
            array = _array.asarray(inputs[port.name])
            if array.dtype != port.dtype:
                raise TypeError(f"{self.name}: input {port.name!r}: expected {port.dtype}, got {array.dtype}; convert it with astype")
            if array.shape != port.shape:
                raise ValueError(f"{self.name}: input {port.name!r}: expected shape {port.shape}, got {array.shape}")
            arrays.append(array)
        if len(inputs) != len(arrays):
            unknown = next(name for name in inputs if all(name != port.name for port in self.inputs))
            raise ValueError(f"{self.name}: there is no input {unknown!r}; expected {self._names()}")
        made = _array._model_run(self._session, tuple(arrays))
        return {port.name: array for port, array in zip(self.outputs, made)}

    def _names(self):
        return ", ".join(repr(port.name) for port in self.inputs)

    def __repr__(self):
        return f"<engine model {self.name!r}: {self._names()} -> {', '.join(repr(port.name) for port in self.outputs)}>"


def load(name):
    """The Model `name` of the task's bundle; outside a VM, the one in the model file at the path `name`.

    LookupError lists the models that there are; ValueError says what is wrong with a file.
    """
    names = _array._model_names()
    if names is None:
        with open(name, "rb") as file:
            return Model(str(name), _array._model_open(file.read()))
    if name not in names:
        raise LookupError(f"this task's bundle has no model {name!r}; it has {', '.join(names) or 'none'} (task.yaml, models)")
    return Model(name, _array._model_open(name))
