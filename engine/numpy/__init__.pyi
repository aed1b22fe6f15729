# NumPy's names. Arrays have no type of their own for checkers: every name is Any.

from typing import Any

def __getattr__(name: str) -> Any: ...
