"""The cost of a gradient: of `a*b+c` on 8 floats, which is pure overhead, of a step of a small convolutional network,
and of a step of MobileNetV2's last blocks."""

import math
import time

import numpy

from bench.measure import Result, interleaved, per_call_us
from bench.training_peers import mlx_or_none, threads_of, torch_or_none

MIN_OVERHEAD, MIN_STEP = 10, 1.2
BATCH, SIDE, CLASSES, CHANNELS = 64, 28, 10, (16, 32)


def run(quick):
    torch = torch_or_none()
    with threads_of(1, torch):
        rounds = 5 if quick else 15
        return [_overhead(torch, rounds), _convolutions(torch, rounds), _last_blocks(torch, rounds)]


def _overhead(torch, rounds):
    import vmhost.engine.numpy as np
    from vmhost.engine.grad import grad

    arrays = [numpy.linspace(one, one + 1, 8, dtype="float32") for one in (1, 2, 3)]
    ours, gradient = [np.asarray(one) for one in arrays], grad(lambda a, b, c: (a * b + c).sum(), (0, 1, 2))
    contenders = {"vmhost": lambda: per_call_us(lambda: gradient(*ours), 2000)}
    if torch:
        theirs = [torch.from_numpy(one) for one in arrays]
        of_function = torch.func.grad(lambda a, b, c: (a * b + c).sum(), (0, 1, 2))
        contenders["torch.func.grad"] = lambda: per_call_us(lambda: of_function(*theirs), 2000)
        a, b, c = (one.clone().requires_grad_() for one in theirs)
        contenders["torch.autograd.grad"] = lambda: per_call_us(
            lambda: torch.autograd.grad((a * b + c).sum(), (a, b, c)), 2000
        )
    if mlx := mlx_or_none():
        mlx.set_default_device(mlx.cpu)
        of_mlx, given = mlx.grad(lambda a, b, c: (a * b + c).sum(), (0, 1, 2)), [mlx.array(one) for one in arrays]
        contenders["MLX"] = lambda: per_call_us(lambda: mlx.eval(of_mlx(*given)), 2000)
    figures = interleaved(contenders, rounds, "us", "less")
    ratios = {peer: figures["vmhost"].advantage_over(of) for peer, of in figures.items() if peer != "vmhost"}
    ratio = ratios.get("torch.func.grad", math.inf)
    promise = f"{ratio:.1f}x torch's gradient of a function (at least {MIN_OVERHEAD}x)"
    note = "with the sum, for all; a function of a function, as torch.func.grad is: autograd.grad and MLX are told"
    promises = ((promise, ratio >= MIN_OVERHEAD),) if torch else ()
    return Result("gradient of a*b+c, 8 floats", figures, promises=promises, ratios=ratios, note=note)


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


BLOCKS, ROWS, IMAGES = (
    ((160, 160), (160, 160), (160, 320)),
    7,
    16,
)  # channels of MobileNetV2's last blocks; their images


def _last_blocks(torch, rounds):
    """MobileNetV2's last three blocks, convolution, pooling and classifier, with batch norm in training mode."""
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim

    def convolution(of, norm, inner, out, size=1, groups=1):
        return of.Conv2d(inner, out, size, padding=size // 2, groups=groups, bias=False), norm(out)

    def network(of, norm, bounded, mean):
        class Block(of.Module):
            def __init__(self, inner, out):
                super().__init__()
                wide = 6 * inner
                self.a, self.norm_a = convolution(of, norm, inner, wide)
                self.b, self.norm_b = convolution(of, norm, wide, wide, 3, wide)
                self.c, self.norm_c = convolution(of, norm, wide, out)
                self.adds = inner == out

            def forward(self, x):
                y = bounded(self.norm_a(self.a(x)))
                y = self.norm_c(self.c(bounded(self.norm_b(self.b(y)))))
                return x + y if self.adds else y

            __call__ = forward if of is nn else of.Module.__call__

        class Network(of.Module):
            def __init__(self):
                super().__init__()
                self.blocks = of.Sequential(*(Block(*one) for one in BLOCKS))
                self.last, self.norm = convolution(of, norm, BLOCKS[-1][1], 1280)
                self.out = of.Linear(1280, CLASSES)

            def forward(self, x):
                return self.out(mean(bounded(self.norm(self.last(self.blocks(x))))))

            __call__ = forward if of is nn else of.Module.__call__

        return Network()

    generator = numpy.random.default_rng(0)
    images = generator.normal(size=(IMAGES, BLOCKS[0][0], ROWS, ROWS)).astype("float32")
    labels = generator.integers(0, CLASSES, IMAGES)
    model, optimizer = network(nn, nn.BatchNorm, lambda x: np.clip(x, 0, 6), lambda x: x.mean((2, 3))), optim.SGD(0.01)
    step = nn.value_and_grad(model, lambda x, y: nn.cross_entropy(model(x), y))
    x, y = np.asarray(images), np.asarray(labels)
    contenders = {"vmhost": _milliseconds(lambda: optimizer.update(model, step(x, y)[1]))}
    if torch:
        functional = torch.nn.functional
        net = network(torch.nn, torch.nn.BatchNorm2d, functional.relu6, lambda x: x.mean((2, 3)))
        theirs, tx, ty = torch.optim.SGD(net.parameters(), 0.01), torch.from_numpy(images), torch.from_numpy(labels)

        def of_torch():
            theirs.zero_grad()
            functional.cross_entropy(net(tx), ty).backward()
            theirs.step()

        contenders["torch"] = _milliseconds(of_torch)
    figures = interleaved(contenders, rounds, "ms", "less")
    note = (
        f"blocks of 160, 160 and 320 channels, 1280 and {CLASSES} classes, {IMAGES} images of {ROWS}x{ROWS}, 1 thread"
    )
    return _compared("MobileNetV2's last blocks, one step", figures, MIN_STEP, note)


def _milliseconds(call):
    def once():
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1000

    return once
