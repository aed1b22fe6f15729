"""A task that uses what tasks import, for mypy to read, as typed_program.py: it never runs."""

from typing import Any

import vmhost.engine.numpy as np
from vmhost import engine
from vmhost.engine import grad, nn, optim
from vmhost.engine.models import Model
from vmhost.guest import Buffer, HostFunctionError, PermissionDenied, deadline, host, log, metrics, register, resources
from vmhost.guest.testing import stand_in

opened: dict[str, Model] = {}
orders = metrics.counter("orders", "Orders that were priced.", labels=("kind",))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2), nn.softmax)

    def __call__(self, x: Any) -> Any:
        return self.rest(nn.relu(self.first(x)))


class Money:
    cents = 0


def setup() -> None:
    register(Money, lambda money: money.cents, lambda plain: Money())
    opened["digits"] = engine.load("digits", threads=1)
    log.info("%s, %d", resources.read_text("table.csv").upper(), len(resources.read_bytes("table.csv")))
    engine.load("digits", thread=1)  # type: ignore[call-arg]
    resources.read_txt("table.csv")  # type: ignore[attr-defined]


def train(images: Any, labels: Any) -> bytes:
    net, optimizer = Net(), optim.AdamW(optim.cosine_decay(0.01, 100), weight_decay=0.1)
    step = nn.value_and_grad(net, lambda x, y: nn.cross_entropy(net(x), y))
    loss, gradients = step(images, labels)
    gradients, norm = optim.clip_grad_norm(gradients, 1.0)
    optimizer.update(net, gradients)
    print(float(loss), norm + 1, grad.grad(np.sum)(images))
    nn.Linear("3", 4)  # type: ignore[arg-type]
    return nn.export(net.eval(), {"images": images})


def run(value: list[float]) -> int:
    if (left := deadline()) is not None and left < 0.1:
        return -1
    try:
        orders.add(1, kind=host.lookup(value))
    except (HostFunctionError, PermissionDenied) as error:
        log.warning(error)
    memoryview(Buffer((2, 3), "d"))
    scores = opened["digits"]({"images": np.asarray(value, dtype="float32")})["scores"]
    return int(np.argmax(scores))


def test() -> None:
    with stand_in(folder="hello", functions={"lookup": len}):
        assert run([1.0]) == 3
