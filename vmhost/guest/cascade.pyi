from collections.abc import Callable
from typing import Any, NamedTuple

class Decision(NamedTuple):
    answer: Any
    by: str
    confidence: float
    reason: str

def maximum(temperature: float | None = None) -> Callable[[Any], float]: ...
def margin(temperature: float | None = None) -> Callable[[Any], float]: ...
def entropy(temperature: float | None = None) -> Callable[[Any], float]: ...
def fit_temperature(logits: Any, labels: Any) -> float: ...

class Budget:
    def __init__(
        self,
        share: float | None = None,
        burst: float = 10,
        bytes_per_minute: float | None = None,
        when: Callable[[], Any] | None = None,
    ) -> None: ...

class HardExamples:
    def __init__(
        self, keep: Callable[[Any, Decision], Any], consent: Callable[[], Any], per_day: int = 100
    ) -> None: ...

class Cascade:
    def __init__(
        self,
        small: Callable[[Any], Any],
        large: str,
        *,
        confidence: Callable[[Any], float] | None = None,
        threshold: float = 0.8,
        send: Callable[[Any, Any], Any] | None = None,
        timeout_s: float = 0.5,
        budget: Budget | None = None,
        cache: int = 0,
        hard: HardExamples | None = None,
        label: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None: ...
    def __call__(self, value: Any) -> Decision: ...
