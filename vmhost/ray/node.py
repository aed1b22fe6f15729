"""The actor on a node: it holds VMs, and calls what the program sends.

`give` brings modules and calls, `take` fetches what has ended and waits while there is nothing: so a node needs one
message for many calls, and one for many results. Ray runs each of the two on a thread of its own, in the order of the
messages. The actor has no copy of the program: functions come as names with the bytecode of their modules.
"""

import functools
import os
import pickle
import threading
from collections import deque

import ray

from vmhost.bytecode.format import Module
from vmhost.errors import Kind
from vmhost.executor import _Workers
from vmhost.isolation import vm as isolation
from vmhost.ray import values
from vmhost.runtime.kept_luggage import Luggage

# A reply ends after about so many bytes of results; the others come with the next one.
_REPLY_BYTES = 16 << 20
# How long a VM's import waits for a module that the program is asked for.
_LATER_S = 120
GROUPS = {"give": 1, "take": 1, "control": 1}


class Ended(Exception):
    """The error of a native call, not yet in words: the program puts it into words."""

    def __init__(self, kind, payload, name, version):
        self.kind, self.payload = int(kind), payload


class NodeHost:
    """`cores`: VMs at most. `limits`, `permissions`: as of VMExecutor."""

    def __init__(self, cores, limits, permissions):
        self._codec = values.PassingCodec()
        self._workers = _NodeWorkers(self, "cluster", cores, permissions, limits, None, (), _keep, codec=self._codec)
        isolation.core().set_error_factory(Ended)
        self._out = {}  # id -> native call
        self._ended = deque()  # of them: (id, native call), or (id, Ended)
        self._asked = deque()  # names of modules that the program is asked for
        self._answers = {}  # name -> list that gets the answer
        self._changed = threading.Condition()
        self._closed = False

    @ray.method(concurrency_group="control")
    def ready(self):
        """(id of the node, process id of this actor)"""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    @ray.method(concurrency_group="give")
    def give(self, message):
        """Takes pickled (contents of the code store to add, answers, calls, calls to stop)."""
        contents, answers, calls, stops = pickle.loads(message)
        for modules, texts, files in contents:
            made = {name: Module(*each) for name, each in modules.items()}
            with self._workers._lock:
                self._workers._pack(Luggage("", made, texts, files=files))
        for name, reason in answers:
            with self._changed:
                self._answers.setdefault(name, []).append(reason)
                self._changed.notify_all()
        for number, entry, timeout_s, data in calls:
            self._begin(number, entry, timeout_s, data)
        for number, running in stops:  # of calls that came before; one that waits is only cancelled
            call = self._out.get(number)
            if call is not None:
                call.stop() if running else call.cancel()

    def _begin(self, number, entry, timeout_s, data):
        try:
            value = values.from_bytes(data, self._codec.unpack)
            try:
                call = self._workers.submit(value, timeout_s, 0, entry, True)
            except Ended as ended:
                if ended.kind != Kind.CLOSED:
                    raise
                call = self._workers.submit(value, timeout_s, 0, entry, True)  # a new edition replaced this one
        except Ended as ended:
            self._note(number, ended)
        except (TypeError, ValueError) as error:
            self._note(number, Ended(Kind.VALUE, str(error), "", ""))
        else:
            self._out[number] = call
            self._workers._service.watch(call, functools.partial(self._note, number, call))

    def _note(self, number, end):
        with self._changed:
            self._ended.append((number, end))
            self._changed.notify_all()

    @ray.method(concurrency_group="take")
    def take(self):
        """Waits until a call has ended; pickled ([(id, kind, bytes of the result or report)], names of modules that the
        program is asked for)."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._asked or self._closed)
            asked = list(self._asked)
            self._asked.clear()
        ends, size = [], 0
        while self._ended and size < _REPLY_BYTES:
            number, end = self._ended.popleft()
            self._out.pop(number, None)
            kind, data = self._end_of(end)
            size += len(data)
            ends.append((number, kind, data))
        return pickle.dumps((ends, asked), 5)

    def _end_of(self, end):
        result, error = (None, end) if isinstance(end, Ended) else end.outcome()
        kind = Kind.OK if error is None else error.kind
        try:
            data = values.to_bytes(result if error is None else error.payload, self._codec.pack)
        except (TypeError, ValueError, RecursionError) as reason:
            kind, data = Kind.VALUE, values.to_bytes(f"result: {reason}", self._codec.pack)
        return int(kind), data

    def later(self, name):
        """What the program says about a module that an import in a VM waits for: None, it is here; else the reason."""
        with self._changed:
            self._asked.append(name)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answers.get(name), _LATER_S):
                return f"import {name}: the program did not answer within {_LATER_S} s"
            return self._answers[name].pop()

    @ray.method(concurrency_group="control")
    def close(self):
        """Ends the VMs. No call is left."""
        self._workers.close(True)
        self._workers.wait_closed()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _NodeWorkers(_Workers):
    """The workers of an executor whose modules come from the program."""

    def __init__(self, node, *arguments, **keywords):
        self._node = node
        super().__init__(*arguments, **keywords)

    def _add_later(self, name):
        return self._node.later(name)


def _keep(service):
    """The actor itself owns the service: it lives as long as the process."""
