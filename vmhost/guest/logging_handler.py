"""Connects a VM's standard `logging` with the host's logger. The guest's boot adds the handler to the root logger."""

import logging

from _vmhost import log


class HostHandler(logging.Handler):
    """Sends each record as lines to the host's logger, at its level, prefixed by its logger's name unless root."""

    def emit(self, record):
        try:
            text = self.format(record)
            if record.name != "root":
                text = f"{record.name}: {text}"
            for line in text.split("\n"):
                log(record.levelno, line)
        except Exception:
            self.handleError(record)
