"""Group commit: what many threads write at about the same time is one transaction, so that each does not wait for a
disk of its own. Nobody is told before the commit that has their own work."""

import threading

_MOST = 512  # works of one transaction: what waits for it is not to wait for long


class GroupCommit:
    """`act(connection, items)` writes what `run` was given, in order, and returns for each item what its `run` returns,
    or an exception that it raises; such an item must have written nothing. Where `act` itself raises, or the commit
    fails, the items are tried again one by one, and each raises its own. `before()` is called before each transaction.
    """

    def __init__(self, database, act, before=lambda: None):
        self._database, self._act, self._before = database, act, before
        self._lock = threading.Lock()
        self._waiting = []
        self._busy = False  # a thread writes, or has been told to

    def run(self, item):
        """The result for `item`, when it is on the disk; raises what `act` gave for it."""
        mine = _Item(item)
        with self._lock:
            self._waiting.append(mine)
            leads = not self._busy
            self._busy = True
        if not leads:
            mine.told.wait()
        if not mine.ended:  # it is this thread's turn to write, for all that wait
            self._lead()
        if isinstance(mine.result, BaseException):
            raise mine.result
        return mine.result

    def _lead(self):
        with self._lock:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        try:
            self._write(batch)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._busy = following is not None
            for each in batch:
                each.ended = True
                each.told.set()
            if following is not None:
                following.told.set()  # not ended: it leads

    def _write(self, batch):
        try:
            self._together(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].result = error
                return
            for each in batch:
                self._write([each])

    def _together(self, batch):
        self._before()
        with self._database.transaction() as connection:
            results = self._act(connection, [each.item for each in batch])
        for each, result in zip(batch, results, strict=True):
            each.result = result


class _Item:
    def __init__(self, item):
        self.item = item
        self.result = RuntimeError("the thread that wrote for this one was interrupted")
        self.ended = False
        self.told = threading.Event()
