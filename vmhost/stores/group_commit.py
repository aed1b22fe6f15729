"""Group commit: writes of many threads at about the same time share one transaction, and so one sync of the disk. Each
`run` returns only after the commit that contains its work."""

import threading

_MAX_BATCH = 512  # items per transaction: bounds the wait of those that come later


class GroupCommit:
    """`act(connection, items)` writes the items given to `run`, in order. It returns for each item the result of its
    `run`, or an exception for `run` to raise; such an item must have written nothing. If `act` itself raises, or the
    commit fails, the items are retried one by one, and each raises its own error. `before()` is called before each
    transaction.
    """

    def __init__(self, database, act, before=lambda: None):
        self._database, self._act, self._before = database, act, before
        self._lock = threading.Lock()
        self._waiting = []
        self._busy = False  # a thread writes, or was woken to

    def run(self, item):
        """The result for `item`, once it is on the disk; raises the exception that `act` returned for it."""
        mine = _Item(item)
        with self._lock:
            self._waiting.append(mine)
            leads = not self._busy
            self._busy = True
        if not leads:
            mine.wake.wait()
        if not mine.ended:  # this thread writes next, for all that wait
            self._lead()
        if isinstance(mine.result, BaseException):
            raise mine.result
        return mine.result

    def _lead(self):
        with self._lock:
            batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
        try:
            self._write(batch)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._busy = following is not None
            for each in batch:
                each.ended = True
                each.wake.set()
            if following is not None:
                following.wake.set()  # not ended: that thread writes next

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
        self.wake = threading.Event()
