"""Host functions by which tasks in VMs reach the tunnel.

    Host(functions=task_functions(device, ["features", "classify"]))

A task that names `tunnel_features` in `permissions.host` may use the channel `features`, and no other:

    from vmhost.guest import host
    host.tunnel_features({"send": b"..."})                         # the message's id
    host.tunnel_classify({"ask": image, "timeout_s": 0.5})         # {"answer": value} or {"error": text, ...}

An answer that does not come is no error of the task: it gets {"error": text, "offline": True or False} and goes on.
"""

import re

from vmhost.tunnel.errors import AnswerError, NoAnswerError, OfflineError, TunnelConfigurationError

PREFIX = "tunnel_"
_NAME = re.compile(r"\w+")
LONGEST_S = 30.0  # an `ask` without `timeout_s`


def task_functions(device, channels):
    """{"tunnel_CHANNEL": function} for `Host(functions=...)`. `device`: a Device. Channels are named as functions are:
    letters, digits and `_`."""
    found = {}
    for channel in channels:
        if not _NAME.fullmatch(channel):
            raise TunnelConfigurationError(
                f"channel {channel!r}: tasks name it in permissions.host; expected letters, digits and _"
            )
        found[PREFIX + channel] = _function(device, channel)
    return found


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
            return {"error": str(error), "offline": isinstance(error, OfflineError)}

    return use
