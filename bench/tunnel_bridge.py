"""Two network namespaces with a bridge of our own between them, which delays, drops and cuts real packets.

`Bridge` moves the process that makes it into a namespace of its own, with the address 10.77.0.1; a server for 10.77.0.2
calls `enter_far()` in its own process. Each namespace has a TUN device; a third process carries packets between the
two. The kernel's netem could do the same, where it exists. It needs the right to make namespaces and TUN devices, as
root has.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import time

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
_UP_RUNNING = 0x41
_MTU = 1500
_QUEUE = 1000  # packets held by the link in one direction


class Bridge:
    """`loss`: of packets, 0 to 1. `cut_every_s`: interval at which all open connections are cut; `cut`: "resets" (both
    ends get reset packets) or "black holes" (their packets vanish from then on; new connections work)."""

    def __init__(self, *, one_way_s=0.025, loss=0.02, cut_every_s=10.0, cut="resets", seed=1):
        os.unshare(os.CLONE_NEWNET)
        self._far = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        far = _device(FAR)
        os.unshare(os.CLONE_NEWNET)
        near = _device(NEAR)
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            code = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _Carrier(near, far, one_way_s, loss, cut_every_s, cut, seed, writing).run()
                code = 0
            finally:
                os._exit(code)
        for each in (near, far, writing):
            os.close(each)

    def enter_far(self):
        os.setns(self._far, os.CLONE_NEWNET)

    def begin(self):
        """Starts losses and cuts."""
        os.kill(self._pid, signal.SIGUSR1)

    def close(self):
        """{"packets", "dropped", "cuts", "cut_connections"}."""
        os.kill(self._pid, signal.SIGUSR2)
        report = b""
        while data := os.read(self._reading, 4096):
            report += data
        os.waitpid(self._pid, 0)
        os.close(self._reading)
        os.close(self._far)
        return dict(zip(("packets", "dropped", "cuts", "cut_connections"), map(int, report.split())))


def _device(address):
    """The descriptor of a TUN device with this address, in the namespace of this process."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"link", _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for what, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            request = struct.pack("16sHH4s16x", b"link", socket.AF_INET, 0, socket.inet_aton(text))
            fcntl.ioctl(asking, what, request)
        for name in (b"link", b"lo"):
            fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _UP_RUNNING))
    return device


class _Carrier:
    def __init__(self, near, far, one_way_s, loss, cut_every_s, cut, seed, report):
        self._other = {near: far, far: near}
        self._one_way_s, self._loss = one_way_s, loss
        self._cut_every_s, self._resets = cut_every_s, cut == "resets"
        self._random = random.Random(seed)
        self._report = report
        self._waiting = []  # (when, count, descriptor, packet)
        self._count = 0
        self._flows = {}  # (source, port, target, port) -> (sequence number, acknowledgement) that come next
        self._dark = set()
        self._begun = self._ended = False
        self._cut_at = None
        self._counts = dict.fromkeys(("packets", "dropped", "cuts", "cut_connections"), 0)

    def run(self):
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_begun", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "_ended", True))
        while not self._ended:
            now = time.monotonic()
            if self._begun and self._cut_at is None:
                self._cut_at = now + self._cut_every_s
            if self._cut_at is not None and now >= self._cut_at:
                self._cut_at += self._cut_every_s
                self._cut()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, target, packet = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):
                    os.write(target, packet)
            due = min(self._waiting[0][0] if self._waiting else now + 0.1, self._cut_at or now + 0.1)
            ready, _, _ = select.select(list(self._other), [], [], max(0.0, due - time.monotonic()))
            for source in ready:
                self._take(source)
        os.write(self._report, " ".join(map(str, self._counts.values())).encode())

    def _take(self, source):
        for _ in range(64):
            try:
                packet = os.read(source, _MTU)
            except BlockingIOError:
                return
            self._counts["packets"] += 1
            flow = self._follow(packet)
            lost = self._begun and self._random.random() < self._loss
            if lost or flow in self._dark or len(self._waiting) > _QUEUE:
                self._counts["dropped"] += 1
                continue
            self._pass(self._other[source], packet)

    def _pass(self, target, packet):
        self._count += 1
        heapq.heappush(self._waiting, (time.monotonic() + self._one_way_s, self._count, target, packet))

    def _follow(self, packet):
        """Tracks a TCP connection; returns its key, or None."""
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return None
        start = (packet[0] & 15) * 4
        ports, sequence, acknowledgement, offset, flags = struct.unpack_from("!IIIBB", packet, start)
        flow = packet[12:20], ports
        size = struct.unpack_from("!H", packet, 2)[0] - start - (offset >> 4) * 4
        if flags & 2:
            self._dark.discard(flow)
        if flags & 16:
            self._flows[flow] = (sequence + size + bool(flags & 3)) & 0xFFFFFFFF, acknowledgement
        if flags & 5:  # FIN or RST
            self._flows.pop(flow, None)
        return flow

    def _cut(self):
        self._counts["cuts"] += 1
        for flow, (sequence, acknowledgement) in self._flows.items():
            self._counts["cut_connections"] += 1
            if self._resets:
                near = flow[0][:4] == socket.inet_aton(NEAR)
                targets = list(self._other)
                # as if the sender of the flow had closed it
                self._pass(targets[1] if near else targets[0], _reset(*flow, sequence, acknowledgement))
            else:
                self._dark.add(flow)
        self._counts["cut_connections"] -= len(self._flows) // 2  # each has two flows
        self._flows.clear()


def _reset(addresses, ports, sequence, acknowledgement):
    """A packet that resets a TCP connection."""
    tcp = struct.pack("!IIIBBHHH", ports, sequence, acknowledgement, 5 << 4, 4 | 16, 0, 0, 0)
    pseudo = addresses + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", _checksum(pseudo + tcp)) + tcp[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0x4000, 64, socket.IPPROTO_TCP, 0) + addresses
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + tcp


def _checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
