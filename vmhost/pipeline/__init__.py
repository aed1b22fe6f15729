"""The data pipeline: events are stored, read as sequences, and trigger tasks; what these make is kept in tables.

Above `Host`: it uses the public API of `vmhost` and nothing beneath it. `from vmhost.pipeline import Event, Pipeline`.
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
    """Each is imported when it is asked for: who needs events alone need not wait for a host."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
