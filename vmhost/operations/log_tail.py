"""The last log lines of a host and its tasks, for the page that shows them."""

import collections
import itertools
import logging
from dataclasses import dataclass, replace

MAX_LINES = 2000
MAX_CHARACTERS = 2000  # of a line


@dataclass(frozen=True, slots=True)
class Line:
    """One log record. `number` counts from 1; `task` and `version` are None if the host itself logged."""

    number: int
    time_s: float
    level: int
    task: str | None
    version: str | None
    text: str


class LogTail(logging.Handler):
    """Keeps the last MAX_LINES records of the logger `vmhost` from `level` on, masked by `masking`, a
    vmhost.masking.CurrentMasking: when its rules change, so do lines that are kept. A context manager: attached
    inside."""

    def __init__(self, level=logging.INFO, masking=None):
        super().__init__(level)
        self._masking, self._masked_by = masking, None  # the Masking of all lines
        self._lines = collections.deque(maxlen=MAX_LINES)
        self._numbers = itertools.count(1)
        self._logger = logging.getLogger("vmhost")
        self._level_before = None

    def __enter__(self):
        self._level_before = self._logger.level
        if not self._logger.isEnabledFor(self.level):
            self._logger.setLevel(self.level)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_):
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level_before)

    def emit(self, record):
        try:
            text = record.getMessage()
        except Exception:  # arguments that do not fit: keep the unformatted line
            text = str(record.msg)
        if self._masking is not None:
            self._mask_again()
            text = self._masked_by.text(text)
        text = text.encode(errors="backslashreplace").decode()  # a page is UTF-8, which has no half surrogate pairs
        task = record.name.removeprefix("vmhost.task.") if record.name.startswith("vmhost.task.") else None
        version = getattr(record, "version", None)
        line = Line(next(self._numbers), record.created, record.levelno, task, version, text[:MAX_CHARACTERS])
        self._lines.append(line)

    def _mask_again(self):
        """Hides what the rules of today hide, if they are others than before. With the lock held."""
        if self._masking is not None and (masking := self._masking.now) is not self._masked_by:
            self._masked_by = masking
            lines = [replace(line, text=masking.text(line.text)[:MAX_CHARACTERS]) for line in self._lines]
            self._lines = collections.deque(lines, maxlen=MAX_LINES)

    @property
    def oldest(self):
        """The number of the oldest line kept; 0 if there is none."""
        with self.lock:
            return self._lines[0].number if self._lines else 0

    def lines(self, *, task=None, level=0, text="", limit=200):
        """The newest `limit` lines, newest first: of `task`, from `level` on, containing `text` in any case."""
        wanted = text.casefold()
        with self.lock:
            self._mask_again()
            lines = list(self._lines)
        found = (
            line
            for line in reversed(lines)
            if line.level >= level and task in (None, line.task) and wanted in line.text.casefold()
        )
        return list(itertools.islice(found, limit))
