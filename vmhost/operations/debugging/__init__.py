"""Debugging a host from afar: by a signed link, with the consent of whoever is at the device, everything audited.

`desk.py` answers what a session asks; `ledger.py` keeps sessions, consent and the audit on the device; `client.py` is
the other end. `vmhost.debug_links` has the links. docs/remote-debugging.md tells how they work together.
"""

from vmhost.operations.debugging.desk import ConsentRequest, Debugging
from vmhost.operations.debugging.ledger import DebugError, Ledger

__all__ = ["ConsentRequest", "DebugError", "Debugging", "Ledger"]
