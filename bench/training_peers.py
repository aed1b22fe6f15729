"""What training is measured against, from where `make training-peers` puts it."""

import contextlib
import sys
from pathlib import Path

_PEERS = Path(__file__).parents[1] / ".python" / "training-peers"


def torch_or_none():
    """torch, from there or from wherever else it is."""
    if str(_PEERS) not in sys.path:
        sys.path.append(str(_PEERS))
    try:
        import torch
    except ImportError:
        return None
    return torch


@contextlib.contextmanager
def threads_of(count, torch):
    """Meanwhile the engine, and torch if there is one, use so many threads."""
    from vmhost.engine import library

    before = library.threads()
    library.set_threads(count)
    if torch is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        library.set_threads(before)
