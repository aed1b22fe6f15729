"""Module: the base class of layers and networks."""

from vmhost.engine.grad import value_and_grad as _value_and_grad
from vmhost.engine.grad.traced import Traced
from vmhost.engine.grad.trees import is_array, leaves, mapped
from vmhost.engine.nn.weights import load_arrays, save_arrays


class Module:
    """A tree of arrays. Attributes that are arrays, modules, or lists, tuples and dicts of them are its parameters,
    except those whose name begins with an underscore."""

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
        """Replaces arrays by those of a tree with the structure of `parameters`, or a part of it."""
        for name, value in tree.items():
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}")
            setattr(self, name, _updated(getattr(self, name), value))
        return self

    def freeze(self, *, recurse=True, keys=None):
        """Excludes parameters (`keys`: only those with this name) from training."""
        for module in self.modules() if recurse else (self,):
            module._frozen |= {one for one in vars(module) if not one.startswith("_")} & _names(keys, module)
        return self

    def unfreeze(self, *, recurse=True, keys=None):
        for module in self.modules() if recurse else (self,):
            module._frozen -= _names(keys, module)
        return self

    # ---- modules
    def modules(self):
        """This module and all modules within it."""
        return [module for _, module in self.named_modules()]

    def named_modules(self, prefix=""):
        found = [(prefix, self)]
        for name, value in vars(self).items():
            if not name.startswith("_"):
                found += _modules(value, f"{prefix}.{name}" if prefix else name)
        return found

    def train(self, mode=True):
        """Selects the training behaviour of dropout and batch normalization; `eval()` selects inference."""
        for module in self.modules():
            module._training = mode
        return self

    def eval(self):
        return self.train(False)

    @property
    def training(self):
        return self._training

    # ---- files
    def save_weights(self, path):
        """Writes all parameters to a safetensors file, atomically."""
        save_arrays(path, {".".join(map(str, name)): array for name, array in leaves(self.parameters())})

    def load_weights(self, path, strict=True):
        """Reads parameters from a safetensors file. ValueError names those that are missing, unknown (if `strict`) or
        of another shape; then nothing is changed."""
        arrays = load_arrays(path)
        own = {".".join(map(str, name)): array for name, array in leaves(self.parameters())}
        missing, unknown = sorted(own.keys() - arrays.keys()), sorted(arrays.keys() - own.keys())
        if strict and (missing or unknown):
            raise ValueError(
                f"{path}: weights of another network: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        for name in sorted(own.keys() & arrays.keys()):
            if own[name].shape != arrays[name].shape:
                raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, the network's has {own[name].shape}")
        names = iter(own)

        def loaded(array):
            read = arrays.get(next(names))
            return array if read is None else read.astype(array.dtype)

        self.update(mapped(loaded, self.parameters()))
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
    if isinstance(value, (list, tuple)) and any(isinstance(one, Module) or is_array(one) for one in value):
        return [_parameters(one, wanted, module, name) for one in value]
    return None


def _updated(old, new):
    if isinstance(old, Module):
        return old.update(new)
    if isinstance(old, dict):
        return {key: _updated(one, new[key]) if new.get(key) is not None else one for key, one in old.items()}
    if isinstance(old, (list, tuple)):
        return type(old)([one if part is None else _updated(one, part) for one, part in zip(old, new)])
    return new


def _modules(value, name):
    if isinstance(value, Module):
        return value.named_modules(name)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for key, one in items for found in _modules(one, f"{name}.{key}")]


def value_and_grad(model, function):
    """A function that returns (value of `function`, gradients of the model's trainable parameters, as a tree).
    `function` calls the model; its arguments are passed through."""

    def with_parameters(parameters, *args, **kwargs):
        model.update(parameters)
        return function(*args, **kwargs)

    both = _value_and_grad(with_parameters)

    def with_gradient(*args, **kwargs):
        parameters = model.trainable_parameters()
        try:
            return both(parameters, *args, **kwargs)
        finally:
            model.update(parameters)

    return with_gradient
