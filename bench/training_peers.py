"""The peers of the training benchmarks, installed by `make training-peers`."""

import contextlib
import importlib
import sys
from pathlib import Path

_PEERS = Path(__file__).parents[1] / ".python" / "training-peers"


def torch_or_none():
    """torch, from there or from any other installation; None without it."""
    return _imported("torch")


def mlx_or_none():
    """mlx.core, likewise."""
    return _imported("mlx.core")


def _imported(name):
    if str(_PEERS) not in sys.path:
        sys.path.append(str(_PEERS))
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@contextlib.contextmanager
def threads_of(count, torch):
    """Within the block, the engine, and torch if it is given, use this many threads."""
    from vmhost.engine import library

    before = library.threads()
    library.set_threads(count)
    if torch is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        library.set_threads(before)
