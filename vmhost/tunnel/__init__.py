"""The real-time tunnel: one persistent, encrypted connection between a device and the cloud (docs/tunnel.md).

Names are imported on first use: a device does not load the server.
"""

import importlib

_NAMES = {
    "AsyncDevice": "device",
    "Batched": "batched",
    "Device": "device",
    "Server": "server",
    "Request": "worker",
    "Table": "inbox",
    "Transactional": "inbox",
    "PostgreSQL": "postgresql",
    "Webhook": "webhooks",
    "Message": "inbox",
    "Limits": "limits",
    "Rows": "rows",
    "Rule": "rules",
    "loop_factory": "spinning",
    "push": "pushes",
    "task_functions": "host_functions",
    "AnswerError": "errors",
    "MessageRefused": "errors",
    "NoAnswerError": "errors",
    "OfflineError": "errors",
    "OutboxFullError": "errors",
    "ProtocolError": "errors",
    "StreamBrokenError": "errors",
    "TunnelConfigurationError": "errors",
    "TunnelError": "errors",
}
__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vmhost.tunnel.{_NAMES[name]}"), name)
