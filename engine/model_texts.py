"""Inputs and outputs of models that are no arrays: texts, which are numbers of its vocabulary inside a model, rows with
labels, and lists of arrays (docs/model-format.md)."""

import json

from vmhost.engine import _array

_UNKNOWN = -1  # the number of an unknown text
_DAMAGED = "not a model file that this engine can run: its notes on ports are damaged; compile it again"


class Texts:
    """The notes of a model's file on texts. Ports of texts get the dtype "str", those of rows with labels their
    `labels`."""

    __slots__ = ("_vocabulary", "_numbers", "_sequences", "_tensors")

    def __init__(self, found, inputs, outputs):
        """`found`: the result of `read`."""
        self._vocabulary = found.get("vocabulary", [])
        self._numbers = {text: number for number, text in enumerate(self._vocabulary)}
        for ports, key in ((inputs, "text_inputs"), (outputs, "text_outputs")):
            for port in ports:
                if port.name in found.get(key, ()):
                    port.dtype = "str"
        for port in outputs:
            labels = found.get("labels", {}).get(port.name)
            if labels is not None and (len(port.shape) != 2 or len(labels) != port.shape[1]):
                raise ValueError(_DAMAGED)
            port.labels = None if labels is None else tuple(labels)
        self._tensors, self._sequences = outputs, found.get("sequences", {})

    def outputs(self):
        """The outputs as callers see them: a sequence is one Port, with its `items`."""
        sequence_of = {item: name for name, items in self._sequences.items() for item in items}
        tensors, seen = {port.name: port for port in self._tensors}, {}
        if len(sequence_of) != sum(map(len, self._sequences.values())) or not sequence_of.keys() <= tensors.keys():
            raise ValueError(_DAMAGED)
        for port in self._tensors:
            name = sequence_of.get(port.name)
            if name is None:
                seen[port.name] = port
            elif name not in seen:
                items = tuple(tensors[item] for item in self._sequences[name])
                shape = items[0].shape if len({item.shape for item in items}) == 1 else ()
                seen[name] = type(port)(name, port.dtype, shape, port.labels, items)
        return tuple(seen.values())

    def numbers(self, model, port, value):
        """An int64 array for an input's texts: nested lists, one list for a single column, or an object with `tolist`.
        TypeError names an item that is no text."""
        value = value.tolist() if hasattr(value, "tolist") else value
        column = len(port.shape) == 2 and port.shape[1] == 1
        numbers = _array._text_numbers(self._numbers, value)
        if numbers is not None:
            return numbers.reshape((len(value), 1)) if column and len(numbers.shape) == 1 else numbers
        if column and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            value = [[item] for item in value]

        def numbered(item):
            if isinstance(item, str):
                return self._numbers.get(item, _UNKNOWN)
            if isinstance(item, list | tuple):
                return [numbered(inner) for inner in item]
            raise TypeError(
                f"{model}: input {port.name!r}: expected str in lists of lists as the shape {port.shape} has them, got"
                f" a {type(item).__name__}"
            )

        return _array.asarray(numbered(value), dtype="int64")

    def decoded(self, outputs, arrays):
        """The outputs by name, as callers receive them; `arrays` are those of the model's tensors, in order."""
        values = {port.name: self._decoded(port, array) for port, array in zip(self._tensors, arrays)}
        for name, items in self._sequences.items():
            values[name] = [values[item] for item in items]
        return {port.name: values[port.name] for port in outputs}

    def _decoded(self, port, array):
        if port.dtype == "str":
            return self._named(array.tolist())
        if port.labels is not None:
            return _array._labelled_rows(port.labels, array.tolist())
        return array

    def _named(self, item):
        if isinstance(item, list):
            if item and type(item[0]) is int and min(item) >= 0 and max(item) < len(self._vocabulary):
                return list(map(self._vocabulary.__getitem__, item))
            return [self._named(inner) for inner in item]
        if not 0 <= item < len(self._vocabulary):
            raise ValueError(_DAMAGED)
        return self._vocabulary[item]


def read(notes):
    """The notes of a file, a dict, if those on texts have the expected form."""

    def is_list(value, *kinds):
        return isinstance(value, list) and all(isinstance(item, kinds) for item in value)

    try:
        found = json.loads(notes)
    except ValueError as error:
        raise ValueError(_DAMAGED) from error
    labels = found.get("labels", {}) if isinstance(found, dict) else None
    sequences = found.get("sequences", {}) if isinstance(found, dict) else None
    if (
        not isinstance(labels, dict)
        or not all(is_list(value, str, int) for value in labels.values())
        or not isinstance(sequences, dict)
        or not all(is_list(items, str) and items for items in sequences.values())
        or not all(is_list(found.get(key, []), str) for key in ("vocabulary", "text_inputs", "text_outputs"))
    ):
        raise ValueError(_DAMAGED)
    return found
