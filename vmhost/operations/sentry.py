"""Crash reports by Sentry's protocol: an envelope with one event, for Sentry and compatible servers.

A DSN is `https://KEY@HOST/PROJECT`; the envelope goes to `https://HOST/api/PROJECT/envelope/`. Source: Sentry's
developer documentation (Envelopes, Event Payloads), protocol version 7.
"""

import datetime
import json
import os
import urllib.parse
import uuid
from dataclasses import dataclass

from vmhost import ConfigurationError, __version__
from vmhost.operations.crash_reports import CrashReport, python_frame
from vmhost.operations.posting import post

_TIMEOUT_S = 10.0
_MAX_LINES = 100  # log lines, as in Sentry's own clients
_EVENTS = uuid.UUID("6d1f2a0e-0d0c-5e0a-9a64-3f0f5a6d4c11")  # namespace: equal reports have equal event ids


@dataclass(frozen=True, slots=True)
class Sentry:
    """A project's address and public key."""

    address: str
    key: str

    @classmethod
    def of(cls, dsn: str) -> "Sentry":
        """The Sentry for a DSN. ConfigurationError."""
        try:
            parts = urllib.parse.urlsplit(dsn)
            path, _, project = parts.path.rpartition("/")
            host = parts.hostname + ("" if parts.port is None else f":{parts.port}")
            if parts.scheme in ("http", "https") and parts.username and project:
                return cls(f"{parts.scheme}://{host}{path}/api/{project}/envelope/", parts.username)
        except ValueError, TypeError, AttributeError:
            pass
        raise ConfigurationError(f"expected a DSN such as https://KEY@sentry.example.org/42, got {dsn!r:.100}")

    def send(self, report: CrashReport) -> None:
        """Sends a CrashReport. OSError, ValueError."""
        auth = f"Sentry sentry_version=7, sentry_client=vmhost/{__version__}, sentry_key={self.key}"
        headers = {"Content-Type": "application/x-sentry-envelope", "X-Sentry-Auth": auth}
        post(self.address, envelope(report), headers, _TIMEOUT_S)


def envelope(report: CrashReport) -> bytes:
    """The envelope for a CrashReport: three lines of JSON, the last one the event."""
    payload = json.dumps(event(report)).encode()
    sent_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    header = {"event_id": _identity(report), "sent_at": sent_at}
    item = {"type": "event", "content_type": "application/json", "length": len(payload)}
    return b"\n".join([json.dumps(header).encode(), json.dumps(item).encode(), payload, b""])


def event(report: CrashReport) -> dict[str, object]:
    """The event for a CrashReport. Events of one fingerprint form one issue."""
    machine = report.machine
    tags = {"task": report.task, "version": report.version, "signal": report.signal, "phase": report.phase}
    exception = {
        "type": report.signal,
        "value": report.title,
        "mechanism": {"type": "signalhandler", "handled": False, "synthetic": True},
        "stacktrace": _stack(report.python),
        "thread_id": 0,
    }
    threads = [{"id": 0, "name": report.task or "the host", "crashed": True, "current": True}]
    for vm in report.vms:
        for stack in vm.threads:
            threads.append({"id": len(threads), "name": f"{vm.task} {vm.version}", "stacktrace": _stack(stack)})
    found = {
        "event_id": _identity(report),
        "timestamp": report.time,
        "platform": "python",
        "level": "fatal",
        "logger": "vmhost",
        "fingerprint": [report.fingerprint],
        "tags": {name: value for name, value in tags.items() if value},
        "exception": {"values": [exception]},
        "threads": {"values": threads},
        "breadcrumbs": {"values": [{"type": "default", "message": line} for line in report.log[-_MAX_LINES:]]},
        "contexts": {
            "os": {"name": machine.get("system", "")},
            "device": {"arch": machine.get("machine", ""), "memory_size": machine.get("memory_bytes")},
            "runtime": {"name": "CPython", "version": machine.get("python", "")},
            "vmhost": {"type": "vmhost", "version": machine.get("vmhost", ""), "complete": report.complete},
        },
        "extra": {"report": report.id, "call": report.call, "limits": report.limits, "native": list(report.native)},
        "sdk": {"name": "vmhost", "version": __version__},
    }
    if report.task:
        found["release"] = f"{report.task}@{report.version}"
    return found


def _identity(report):
    return uuid.uuid5(_EVENTS, report.id).hex


def _stack(lines):
    """Frames, outermost first, as in Sentry."""
    frames = []
    for line in reversed(lines):
        frame = python_frame(line)
        if frame is None:
            continue
        file, number, name = frame
        own = not os.path.isabs(file) and not file.startswith("<")
        frames.append({"filename": file, "lineno": number, "function": name, "in_app": own})
    return {"frames": frames}
