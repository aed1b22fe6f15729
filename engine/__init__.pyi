# The types that editors and type checkers see. VMs do not load stubs, so these cost a task nothing.

from typing import Literal

from vmhost.engine import numpy as numpy
from vmhost.engine.models import Model

def load(
    name: str,
    *,
    threads: int = 0,
    ftz: bool = False,
    search: Literal["measured", "fixed"] | None = None,
    precision: Literal["float32"] = "float32",
) -> Model: ...
