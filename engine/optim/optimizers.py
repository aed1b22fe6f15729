"""Optimizers over trees of parameters."""

import math

import vmhost.engine.numpy as np
from vmhost.engine.embedding.lookups import TableGradient, apply_gradients
from vmhost.engine.grad import RowGradient
from vmhost.engine.grad.trees import leaves, mapped, named


class Optimizer:
    """`state` is {"step": number of updates, "slots": {parameter's name: {slot: array}}}: all that resuming needs.

    Parameters of float16 have slots of float32, and their steps are computed in float32 and rounded once."""

    slots = ()  # names of the arrays kept for each parameter, initially zeros
    table_kind = None  # its name in tables of vmhost.engine.embedding; None: they do not support it

    def __init__(self, learning_rate, **options):
        """`options`: further numbers that the subclass keeps as attributes."""
        schedule = callable(learning_rate) and not hasattr(learning_rate, "parameters")  # a module is callable too
        self._rate = learning_rate if schedule else None
        self.learning_rate = self._number("learning_rate", learning_rate(0) if schedule else learning_rate)
        for name, one in options.items():
            setattr(self, name, self._number(name, one))
        self.state = {"step": 0, "slots": {}}

    def _number(self, name, given):
        if not isinstance(given, (int, float)) and getattr(given, "shape", None) != ():
            what = "a number or a function of the step" if name == "learning_rate" else "a number"
            raise TypeError(
                f"{type(self).__name__}: {name}: expected {what}, got {type(given).__name__}; "
                "parameters are for update(model, gradients)"
            )
        if not given >= 0:
            raise ValueError(f"{type(self).__name__}: {name}: expected 0 or more, got {given}")
        return given

    def update(self, model, gradients):
        """Updates the model's parameters by their gradients, a tree as nn.value_and_grad returns it. A parameter with
        several names is updated once and keeps them."""
        parameters = model.parameters()
        model.update(self.apply_gradients(gradients, parameters))
        replaced = {
            id(old): new for (_, old), (_, new) in zip(leaves(parameters), leaves(model.parameters())) if old is not new
        }
        if replaced:
            model.update(mapped(lambda one: replaced.get(id(one), one), parameters))

    def apply_gradients(self, gradients, parameters):
        """The updated parameters, in a tree like the gradients. An array that occurs several times makes one step, by
        the sum of its gradients."""
        pairs, sums, done = [], {}, {}
        for (name, gradient), (_, parameter) in zip(
            named(gradients).items(), leaves(_like(gradients, parameters, "gradients")), strict=True
        ):
            if gradient.shape != parameter.shape:
                raise ValueError(f"gradients: {name} has shape {gradient.shape}, its parameter {parameter.shape}")
            pairs.append((name, parameter))
            before = sums.get(id(parameter))
            sums[id(parameter)] = gradient if before is None else before + gradient
        if self._rate is not None:
            self.learning_rate = self._rate(self.state["step"])
        self.state["step"] += 1
        apply_gradients([one for one in sums.values() if isinstance(one, TableGradient)], self)
        for name, parameter in pairs:
            if id(parameter) not in done:
                done[id(parameter)] = self._updated(name, sums[id(parameter)], parameter)
        updated = iter([done[id(parameter)] for _, parameter in pairs])
        return mapped(lambda _: next(updated), gradients)

    def table_rates(self):
        """(learning rate, eps, beta1, beta2, l1, l2, beta), for tables; 0 for parameters that the optimizer does not
        have."""
        raise NotImplementedError

    def _updated(self, name, gradient, parameter):
        if isinstance(gradient, TableGradient):
            return parameter
        slots = self.state["slots"].get(name)
        if slots is None:
            slots = self.state["slots"][name] = {one: self.first(one, parameter) for one in self.slots}
        if not parameter.flags.writeable:
            parameter = parameter.copy()
        kind = _computed_in(parameter.dtype)
        if isinstance(gradient, RowGradient):
            gradient = gradient.combined()
            ids, rows = gradient.ids, np.asarray(parameter[gradient.ids], kind)
            row_slots = {one: array[ids] for one, array in slots.items()}
            parameter[ids] = self.step(np.asarray(gradient.rows, kind), rows, row_slots)
            for one, array in slots.items():
                array[ids] = row_slots[one]
        else:
            after = self.step(np.asarray(gradient, kind), np.asarray(parameter, kind), slots)
            if after is not parameter:
                parameter[...] = after
        return parameter

    def first(self, slot, parameter):
        return np.zeros(parameter.shape, _computed_in(parameter.dtype))

    def step(self, gradient, parameter, slots):
        """The new parameter, or its rows: a new array or the changed argument. Replaces or changes the arrays in
        `slots`."""
        raise NotImplementedError


def _computed_in(dtype):
    return np.float32 if dtype == np.float16 else dtype


def _like(gradients, parameters, place):
    """The part of the tree of parameters that has gradients."""
    if gradients is None:
        return None
    keys = (
        list(gradients)
        if isinstance(gradients, dict)
        else range(len(gradients))
        if isinstance(gradients, (list, tuple))
        else None
    )
    if keys is None:
        if not hasattr(gradients, "dtype") or not hasattr(parameters, "dtype"):
            raise TypeError(
                f"{place}: expected a tree of arrays like the parameters, got {type(gradients).__name__} for "
                f"{type(parameters).__name__}"
            )
        return parameters
    try:
        parts = [_like(gradients[key], parameters[key], f"{place}.{key}") for key in keys]
    except (LookupError, AttributeError) as error:
        raise ValueError(f"{place}: the parameters have no {error}") from error
    return dict(zip(keys, parts)) if isinstance(gradients, dict) else parts


