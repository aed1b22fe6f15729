"""Records or replays one call of a VM: results of clocks, of randomness and of host functions.

    {"answers": {name: [answer, ...]}, "random": states or None, "functions": [[name, value, ok, answer], ...],
     "used": [...], "beyond": {name: count}, "cut": bool}

`used` names outside resources that the call used, `beyond` results that a replay needed and the record lacks, `cut`
says that the record is incomplete because a limit was reached. A replay gets such a record, with `faults`: rules for
host functions, [{"function": name, "fails": text, "slow_s": seconds, "every": n}, ...]. Records are stored by
`vmhost/baseline.py`.
"""

import sys

import _vmhost

# Limits of one call; beyond them its record is cut, and not compared.
_MAX_ANSWERS, _MAX_FUNCTIONS = 20_000, 1_000
# The last values of uuid1, uuid6 and uuid7: the next ones are later.
_LAST_IDS = ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7", "_last_counter_v7")
_current = None


class _Recorder:
    """Called for each result of a clock or of randomness, with the real one; returns the result to use."""

    # Class attributes as defaults: most calls need none of these, and stay fast.
    left = _MAX_ANSWERS
    cut = False
    records = faults = ()
    state = ids = None

    def __init__(self, given):
        answers = given["answers"]
        self.replays = answers is not None
        self.answers, self.functions, self.beyond = {}, [], {}
        self.last = {}  # clock -> (its last answer, the real time then)
        self.waiting = {name: results[::-1] for name, results in answers.items()} if answers else {}
        if len(given) > 1:
            self.records = list(given.get("functions") or ())
            self.faults = [{"calls": 0, **fault} for fault in given.get("faults") or ()]
        self.given_state = given.get("random")

    def __call__(self, name, real, argument):
        key = f"{name}({argument})" if name.startswith("clock_") else name
        if self.replays:
            return self.answer(key, real)
        if self.left == 0:
            self.cut = True
        else:
            self.left -= 1
            self.answers.setdefault(key, []).append(real)
        return real

    def answer(self, key, real):
        waiting = self.waiting.get(key)
        if waiting:
            answer = waiting[-1]
            if type(answer) is type(real) and (type(real) is not bytes or len(answer) == len(real)):
                waiting.pop()
                if type(real) is not bytes:
                    self.last[key] = answer, real
                return answer
        self.beyond[key] = self.beyond.get(key, 0) + 1
        if key in self.last and type(real) in (int, float):
            answer, then = self.last[key]  # continue the clock from there
            return answer + (real - then)
        return real

    # -- host functions

    def host_call(self, name, value):
        if self.replays:
            return self.answer_function(name, value)
        ok, answer = _vmhost.host_call(name, value)
        if len(self.functions) < _MAX_FUNCTIONS:
            self.functions.append([name, _snapshot(value), ok, _snapshot(answer)])
        else:
            self.cut = True
        return ok, answer

    def answer_function(self, name, value):
        fault = self.fault_of(name)
        if fault is not None and fault.get("slow_s"):
            from time import sleep

            sleep(fault["slow_s"])
        at = self.place_of(name, value)
        record = self.records.pop(at) if at is not None else None
        if fault is not None and fault.get("fails") is not None:
            ok, answer = False, fault["fails"]
        elif record is not None:
            ok, answer = record[2], record[3]
        else:
            self.beyond[f"host.{name}"] = self.beyond.get(f"host.{name}", 0) + 1
            ok, answer = False, f"LookupError: the record has no answer of {name} any more"
        if len(self.functions) < _MAX_FUNCTIONS:
            self.functions.append([name, _snapshot(value), ok, _snapshot(answer)])
        return ok, answer

    def place_of(self, name, value):
        """The index of the first record of this function with this value, or else of this function."""
        first = None
        for at, record in enumerate(self.records):
            if record[0] == name:
                if first is None:
                    first = at
                try:
                    if record[1] == value:
                        return at
                except Exception:  # arrays
                    continue
        return first

    def fault_of(self, name):
        for fault in self.faults:
            if fault["function"] in (name, "*"):
                fault["calls"] += 1
                if fault["calls"] % fault.get("every", 1) == 0:
                    return fault
        return None

    # -- the state that the modules `random` and `uuid` keep between calls

    def begin_random(self):
        random, uuid = sys.modules.get("random"), sys.modules.get("uuid")
        if not self.replays:
            self.state = random and random._inst.getstate()
            self.ids = uuid and _last_ids(uuid)
            return
        state, ids = self.given_state or (None, None)
        if random is not None and type(state) is tuple:
            random._inst.setstate(state)
        elif random is not None and state == "imported" and self.waiting.get("seed"):
            random._inst.seed(self.waiting["seed"].pop())  # as its import did in the recording
        if uuid is not None:
            vars(uuid).update(ids or dict.fromkeys(_LAST_IDS))

    def end_random(self):
        """(state of `random` before the call, last ids of `uuid`), each only if the call changed it; the state is
        "imported" if the call imported the module."""
        random, uuid = sys.modules.get("random"), sys.modules.get("uuid")
        if random is None:
            state = None
        elif self.state is None:
            state = "imported"
        else:
            state = self.state if random._inst.getstate() != self.state else None
        ids = self.ids if uuid is not None and self.ids != _last_ids(uuid) else None
        return (state, ids) if state or ids else None

    def record(self, used):
        return {
            "answers": self.answers,
            "random": None if self.replays else self.end_random(),
            "functions": self.functions,
            "beyond": self.beyond,
            "cut": self.cut,
            "used": used,
        }


def _last_ids(uuid):
    return {name: getattr(uuid, name, None) for name in _LAST_IDS}


def _snapshot(value):
    """A copy of the containers of `value`, since the task may change them afterwards."""
    kind = type(value)
    if kind is list:
        return [_snapshot(item) for item in value]
    if kind is tuple:
        return tuple([_snapshot(item) for item in value])
    if kind is dict:
        return {key: _snapshot(item) for key, item in value.items()}
    if kind in (set, bytearray):
        return kind(value)
    return value


def begin(given):
    """`given`: a record to replay, or {"answers": None} to record."""
    global _current
    recorder = _Recorder(given)
    recorder.begin_random()
    guest = sys.modules.get("vmhost.guest")
    if guest is not None:
        guest.host_call = recorder.host_call
    _current = recorder
    _vmhost.record(recorder)


def end():
    """The record of the call since `begin`."""
    global _current
    recorder, _current = _current, None
    used = _vmhost.record(None)
    guest = sys.modules.get("vmhost.guest")
    if guest is not None:
        guest.host_call = _vmhost.host_call
    return None if recorder is None else recorder.record(used)
