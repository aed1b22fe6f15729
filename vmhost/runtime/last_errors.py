"""The last errors of a task's version that differ, with tracebacks: why it fails, for pages, `vmhost top` and the log.

What a guest says is masked, bounded and made printable before it is kept, as everything here is meant for people's
terminals and pages.
"""

import logging
import re
from dataclasses import replace

from vmhost.errors import Kind, from_core
from vmhost.statistics import CallError

_log = logging.getLogger("vmhost")
MAX_ERRORS = 10
_FRAME = re.compile(r'(^  File "[\w./-]+@[\w.+-]+/[^"\n]*", line \d+, in \S+$)', re.MULTILINE)
_MAX_MESSAGE_CHARS, _MAX_TRACEBACK_CHARS = 1000, 8000


class LastErrors:
    """Used with the host's lock held."""

    def __init__(self, name, version):
        self._name, self._version = name, version
        self._logged = 0  # trips of the breaker whose reason was logged
        self._found = {}  # (outcome, frames or message) -> CallError, the oldest first
        self._masked_by = None  # the Masking of all that was found

    def add(self, kind, report, now, masking):
        """A call has ended as `kind` with the guest's `report`, at `now` seconds since 1970."""
        self._mask_again(masking)
        error = from_core(kind, report, self._name, self._version)
        message = printable(masking.text(str(error)))[:_MAX_MESSAGE_CHARS]
        traceback = printable(_masked(getattr(error, "guest_traceback", None) or "", masking))[
            -_MAX_TRACEBACK_CHARS:
        ].rstrip()
        outcome = Kind(kind).name
        key = outcome, traceback.rpartition("\n")[0] or message
        self._found.pop(key, None)
        self._found[key] = CallError(now, outcome, message, traceback)
        if len(self._found) > MAX_ERRORS:
            del self._found[next(iter(self._found))]

    def log_once(self, trips):
        """Logs the newest error when the breaker has opened, `trips` times so far: why it did."""
        if trips == self._logged or not self._found:
            return
        self._logged = trips
        newest = next(reversed(self._found.values()))
        _log.warning("%s%s", newest.message, newest.traceback and f"; last seen at:\n{newest.traceback}")

    def newest_first(self, masking):
        """`masking()`: the Masking of now."""
        if self._found:
            self._mask_again(masking())
        return tuple(reversed(self._found.values()))

    def _mask_again(self, masking):
        """Hides what the rules of today hide, if they are others than before."""
        if masking is not self._masked_by:
            self._masked_by = masking
            for key, one in self._found.items():
                self._found[key] = replace(
                    one, message=masking.text(one.message), traceback=_masked(one.traceback, masking)
                )


def _masked(traceback, masking):
    """The traceback with all but its frames masked: NAME@VERSION of a file looks like an address."""
    return "".join(part if index % 2 else masking.text(part) for index, part in enumerate(_FRAME.split(traceback)))


def printable(text):
    """`text` with escapes for what a terminal would obey, and for what is no character."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
