"""Optimizers over trees of parameters."""

import math

import vmhost.engine.numpy as np
from vmhost.engine.embedding.lookups import TableGradient, apply_gradients
from vmhost.engine.grad import RowGradient
from vmhost.engine.grad.trees import leaves, mapped


class Optimizer:
    """`state` is {"step": number of updates, "slots": {parameter's name: {slot: array}}}: all that resuming needs."""

    slots = ()  # names of the arrays kept for each parameter, initially zeros
    table_kind = None  # its name in tables of vmhost.engine.embedding; None: they do not support it

    def __init__(self, learning_rate):
        self._rate = learning_rate if callable(learning_rate) else None
        self.learning_rate = learning_rate(0) if callable(learning_rate) else learning_rate
        self.state = {"step": 0, "slots": {}}

    def update(self, model, gradients):
        """Updates the model's parameters by their gradients, a tree as nn.value_and_grad returns it."""
        model.update(self.apply_gradients(gradients, model.parameters()))

    def apply_gradients(self, gradients, parameters):
        """The updated parameters, in a tree like the gradients."""
        if self._rate is not None:
            self.learning_rate = self._rate(self.state["step"])
        self.state["step"] += 1
        table_gradients = [one for _, one in leaves(gradients) if isinstance(one, TableGradient)]
        apply_gradients(table_gradients, self)
        names = (".".join(map(str, path)) for path, _ in leaves(gradients))
        return mapped(lambda g, p: self._updated(next(names), g, p), gradients, _like(gradients, parameters))

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
        if isinstance(gradient, RowGradient):
            gradient = gradient.combined()
            ids, rows = gradient.ids, parameter[gradient.ids]
            row_slots = {one: array[ids] for one, array in slots.items()}
            parameter[ids] = self.step(gradient.rows, rows, row_slots)
            for one, array in slots.items():
                array[ids] = row_slots[one]
        else:
            after = self.step(gradient, parameter, slots)
            if after is not parameter:
                parameter[...] = after
        return parameter

    def first(self, slot, parameter):
        return np.zeros(parameter.shape, parameter.dtype)

    def step(self, gradient, parameter, slots):
        """The new parameter, or its rows: a new array or the changed argument. Replaces or changes the arrays in
        `slots`."""
        raise NotImplementedError


def _like(gradients, parameters):
    """The part of the tree of parameters that has gradients."""
    if isinstance(gradients, dict):
        return {key: _like(one, parameters[key]) for key, one in gradients.items()}
    if isinstance(gradients, (list, tuple)):
        return [_like(one, parameters[i]) for i, one in enumerate(gradients)]
    return parameters


class SGD(Optimizer):
    def __init__(self, learning_rate, momentum=0.0, weight_decay=0.0, nesterov=False):
        super().__init__(learning_rate)
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
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
        super().__init__(learning_rate)
        self.eps, self.initial = eps, initial

    def table_rates(self):
        return self.learning_rate, self.eps, 0.0, 0.0, 0.0, 0.0, 0.0

    def first(self, slot, parameter):
        return np.full(parameter.shape, self.initial, parameter.dtype)

    def step(self, gradient, parameter, slots):
        squares = slots["squares"]
        squares += gradient * gradient
        return parameter - gradient * self.learning_rate / (np.sqrt(squares) + self.eps)


class RMSprop(Optimizer):
    slots = ("squares",)

    def __init__(self, learning_rate, alpha=0.99, eps=1e-8):
        super().__init__(learning_rate)
        self.alpha, self.eps = alpha, eps

    def step(self, gradient, parameter, slots):
        slots["squares"] = slots["squares"] * self.alpha + gradient * gradient * (1 - self.alpha)
        return parameter - gradient * self.learning_rate / (np.sqrt(slots["squares"]) + self.eps)


class Adam(Optimizer):
    """Kingma and Ba 2015, with bias correction. Rows of tables use the optimizer's step count, not their own."""

    slots = ("mean", "squares")
    table_kind = "adam"

    def __init__(self, learning_rate, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(learning_rate)
        self.betas, self.eps = betas, eps

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
        self.weight_decay = weight_decay

    def step(self, gradient, parameter, slots):
        return super().step(gradient, parameter * (1 - self.learning_rate * self.weight_decay), slots)


class Ftrl(Optimizer):
    """McMahan et al. 2013, algorithm 1: the l1 term keeps small weights at zero."""

    slots = ("z", "squares")
    table_kind = "ftrl"

    def __init__(self, learning_rate, l1=0.0, l2=0.0, beta=1.0):
        super().__init__(learning_rate)
        self.l1, self.l2, self.beta = l1, l2, beta

    def table_rates(self):
        return self.learning_rate, 0.0, 0.0, 0.0, self.l1, self.l2, self.beta

    def first(self, slot, parameter):
        """z for which the first step starts from the parameter itself."""
        start = super().first(slot, parameter)
        return start if slot == "squares" else start - parameter * (self.beta / self.learning_rate + self.l2)

    def step(self, gradient, parameter, slots):
        before = slots["squares"]
        after = before + gradient * gradient
        z = slots["z"] + gradient - (np.sqrt(after) - np.sqrt(before)) / self.learning_rate * parameter
        slots["z"], slots["squares"] = z, after
        scale = (np.sqrt(after) + self.beta) / self.learning_rate + self.l2
        return np.where(np.absolute(z) <= self.l1, 0, (np.sign(z) * self.l1 - z) / scale).astype(parameter.dtype)


def clip_grad_norm(gradients, max_norm):
    """(gradients scaled to a norm of at most `max_norm`, their original norm), over all arrays together."""

    def squared(g):
        rows = g.combined().rows if isinstance(g, (RowGradient, TableGradient)) else g
        return float(np.sum(rows * rows))

    norm = math.sqrt(sum(squared(g) for _, g in leaves(gradients)))
    factor = min(1.0, max_norm / (norm + 1e-6))
    return (gradients if factor == 1.0 else mapped(lambda g: g * factor, gradients)), norm
