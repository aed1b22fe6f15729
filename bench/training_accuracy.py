"""Whether training matches torch: MLP, CNN, LSTM, DIN and DeepFM from the same weights on the same batches: the first
losses, and the AUC on unseen examples. The first losses are also compared with torch in float64, for ours and for
torch's own float32: with another order of summation a ReLU or a maximum may decide otherwise, and a loss then moves by
more than a rounding error. The CNN at a larger rate shows that."""

import copy
import math
import statistics

import numpy

from bench import click_networks
from bench.measure import Figure, Result
from bench.training_peers import threads_of, torch_or_none

SEEDS, BATCH, TESTED, RATE, LARGE_RATE = 5, 128, 4000, 0.02, 0.05
STEPS, COMPARED, STEPS_OF_DEEPFM, BATCH_OF_DEEPFM, RATE_OF_DEEPFM = (
    500,
    100,
    150,
    512,
    0.1,
)  # COMPARED: the first losses
MAX_LOSS_DIFFERENCE, MAX_AUC_DIFFERENCE = 1e-4, 0.002
KEYS, WIDTH, LENGTH, HIDDEN = 500, 16, 12, 24  # of DIN and LSTM


def run(quick):
    torch = torch_or_none()
    if torch is None:
        return []
    with threads_of(1, torch):
        seeds = 2 if quick else SEEDS
        results = [_compared(torch, kind, seeds) for kind in KINDS]
        results.append(_compared(torch, "CNN", seeds, LARGE_RATE))
        return [*results, _deepfm(torch, 1 if quick else SEEDS)]


def _result(kind, losses, scores, more="", loss_promised=True):
    loss, (ours, theirs) = max(losses), zip(*scores)
    apart = max(abs(a - b) for a, b in scores)
    return Result(
        f"{kind}, same weights and batches, {len(scores)} seeds",
        {"vmhost": Figure(tuple(ours), "AUC", "more"), "torch": Figure(tuple(theirs), "AUC", "more")},
        promises=(
            *((f"first {COMPARED} losses within {loss:.1e} (at most {MAX_LOSS_DIFFERENCE:.0e})",
               loss <= MAX_LOSS_DIFFERENCE) for _ in range(loss_promised)),
            (f"AUC within {apart:.5f} (at most {MAX_AUC_DIFFERENCE})", apart <= MAX_AUC_DIFFERENCE),
        ),
        note=f"Adagrad; AUC of {TESTED} examples that were not trained on{more}",
    )  # fmt: skip


def _labels(generator, logits):
    return (generator.random(len(logits)) < 1 / (1 + numpy.exp(-logits))).astype("float32")


# ---- data: (inputs, labels) of `count` examples
def _numbers(generator, count):
    x = generator.normal(size=(count, 20)).astype("float32")
    return (x,), _labels(generator, x[:, 0] + x[:, 1] * x[:, 2] - 0.5)


def _images(generator, count):
    x = generator.normal(size=(count, 1, 12, 12)).astype("float32")
    return (x,), _labels(generator, 4 * x[:, 0, 2:6, 2:6].mean((1, 2)) + 2 * x[:, 0, 8:, 8:].max((1, 2)) - 4)


def _series(generator, count):
    x = generator.normal(size=(count, LENGTH, 4)).astype("float32")
    return (x,), _labels(generator, 2 * x[:, -1, 0] + x[:, -3, 1] * 1.5 - x[:, -2, 2])


def _visits(generator, count):
    """A candidate, earlier visits, and their number."""
    keys = generator.integers(0, KEYS, (count, LENGTH + 1))
    known = (numpy.arange(LENGTH) < generator.integers(1, LENGTH + 1, (count, 1))).astype("float32")
    alike = ((keys[:, :1] % 10 == keys[:, 1:] % 10) * known).sum(1)
    return (keys[:, 0], keys[:, 1:], known), _labels(generator, 1.5 * alike + (keys[:, 0] % 3) - 2)


