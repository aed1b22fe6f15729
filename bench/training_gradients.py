"""What a gradient costs: of `a*b+c` on 8 floats, where nothing but the taking of it counts, and of a step of a small
convolutional network."""

import time

import numpy

from bench.measure import Result, interleaved, per_call_us
from bench.training_peers import threads_of, torch_or_none

MIN_OVERHEAD, MIN_STEP = 10, 1.2
BATCH, SIDE, CLASSES, CHANNELS = 64, 28, 10, (16, 32)


def run(quick):
    torch = torch_or_none()
    with threads_of(1, torch):
        return [_overhead(torch, 5 if quick else 15), _convolutions(torch, 5 if quick else 15)]


def _overhead(torch, rounds):
    import vmhost.engine.numpy as np
    from vmhost.engine.grad import grad

    arrays = [numpy.linspace(one, one + 1, 8, dtype="float32") for one in (1, 2, 3)]
    ours, gradient = [np.asarray(one) for one in arrays], grad(lambda a, b, c: (a * b + c).sum(), (0, 1, 2))
    contenders = {"vmhost": lambda: per_call_us(lambda: gradient(*ours), 2000)}
    if torch:
        a, b, c = (torch.from_numpy(one).requires_grad_() for one in arrays)
        contenders["torch"] = lambda: per_call_us(lambda: torch.autograd.grad((a * b + c).sum(), (a, b, c)), 2000)
    figures = interleaved(contenders, rounds, "us", "less")
    return _compared("gradient of a*b+c, 8 floats", figures, MIN_OVERHEAD, "with the sum, for all three")


def _compared(name, figures, wanted, note):
    ratios = {peer: figures["vmhost"].advantage_over(of) for peer, of in figures.items() if peer != "vmhost"}
    promises = tuple((f"{ratio:.2f}x {peer} (at least {wanted}x)", ratio >= wanted) for peer, ratio in ratios.items())
    return Result(name, figures, promises=promises, ratios=ratios, note=note)


def _convolutions(torch, rounds):
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim

    generator = numpy.random.default_rng(0)
    images = generator.normal(size=(BATCH, 1, SIDE, SIDE)).astype("float32")
    labels = generator.integers(0, CLASSES, BATCH)
    one, two = CHANNELS
    flat = two * (SIDE // 4) ** 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, one, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(one, two, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            )  # fmt: skip
            self.out = nn.Linear(flat, CLASSES)

        def __call__(self, x):
            return self.out(self.body(x).reshape(len(x), flat))

    model, optimizer = Net(), optim.SGD(0.01)
    step = nn.value_and_grad(model, lambda x, y: nn.cross_entropy(model(x), y))
    x, y = np.asarray(images), np.asarray(labels)

    def ours():
        begun = time.perf_counter()
        optimizer.update(model, step(x, y)[1])
        return (time.perf_counter() - begun) * 1000

    contenders = {"vmhost": ours}
    if torch:
        layers = torch.nn
        net = layers.Sequential(
            layers.Conv2d(1, one, 3, padding=1), layers.ReLU(), layers.MaxPool2d(2),
            layers.Conv2d(one, two, 3, padding=1), layers.ReLU(), layers.MaxPool2d(2),
            layers.Flatten(), layers.Linear(flat, CLASSES),
        )  # fmt: skip
        theirs, tx, ty = torch.optim.SGD(net.parameters(), 0.01), torch.from_numpy(images), torch.from_numpy(labels)

        def of_torch():
            begun = time.perf_counter()
            theirs.zero_grad()
            layers.functional.cross_entropy(net(tx), ty).backward()
            theirs.step()
            return (time.perf_counter() - begun) * 1000

        contenders["torch"] = of_torch
    note = f"3x3 convolutions of {one} and {two} channels with pools, {BATCH} images of {SIDE}x{SIDE}, 1 thread"
    return _compared("a small CNN, one step", interleaved(contenders, rounds, "ms", "less"), MIN_STEP, note)
