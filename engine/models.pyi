from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

class Port:
    name: str
    dtype: str
    shape: Sequence[int | str]
    labels: tuple[Any, ...] | None
    items: Any
    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int | str],
        labels: tuple[Any, ...] | None = None,
        items: Any = None,
    ) -> None: ...
    @property
    def type(self) -> str: ...

class Step:
    name: str
    kind: str
    algorithm: str
    dtype: str
    shape: tuple[int, ...]
    products: int
    bytes: int
    expected_ms: float
    ms: float | None
    def __init__(
        self,
        name: str,
        kind: str,
        algorithm: str,
        dtype: str,
        shape: tuple[int, ...],
        products: int,
        size: int,
        expected_ns: float,
        ms: float | None = None,
    ) -> None: ...

class Model:
    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    def __init__(self, name: str, session: Any, part: Any = None) -> None: ...
    def __call__(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    @property
    def continued(self) -> dict[str, str]: ...
    @overload
    def run(self, inputs: Mapping[str, Any], *, profile: Literal[False] = False) -> dict[str, Any]: ...
    @overload
    def run(self, inputs: Mapping[str, Any], *, profile: Literal[True]) -> tuple[dict[str, Any], tuple[Step, ...]]: ...
    @overload
    def run(
        self, inputs: Sequence[str] | None, feed: Mapping[str, Any], run_options: None = None, *, profile: bool = False
    ) -> list[Any]: ...
    def get_inputs(self) -> list[Port]: ...
    def get_outputs(self) -> list[Port]: ...
    def warmup(self, sizes: Mapping[str, int] | None = None) -> None: ...
    def shapes_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]: ...
    def session(self, number: int) -> Any: ...
    @property
    def parts(self) -> int: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def backends(self) -> dict[str, float]: ...

def opened(
    name: str,
    data: Any,
    *,
    threads: int = 0,
    ftz: bool = False,
    search: str | None = None,
    spend: bool = False,
    like: Model | None = None,
    device: str = "cpu",
    device_memory: int = 0,
    device_options: Any = None,
) -> Model: ...
def load(
    name: str,
    *,
    threads: int = 0,
    ftz: bool = False,
    search: Literal["measured", "fixed"] | None = None,
    precision: Literal["float32"] = "float32",
) -> Model: ...
