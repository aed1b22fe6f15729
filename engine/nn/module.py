"""Module: the base class of layers and networks."""

from vmhost.engine.grad import value_and_grad as _value_and_grad
from vmhost.engine.grad.traced import Traced
from vmhost.engine.grad.trees import is_array, leaves, mapped, named
from vmhost.engine.nn.weights import load_arrays, save_arrays


class Module:
    """A tree of arrays. Attributes that are arrays, modules, or (nested) lists, tuples and dicts of them are its
    parameters, except those whose name begins with an underscore. An array or a module may have several names."""

    def __init__(self):
        self._frozen, self._training = set(), True

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    # ---- parameters
    def parameters(self):
        """The arrays as a tree of dicts and lists, by attribute."""
        return self._filtered(lambda module, name: True)

    def trainable_parameters(self):
        """The same without frozen parameters."""
        return self._filtered(lambda module, name: name not in module._frozen)

    def _filtered(self, wanted):
        tree = {}
        for name, value in vars(self).items():
            if not name.startswith("_"):
                part = _parameters(value, wanted, self, name)
                if part is not None:
                    tree[name] = part
        return tree

    def update(self, tree):
        """Replaces arrays by those of a tree with the structure of `parameters`, or a part of it; where it has None,
        the array stays."""
        for name, value in tree.items():
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}")
            setattr(self, name, _updated(getattr(self, name), value))
        return self

    def freeze(self, *, recurse=True, keys=None):
        """Excludes parameters (`keys`: only those with this name) from training. Asks each module within."""
        self._frozen |= {one for one in vars(self) if not one.startswith("_")} & _names(keys, self)
        for module in self._children() if recurse else ():
            module.freeze(keys=keys)
        return self

    def unfreeze(self, *, recurse=True, keys=None):
        self._frozen -= _names(keys, self)
        for module in self._children() if recurse else ():
            module.unfreeze(keys=keys)
        return self

    # ---- modules
    def modules(self):
        """This module and all modules within it."""
        return [module for _, module in self.named_modules()]

    def _children(self):
        """The modules of its attributes, each once."""
        found = [one for name, value in vars(self).items() if not name.startswith("_") for one in _held(value)]
        return list({id(one): one for one in found}.values())

    def named_modules(self, prefix=""):
        found = [(prefix, self)]
        for name, value in vars(self).items():
            if not name.startswith("_"):
                found += _modules(value, f"{prefix}.{name}" if prefix else name)
        return found

    def train(self, mode=True):
        """Selects the training behaviour of dropout and batch normalization; `eval()` selects inference."""
        self._training = mode
        for module in self._children():
            module.train(mode)
        return self

    def eval(self):
        return self.train(False)

    @property
    def training(self):
        return self._training

    # ---- files
    def save_weights(self, path):
        """Writes all parameters to a safetensors file, atomically."""
        save_arrays(path, named(self.parameters()))

    def load_weights(self, path, strict=True):
        """Reads parameters from a safetensors file. ValueError names those that are missing, unknown (if `strict`) or
        of another shape; then nothing is changed. Of an array with several names, one in the file is enough."""
        arrays, own = load_arrays(path), named(self.parameters())
        read, first = {}, {}  # by id of an own array: what the file has for it, and under which name
        for name in sorted(own.keys() & arrays.keys()):
            array, new = own[name], arrays[name]
            if array.shape != new.shape:
                raise ValueError(f"{path}: {name} has shape {new.shape}, the network's has {array.shape}")
            before = read.setdefault(id(array), new)
            other = first.setdefault(id(array), name)
            if before is not new and before.tobytes() != new.tobytes():
                names = " and ".join(sorted((name, other)))
                raise ValueError(f"{path}: {names} differ; they are one array of the network")
        missing = sorted(name for name, array in own.items() if id(array) not in read)
        unknown = sorted(arrays.keys() - own.keys())
        if strict and (missing or unknown):
            raise ValueError(
                f"{path}: weights of another network: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        loaded = {id(array): read[id(array)].astype(array.dtype) for array in own.values() if id(array) in read}
        self.update(mapped(lambda array: loaded.get(id(array), array), self.parameters()))
        return self


def _names(keys, module):
    return set(vars(module)) if keys is None else {keys} if isinstance(keys, str) else set(keys)


def _parameters(value, wanted, module, name):
    if is_array(value) or type(value) is Traced:
        return value if wanted(module, name) else None
    if isinstance(value, Module):
        return value._filtered(wanted)
    if isinstance(value, dict):
        return {key: _parameters(one, wanted, module, name) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and _has_parameters(value):
        return [_parameters(one, wanted, module, name) for one in value]
    return None


def _has_parameters(value):
    if isinstance(value, (list, tuple)):
        return any(map(_has_parameters, value))
    return isinstance(value, (Module, dict)) or is_array(value) or type(value) is Traced


def _updated(old, new):
    if new is None:
        return old
    if isinstance(old, Module):
        return old.update(new)
    if isinstance(old, dict):
        return {key: _updated(one, new.get(key)) for key, one in old.items()}
    if isinstance(old, (list, tuple)):
        parts = [_updated(one, part) for one, part in zip(old, new)]
        return type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts)
    return new


def _held(value):
    """The modules in an attribute, without those within them."""
    if isinstance(value, Module):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [module for one in items for module in _held(one)]


def _modules(value, name):
    if isinstance(value, Module):
        return value.named_modules(name)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for key, one in items for found in _modules(one, f"{name}.{key}")]


def value_and_grad(model, function):
    """A function that returns (value of `function`, gradients of the model's trainable parameters, as a tree).
    `function` calls the model; its arguments are passed through. The gradient of an array with several names is under
    the first one, with None under the others."""

    def with_parameters(traced, once, parameters, *args, **kwargs):
        found = {id(array): one for (_, array), (_, one) in zip(leaves(once), leaves(traced))}
        model.update(mapped(lambda array: found[id(array)], parameters))
        return function(*args, **kwargs)

    both = _value_and_grad(with_parameters)

    def with_gradient(*args, **kwargs):
        parameters, seen = model.trainable_parameters(), set()
        # None for an array that has been there
        once = mapped(lambda one: None if id(one) in seen else seen.add(id(one)) or one, parameters)
        try:
            return both(once, once, parameters, *args, **kwargs)
        finally:
            model.update(parameters)

    return with_gradient
