"""Catching up: a stream task reads stored events before it goes live, either all of them or those that it missed.

It has a matching of its own, and offers calls only as its queue has room, so that none is dropped. After the last
stored event it goes live: from then on the pipeline feeds its matching.
"""

import logging
import threading
from collections import deque

from vmhost.pipeline.execution import Call
from vmhost.pipeline.matching import Matching
from vmhost.stores import StoreDamagedError, StoreError

_RETRY_S = 0.5
_log = logging.getLogger("vmhost.pipeline")


class CatchingUp(threading.Thread):
    """Brings `task` of `pipeline` up to date from the event after the position `after`. The pipeline's lock is held."""

    def __init__(self, pipeline, task, after):
        super().__init__(name=f"vmhost-pipeline-catching-up-{task.task.name}", daemon=True)
        self.lock = threading.Lock()  # guards `matching`; taken after the pipeline's
        self._pipeline, self._task = pipeline, task
        self._stopped = threading.Event()
        self.matching = Matching(after)
        self.matching.add(task.task.name, task.trigger)
        self._primed = self.matching.position == 0
        self._left = set(task.table.open_calls)  # positions of calls made earlier, some by other versions of the task
        self._fired = deque()  # (position, fires) of calls that are still to be made

    def stop(self):
        """Asks the thread to end soon; the task does not go live."""
        self._stopped.set()
        with self._pipeline._idle:
            self._pipeline._idle.notify_all()

    def run(self):
        while not self._stopped.is_set():
            try:
                if self._read_on():
                    return
            except StoreDamagedError as error:
                _log.error("%s: skips stored events that cannot be read: %s", self._task.task.name, error)
                self._pipeline.store_error = error
                with self._pipeline._idle:
                    self.matching.position = self._pipeline._fed
                    self._go_live()
                return
            except Exception as error:
                if not isinstance(error, StoreError):
                    _log.exception("%s: reading stored events failed", self._task.task.name)
                    self._pipeline.store_error = error
                    with self._pipeline._idle:
                        if not self._stopped.is_set():
                            self._go_live()
                    return
                _log.error("%s: stored events wait: %s", self._task.task.name, error)
                self._pipeline.store_error = error
                self._stopped.wait(_RETRY_S)

    def _read_on(self):
        """Reads stored events; True when the task is live."""
        store, pipeline = self._pipeline._store, self._pipeline
        store.flush()
        if not self._primed:
            visits = set(pipeline._intake.open_visits)
            for head in store.heads(self.matching.position):
                visits.update(head.visits)
            with self.lock:
                self.matching.begin_anew(store, visits - {""})  # `forget` may have ended the matches under way
            self._primed = True
        if not self._offer():
            return False
        for head in store.heads(self.matching.position):
            with self.lock:
                before = self.matching.position
                indexes = [index for index, position in enumerate(head.positions) if position > before]
                self._fired.extend(self.matching.feed_head(head, indexes).items())
            if not self._offer():
                return False
            with pipeline._lock:
                if self._stopped.is_set():
                    return False
                self._task.table.complete_until(head.positions[-1])
        with pipeline._idle:
            if self._stopped.is_set() or pipeline._fed - self.matching.position > max(self._task.room, 0):
                pipeline._idle.wait_for(lambda: self._stopped.is_set() or self._task.room > 0)
                return False
            for stored in store.read(self.matching.position):
                for _, start in self.matching.feed((stored,)).get(stored.position, ()):
                    self._make(stored, start)
            self._go_live()
        return True

    def _offer(self):
        """Makes the triggered calls while there is room for them; False if catching up is to stop."""
        while self._fired:
            position, fires = self._fired[0]
            with self._pipeline._idle:
                self._pipeline._idle.wait_for(lambda: self._stopped.is_set() or self._task.room > 0)
                if self._stopped.is_set():
                    return False
                stored = self._pipeline._store.at(position)
                if stored is not None:  # else the event was dropped or forgotten meanwhile
                    for _, start in fires:
                        self._make(stored, start)
                self._fired.popleft()
        return True

    def _make(self, stored, start):
        task, event = self._task, stored.event
        if stored.position in self._left:
            return
        if not task.table.done(stored.position, event.key if task.trigger.state else ""):
            value = self._pipeline._visits.value(task.trigger, stored, start, True)
            task.offer(Call(stored.position, start, event.key, value), bounded=False)

    def _go_live(self):
        pipeline, name = self._pipeline, self._task.task.name
        self._task.table.complete_until(pipeline._fed)
        self.matching.knows(pipeline._intake.ended_visits)
        pipeline._matchings.append(self.matching)
        del pipeline._behind[name]
        pipeline._idle.notify_all()