# ---- networks: (ours, torch's), whose parameters have the same names
def _mlp(torch, nn):
    def layers(of):
        return of.Sequential(of.Linear(20, 32), of.ReLU(), of.Linear(32, 16), of.Tanh(), of.Linear(16, 1))

    return layers(nn), layers(torch.nn)


def _cnn(torch, nn):
    def network(of, flat):
        class Network(of.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = of.Conv2d(1, 8, 3, padding=1), of.Conv2d(8, 16, 3)
                self.out, self.pool, self.relu = of.Linear(16 * 2 * 2, 1), of.MaxPool2d(2), of.ReLU()

            def forward(self, x):
                x = self.pool(self.relu(self.two(self.pool(self.relu(self.one(x))))))
                return self.out(flat(x))

            __call__ = forward if of is nn else of.Module.__call__

        return Network()

    return network(nn, lambda x: x.reshape(len(x), -1)), network(torch.nn, lambda x: x.flatten(1))


def _lstm(torch, nn):
    import vmhost.engine.numpy as np

    class Cell(nn.Module):
        """As torch.nn.LSTM of one layer; gates input, forget, cell, output."""

        def __init__(self):
            super().__init__()
            both, bound = nn.Linear(4, 4 * HIDDEN), HIDDEN**-0.5
            self.weight_ih_l0, self.bias_ih_l0 = both.weight, both.bias
            self.weight_hh_l0 = np.random.default_rng(1).uniform(-bound, bound, (4 * HIDDEN, HIDDEN)).astype("float32")
            self.bias_hh_l0 = np.zeros(4 * HIDDEN, "float32")

        def __call__(self, x):
            h = cell = np.zeros((len(x), HIDDEN), "float32")
            bias = self.bias_ih_l0 + self.bias_hh_l0
            for step in range(x.shape[1]):
                gates = x[:, step] @ self.weight_ih_l0.T + h @ self.weight_hh_l0.T + bias
                i, f, o = (nn.sigmoid(gates[:, k * HIDDEN : (k + 1) * HIDDEN]) for k in (0, 1, 3))
                cell = f * cell + i * np.tanh(gates[:, 2 * HIDDEN : 3 * HIDDEN])
                h = o * np.tanh(cell)
            return h

    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = Cell(), nn.Linear(HIDDEN, 1)

        def __call__(self, x):
            return self.out(self.lstm(x))

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = torch.nn.LSTM(4, HIDDEN, batch_first=True), torch.nn.Linear(HIDDEN, 1)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    return Ours(), Theirs()


def _din(torch, nn):
    import vmhost.engine.numpy as np

    def network(of, concatenate, wide):
        class Network(of.Module):
            def __init__(self):
                super().__init__()
                self.rows = of.Embedding(KEYS, WIDTH)
                self.attention = of.Sequential(of.Linear(4 * WIDTH, 32), of.Sigmoid(), of.Linear(32, 1))
                self.out = of.Sequential(of.Linear(2 * WIDTH, 32), of.ReLU(), of.Linear(32, 1))

            def forward(self, candidate, visits, known):
                asked, seen = self.rows(candidate), self.rows(visits)
                each = wide(asked.reshape(-1, 1, WIDTH), seen)
                weights = self.attention(concatenate([each, seen, each - seen, each * seen], -1))
                interest = (weights * seen * known.reshape(-1, LENGTH, 1)).sum(1)
                return self.out(concatenate([interest, asked], -1))

            __call__ = forward if of is nn else of.Module.__call__

        return Network()

    ours = network(nn, np.concatenate, lambda one, seen: np.broadcast_to(one, seen.shape))
    return ours, network(torch.nn, torch.cat, lambda one, seen: one.expand_as(seen))


KINDS = {"MLP": (_mlp, _numbers), "CNN": (_cnn, _images), "LSTM": (_lstm, _series), "DIN": (_din, _visits)}


def _torch_step(torch, network, rate):
    optimizer = torch.optim.Adagrad(network.parameters(), rate, initial_accumulator_value=0.1)

    def step(inputs, labels):
        dtype = next(network.parameters()).dtype
        given = [torch.from_numpy(one).to(dtype) if one.dtype.kind == "f" else torch.from_numpy(one) for one in inputs]
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            network(*given)[:, 0], torch.from_numpy(labels).to(dtype)
        )
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _compared(torch, kind, seeds, rate=RATE):
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim
    from vmhost.engine.grad.trees import leaves

    made, drawn = KINDS[kind]
    losses, scores, from_float64 = [], [], []
    for seed in range(seeds):
        nn.seed(seed)
        generator = numpy.random.default_rng(seed)
        ours, theirs = made(torch, nn)
        own = {
            ".".join(str(one) for one in path if one != "layers"): array for path, array in leaves(ours.parameters())
        }
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                parameter.copy_(torch.from_numpy(numpy.asarray(own[name]).copy()))
        optimizer = optim.Adagrad(rate, initial=0.1)
        other, exact = (_torch_step(torch, one, rate) for one in (theirs, copy.deepcopy(theirs).double()))
        step = nn.value_and_grad(ours, lambda y, *x, ours=ours: nn.binary_cross_entropy(ours(*x)[:, 0], y))
        for number in range(STEPS):
            inputs, labels = drawn(generator, BATCH)
            loss, gradients = step(np.asarray(labels), *map(np.asarray, inputs))
            optimizer.update(ours, gradients)
            expected = other(inputs, labels)
            if number < COMPARED:
                wide = exact(inputs, labels)
                losses.append(abs(float(loss) - expected) / abs(expected))
                from_float64.append((abs(float(loss) - wide) / abs(wide), abs(expected - wide) / abs(wide)))
        inputs, labels = drawn(generator, TESTED)
        with torch.no_grad():
            both = ours(*map(np.asarray, inputs)), np.asarray(theirs(*map(torch.from_numpy, inputs)).numpy())
        scores.append(tuple(float(nn.auc(np.asarray(labels), one[:, 0])) for one in both))
    ours, theirs = map(max, zip(*from_float64))
    more = f"; rate {rate}; losses from torch's float64: {ours:.1e}, torch's float32 {theirs:.1e}"
    name = kind if rate == RATE else f"{kind} at rate {rate}"
    return _result(name, losses, scores, more, rate == RATE)


