"""A device's profile in a header of any request, and the header in the response that tells it to ask.

    VMHost-Tasks: kitchen-1 3q2-7wAAAAAB     the device, and a digest of its facts, tasks and states
    VMHost-Ask: now                          only where the platform has something else for it

If the digest differs from the one that the platform knows, the device's own request has the changes since the last
confirmed profile (`changes`), or everything if the platform does not know that one.

Both headers are hints. What a device should have is told only in answer to its own request (agent.py), so forging them
gains nothing.
"""

import base64
import hashlib
import json

REQUEST_HEADER = "vmhost-tasks"
ANSWER_HEADER = "vmhost-ask"
ASK_NOW = "now"


def header_value(device, facts, tasks):
    """The value of the request's header; equal facts and tasks give equal values."""
    plain = json.dumps([facts, tasks], sort_keys=True, separators=(",", ":")).encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(plain).digest()[:9]).decode()
    return f"{device} {digest}"


def changes(old, new):
    """The changes from mapping `old` to `new`: ({name: value} that are new or different, names that are gone)."""
    return {name: value for name, value in new.items() if old.get(name, ...) != value}, sorted(old.keys() - new.keys())


def changed(old, different, gone):
    """The mapping that results from the changes."""
    return {name: value for name, value in old.items() if name not in gone} | different
