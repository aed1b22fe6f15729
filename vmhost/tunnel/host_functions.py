"""Host functions through which tasks in VMs use the tunnel.

    Host(functions=task_functions(device, ["features", "classify"]))

A task with `permissions: {tunnel: [features]}` in its task.yaml may use the channel `features`, and no other:

    from vmhost.guest import host
    host.tunnel_features({"send": b"..."})                         # the message's id
    host.tunnel_classify({"ask": image, "timeout_s": 0.5})         # {"answer": value} or {"error": text, ...}

A missing answer is not an error in the task: it gets {"error": text, "offline": ..., "late": ...}, both true or false.
"""

import re
import threading

from vmhost.tunnel.errors import AnswerError, NoAnswerError, OfflineError, TunnelConfigurationError

PREFIX = "tunnel_"
_NAME = re.compile(r"\w+")
LONGEST_S = 30.0  # time limit of an `ask` without `timeout_s`
START_S = 10.0


def task_functions(device, channels):
    """{"tunnel_CHANNEL": function} for `Host(functions=...)`. `device`: a Device, or an AsyncDevice, whose loop
    then has to run while tasks do. Channel names must be valid in names of functions: letters, digits and `_`."""
    if hasattr(device, "run_on_loop"):
        device = _Blocking(device)
    found = {}
    for channel in channels:
        if not _NAME.fullmatch(channel):
            raise TunnelConfigurationError(
                f"channel {channel!r}: tasks name it in permissions.host; expected letters, digits and _"
            )
        found[PREFIX + channel] = _function(device, channel)
    return found


class _Blocking:
    """An AsyncDevice for the threads of a host."""

    def __init__(self, device):
        self._device = device

    def send(self, *given, **more):
        return self._device.run_on_loop(self._device.send(*given, **more))

    def request(self, *given):
        return self._device.run_on_loop(self._device.request(*given))


class TaskChannels:
    """`functions`, as from `task_functions`, for a host that starts before its Device: calls wait for `device` to be
    set, for some seconds."""

    def __init__(self, channels):
        self._set = threading.Event()
        self._device = None
        self.functions = task_functions(self, channels)

    @property
    def device(self):
        return self._device

    @device.setter
    def device(self, device):
        self._device = device
        self._set.set()

    def _wait(self):
        if not self._set.wait(START_S):
            raise OfflineError("the device has not started")
        return _Blocking(self._device) if hasattr(self._device, "run_on_loop") else self._device

    def send(self, *given, **more):
        return self._wait().send(*given, **more)

    def request(self, *given):
        return self._wait().request(*given)


def _function(device, channel):
    def use(value):
        if not isinstance(value, dict) or ("send" in value) == ("ask" in value):
            raise ValueError(f'{PREFIX}{channel}: expected {{"send": bytes}} or {{"ask": value}}')
        unknown = value.keys() - {"send", "ask", "id", "timeout_s"}
        if unknown:
            raise ValueError(f"{PREFIX}{channel}: unknown {', '.join(map(repr, sorted(unknown)))}")
        if "send" in value:
            return device.send(channel, value["send"], identity=value.get("id"))
        try:
            return {"answer": device.request(channel, value["ask"], value.get("timeout_s", LONGEST_S))}
        except (OfflineError, NoAnswerError, AnswerError) as error:
            return {
                "error": str(error),
                "offline": isinstance(error, OfflineError),
                "late": isinstance(error, NoAnswerError),
            }

    return use