def _betas(of, betas):
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= one < 1 for one in betas):
        raise ValueError(f"{type(of).__name__}: betas: expected two numbers from 0 to below 1, got {betas!r}")
    return tuple(betas)


class SGD(Optimizer):
    def __init__(self, learning_rate, momentum=0.0, weight_decay=0.0, nesterov=False):
        super().__init__(learning_rate, momentum=momentum, weight_decay=weight_decay)
        self.nesterov = nesterov
        self.slots = ("velocity",) if momentum else ()
        self.table_kind = None if momentum or weight_decay else "sgd"

    def table_rates(self):
        return self.learning_rate, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0

    def step(self, gradient, parameter, slots):
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        if self.momentum:
            velocity = slots["velocity"] = slots["velocity"] * self.momentum + gradient
            gradient = gradient + velocity * self.momentum if self.nesterov else velocity
        parameter -= gradient * self.learning_rate
        return parameter


class Adagrad(Optimizer):
    """Duchi et al. 2011. `initial`: the initial sum of squares."""

    slots = ("squares",)
    table_kind = "adagrad"

    def __init__(self, learning_rate, eps=1e-8, initial=0.0):
        super().__init__(learning_rate, eps=eps, initial=initial)

    def table_rates(self):
        return self.learning_rate, self.eps, 0.0, 0.0, 0.0, 0.0, 0.0

    def first(self, slot, parameter):
        return np.full(parameter.shape, self.initial, _computed_in(parameter.dtype))

    def step(self, gradient, parameter, slots):
        squares = slots["squares"]
        squares += gradient * gradient
        return parameter - gradient * self.learning_rate / (np.sqrt(squares) + self.eps)


class RMSprop(Optimizer):
    slots = ("squares",)

    def __init__(self, learning_rate, alpha=0.99, eps=1e-8):
        super().__init__(learning_rate, alpha=alpha, eps=eps)

    def step(self, gradient, parameter, slots):
        slots["squares"] = slots["squares"] * self.alpha + gradient * gradient * (1 - self.alpha)
        return parameter - gradient * self.learning_rate / (np.sqrt(slots["squares"]) + self.eps)


class Adam(Optimizer):
    """Kingma and Ba 2015, with bias correction. Rows of tables use the optimizer's step count, not their own."""

    slots = ("mean", "squares")
    table_kind = "adam"

    def __init__(self, learning_rate, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(learning_rate, eps=eps)
        self.betas = _betas(self, betas)

    def table_rates(self):
        return self.learning_rate, self.eps, *self.betas, 0.0, 0.0, 0.0

    def step(self, gradient, parameter, slots):
        first, second = self.betas
        mean = slots["mean"] = slots["mean"] * first + gradient * (1 - first)
        squares = slots["squares"] = slots["squares"] * second + gradient * gradient * (1 - second)
        steps = self.state["step"]
        rate = self.learning_rate / (1 - first**steps)
        return parameter - mean * rate / (np.sqrt(squares) / math.sqrt(1 - second**steps) + self.eps)


class AdamW(Adam):
    """Loshchilov and Hutter 2019: the decay applies to the weights, not to the gradient."""

    table_kind = None

    def __init__(self, learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(learning_rate, betas, eps)
        self.weight_decay = self._number("weight_decay", weight_decay)

    def step(self, gradient, parameter, slots):
        return super().step(gradient, parameter * (1 - self.learning_rate * self.weight_decay), slots)


class Ftrl(Optimizer):
    """McMahan et al. 2013, algorithm 1: the l1 term keeps small weights at zero.

    z is that of the weight before the step, whatever the rates were: a weight without a gradient stays what it is while
    the rate changes. Only for weights that are 0 the slot is needed."""

    slots = ("z", "squares")
    table_kind = "ftrl"

    def __init__(self, learning_rate, l1=0.0, l2=0.0, beta=1.0):
        super().__init__(learning_rate, l1=l1, l2=l2, beta=beta)

    def table_rates(self):
        return self.learning_rate, 0.0, 0.0, 0.0, self.l1, self.l2, self.beta

    def step(self, gradient, parameter, slots):
        slots["squares"] = slots["squares"] + gradient * gradient
        if not self.learning_rate:  # the first rate of a schedule may be 0
            slots["z"] = slots["z"] + gradient
            return parameter
        scale = (np.sqrt(slots["squares"]) + self.beta) / self.learning_rate + self.l2
        of_weight = gradient - np.sign(parameter) * self.l1 - scale * parameter
        z = slots["z"] = np.where(parameter == 0, slots["z"] + gradient, of_weight)
        return np.where(np.absolute(z) <= self.l1, 0, (np.sign(z) * self.l1 - z) / scale).astype(parameter.dtype)


def clip_grad_norm(gradients, max_norm):
    """(gradients scaled to a norm of at most `max_norm`, their original norm), over all arrays together. The norm is
    computed in float64."""

    def squared(g):
        rows = np.asarray(g.combined().rows if isinstance(g, (RowGradient, TableGradient)) else g, "float64")
        return float(np.sum(rows * rows))

    def scaled(g):
        if g.dtype != np.float16:
            return g * factor
        if isinstance(g, RowGradient):
            return RowGradient(g.ids, scaled(g.rows), g.shape)
        return (g.astype("float32") * factor).astype("float16")

    norm = math.sqrt(sum(squared(g) for _, g in leaves(gradients)))
    factor = min(1.0, max_norm / (norm + 1e-6))
    return (gradients if factor == 1.0 else mapped(scaled, gradients)), norm
