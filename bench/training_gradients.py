"""What a gradient costs: of `a*b+c` on 8 floats, where nothing but the taking of it counts, and of a step of a small
convolutional network."""

import time

import numpy

from bench.measure import Figure, Result, interleaved, per_call_us
from bench.training_peers import threads_of, torch_or_none

MIN_OVERHEAD, MIN_STEP, LOSSES, MAX_DIFFERENCE = 10, 1.2, 100, 1e-4
BATCH, SIDE, CLASSES, CHANNELS = 64, 28, 10, (16, 32)


def run(quick):
    torch = torch_or_none()
    with threads_of(1, torch):
        rounds = 5 if quick else 15
        results = [_overhead(torch, rounds), _convolutions(torch, rounds)]
        return results + ([_same_losses(torch, kind) for kind in ("MLP", "CNN")] if torch else [])


def _same_losses(torch, kind):
    """The first losses of the same weights and batches, by Adam."""
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim
    from vmhost.engine.grad.trees import leaves

    nn.seed(0)
    pixels, sizes, torch_nn, one = SIDE * SIDE, (128, 64, CLASSES), torch.nn, CHANNELS[0]
    flat = one * (SIDE // 2) ** 2
    if kind == "MLP":
        ours = nn.Sequential(
            nn.Linear(pixels, sizes[0]), nn.ReLU(), nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:])
        )
        theirs = torch_nn.Sequential(
            torch_nn.Flatten(), torch_nn.Linear(pixels, sizes[0]), torch_nn.ReLU(), torch_nn.Linear(*sizes[:2]),
            torch_nn.Tanh(), torch_nn.Linear(*sizes[1:]),
        )  # fmt: skip
        forward = lambda x: ours(x.reshape(len(x), pixels))  # noqa: E731
    else:
        ours = nn.Sequential(nn.Conv2d(1, one, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Linear(flat, CLASSES))
        theirs = torch_nn.Sequential(
            torch_nn.Conv2d(1, one, 3, padding=1), torch_nn.ReLU(), torch_nn.MaxPool2d(2), torch_nn.Flatten(),
            torch_nn.Linear(flat, CLASSES),
        )  # fmt: skip

        def forward(x):
            for layer in ours.layers[:-1]:
                x = layer(x)
            return ours.layers[-1](x.reshape(len(x), flat))

    with torch.no_grad():
        for (_, own), parameter in zip(leaves(ours.parameters()), theirs.parameters()):
            parameter.copy_(torch.from_numpy(numpy.asarray(own).copy()))
    optimizer, other = optim.Adam(1e-3), torch.optim.Adam(theirs.parameters(), 1e-3)
    step = nn.value_and_grad(ours, lambda x, y: nn.cross_entropy(forward(x), y))
    generator, found = numpy.random.default_rng(0), []
    for _ in range(LOSSES):
        images = generator.normal(size=(32, 1, SIDE, SIDE)).astype("float32")
        labels = (images.mean(axis=(1, 2, 3)) * 40).round().astype("int64") % CLASSES
        loss, gradients = step(np.asarray(images), np.asarray(labels))
        optimizer.update(ours, gradients)
        other.zero_grad()
        expected = torch_nn.functional.cross_entropy(theirs(torch.from_numpy(images)), torch.from_numpy(labels))
        expected.backward()
        other.step()
        found.append(abs(float(loss) - float(expected.detach())) / abs(float(expected.detach())))
    text = f"first {LOSSES} losses within {max(found):.1e} of torch's (at most {MAX_DIFFERENCE:.0e})"
    figures = {"difference": Figure(tuple(found), "relative", "less")}
    return Result(f"{kind}, same weights and batches", figures, ((text, max(found) <= MAX_DIFFERENCE),))


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
