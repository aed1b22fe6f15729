"""Remote debugging of a host: by a signed link, with the consent of the person at the device, fully audited.

`desk.py` answers the requests of a session; `ledger.py` stores sessions, consent and the audit on the device;
`client.py` is the other end. Links are in `vmhost.debug_links`. docs/remote-debugging.md explains how they work
together.
"""

from vmhost.operations.debugging.desk import ConsentRequest, Debugging
from vmhost.operations.debugging.ledger import DebugError, Ledger

__all__ = ["ConsentRequest", "DebugError", "Debugging", "Ledger"]