def _deepfm(torch, seeds):
    """The network of bench/click_networks.py, trained as in bench/training_networks.py, at a rate at which it learns in
    so few steps; the best possible AUC of its data is reported."""
    import vmhost.engine.numpy as np
    from bench.training_networks import same_trainers
    from vmhost.engine import nn

    losses, scores, best = [], [], []
    for seed in range(seeds):
        (model, ours), (other, theirs) = same_trainers(torch, RATE_OF_DEEPFM)
        batches = click_networks.batches(STEPS_OF_DEEPFM, BATCH_OF_DEEPFM, seed=seed)
        pairs = [(ours(*one), theirs(*one)) for one in batches]
        losses += [abs(a - b) / abs(b) for a, b in pairs[:COMPARED]]
        [(keys, numbers, labels)] = click_networks.batches(1, TESTED, seed=100 + seed)
        ids = {f"k{i}": np.asarray(keys[:, i].copy()) for i in range(click_networks.TABLES)}
        with torch.no_grad():
            logits = other(torch.from_numpy(numbers), torch.from_numpy(keys)).numpy()
        both = model(np.asarray(numbers), ids), np.asarray(logits)
        scores.append(tuple(float(nn.auc(np.asarray(labels), one)) for one in both))
        best.append(float(nn.auc(np.asarray(labels), np.asarray(click_networks.logits(keys, numbers)))))
    assert not any(math.isnan(one) for one in losses)
    more = f"; rate {RATE_OF_DEEPFM}; best possible AUC {statistics.median(best):.3f}"
    return _result("DeepFM", losses, scores, more)
