"""The data pipeline: it stores events, reads them as sequences, triggers tasks and keeps their results in tables.

It is built on the public API of `vmhost` alone. Import with `from vmhost.pipeline import Event, Pipeline`.
"""

import importlib

_PLACES = {
    "AsyncPipeline": "asynchronous",
    "Event": "events",
    "Pipeline": "pipeline",
    "PipelineError": "pipeline",
}
__all__ = ["AsyncPipeline", "Event", "Pipeline", "PipelineError"]


def __getattr__(name):
    """Imports each name on first use: a process that needs only events does not load the host."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
