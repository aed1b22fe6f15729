"""Devices that break the protocol again and again: each wait for a welcome is longer, since each connection costs the
server a handshake and reads of its store, which delay others. A device is known by its name, which it has proven."""

from collections import OrderedDict

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 10.0  # shorter than CONNECT_S of device.py, when a device gives up
FORGOTTEN_S = 60.0  # after the end of its wait
MOST = 10_000  # devices remembered; the one that broke the protocol longest ago is forgotten first


class Offenders:
    """Times are those of one clock, in seconds."""

    def __init__(self):
        self._devices = OrderedDict()  # name -> (how often, end of its wait)

    def broke(self, device, now):
        """The device broke the protocol. The first time it waits for nothing: it may be a mishap."""
        times, end = self._devices.pop(device, (0, now))
        times = 1 if now > end + FORGOTTEN_S else times + 1
        wait_s = 0.0 if times == 1 else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(times - 2, 16))
        self._devices[device] = times, now + wait_s
        if len(self._devices) > MOST:
            self._devices.popitem(last=False)

    def wait_s(self, device, now):
        """How long the device's next welcome has to wait."""
        _, end = self._devices.get(device, (0, now))
        return max(0.0, end - now)
