"""A TCP proxy on loopback that cuts, stops or slows the connections that go through it."""

import contextlib
import random
import socket
import struct
import threading

from vmhost.tunnel.addresses import parse


class Proxy:
    """`address` leads to `target`. With `cut_after=(least, most)` each connection is reset after that many bytes of
    both directions. `hold()`: bytes stay in the proxy (a black hole) until `release()`. `cut()`: resets all now."""

    def __init__(self, target, *, cut_after=None, seed=0):
        self._target = parse(target)[0]
        self.cut_after = cut_after
        self._random = random.Random(seed)
        self._open = threading.Event()
        self._open.set()
        self._pairs = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listening.getsockname()[1]}"
        self.connections = 0
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def retarget(self, target):
        self._target = parse(target)[0]

    def _accept(self):
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            pair = _Pair(near, far, self.cut_after and self._random.randint(*self.cut_after))
            with self._lock:
                self._pairs.add(pair)
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._carry, args=(pair, source, sink))
                self._threads.append(thread)
                thread.start()

    def _carry(self, pair, source, sink):
        try:
            while data := source.recv(4096):
                self._open.wait()
                with pair.lock:
                    if pair.left is not None:
                        pair.left -= len(data)
                        if pair.left < 0:
                            self.cuts += 1
                            break
                sink.sendall(data)
        except OSError:
            pass
        pair.reset()
        with self._lock:
            self._pairs.discard(pair)

    def hold(self):
        self._open.clear()

    def release(self):
        self._open.set()

    def cut(self):
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self.cuts += 1
            pair.reset()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.release()
        self.cut_after = None
        self.cut()
        for thread in self._threads:
            thread.join()


class _Pair:
    def __init__(self, near, far, left):
        self.near, self.far, self.left = near, far, left
        self.lock = threading.Lock()

    def reset(self):
        for each in (self.near, self.far):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
