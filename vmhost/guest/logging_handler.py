"""Connects the standard `logging` of a VM with the host's logger. The guest's boot adds it to the root logger."""

import logging

from _vmhost import log


class HostHandler(logging.Handler):
    """Each record as lines of the host's logger, at its level, after its logger's name unless that is the root."""

    def emit(self, record):
        try:
            text = self.format(record)
            if record.name != "root":
                text = f"{record.name}: {text}"
            for line in text.split("\n"):
                log(record.levelno, line)
        except Exception:
            self.handleError(record)
