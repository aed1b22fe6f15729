"""All-to-all exchange of arrays between processes of one machine: data by shared memory, turns by sockets.

The memory has a box for each pair of processes. A message goes through its box in pieces: the sender fills the box and
announces it on the pair's socket, the receiver takes the piece and acknowledges it there. A socket closes with its
process, so nobody waits for a process that has ended."""

import mmap
import struct
import zlib

import numpy

BOX = 1 << 20  # bytes
_TURN = struct.Struct("<QQI")  # bytes of the message and of this piece, checksum of `what`
_ARRAY = struct.Struct("<8sQ")  # dtype, number of dimensions; the dimensions follow


class PeerLostError(Exception):
    """The process with number `rank` has ended."""

    def __init__(self, rank):
        super().__init__(f"shard {rank} has ended")
        self.rank = rank


class OtherCallError(Exception):
    """Two processes wait for each other in different calls."""


class Exchange:
    """One process's end of the exchange.

    memory: a file descriptor of count * count boxes. peers: a socket to each other process by its number."""

    def __init__(self, rank, count, memory, peers):
        self.rank, self.count, self.peers = rank, count, peers
        self._memory = mmap.mmap(memory, BOX * count * count)

    def __call__(self, what, parts):
        """Sends the arrays parts[d] to process d, and returns what each process sent to this one: lists of arrays by
        process.

        All must call it with the same `what`; otherwise OtherCallError is raised. PeerLostError."""
        check = zlib.crc32(what.encode())
        got = [None] * self.count
        got[self.rank] = own_part(parts[self.rank])
        sending = {peer: _packed(parts[peer]) for peer in self.peers}
        sent, receiving = dict.fromkeys(self.peers, 0), {}
        open_peers = set(self.peers)
        while open_peers:
            for peer in sorted(open_peers):
                data, begin = sending[peer], sent[peer]
                piece = data[begin : begin + BOX]
                at = BOX * (self.rank * self.count + peer)
                self._memory[at : at + len(piece)] = piece
                self._send(peer, _TURN.pack(len(data), len(piece), check))
                sent[peer] += len(piece)
            for peer in sorted(open_peers):
                total, size, other = _TURN.unpack(self._receive(peer, _TURN.size))
                if other != check:
                    raise OtherCallError(
                        f"shard {self.rank} {what}, and shard {peer} makes another call: all shards make the same calls"
                        " in the same order"
                    )
                box = receiving.setdefault(peer, bytearray())
                at = BOX * (peer * self.count + self.rank)
                box += memoryview(self._memory)[at : at + size]
                self._send(peer, b"+")
                if len(box) == total:
                    got[peer] = _unpacked(box)
            for peer in sorted(open_peers):
                self._receive(peer, 1)
                if got[peer] is not None and sent[peer] == len(sending[peer]):
                    open_peers.discard(peer)
        return got

    def _send(self, peer, data):
        try:
            self.peers[peer].sendall(data)
        except OSError as error:
            raise PeerLostError(peer) from error

    def _receive(self, peer, size):
        data = b""
        while len(data) < size:
            try:
                more = self.peers[peer].recv(size - len(data))
            except OSError as error:
                raise PeerLostError(peer) from error
            if not more:
                raise PeerLostError(peer)
            data += more
        return data


def own_part(arrays):
    """A process's message to itself, as arrays that may cross into a VM."""
    return [numpy.asarray(one, order="C") for one in arrays]


def _packed(arrays):
    parts = []
    for one in arrays:
        array = numpy.asarray(one)
        parts.append(_ARRAY.pack(array.dtype.str.encode(), array.ndim))
        parts.append(struct.pack(f"<{array.ndim}Q", *array.shape))
        parts.append(array.tobytes())
    return b"".join(parts)


def _unpacked(data):
    """Arrays over the same memory."""
    arrays, at = [], 0
    while at < len(data):
        code, rank = _ARRAY.unpack_from(data, at)
        at += _ARRAY.size
        shape = struct.unpack_from(f"<{rank}Q", data, at)
        at += 8 * rank
        dtype = numpy.dtype(code.rstrip(b"\0").decode())
        count = int(numpy.prod(shape, dtype=numpy.int64))
        arrays.append(numpy.frombuffer(data, dtype, count, at).reshape(shape))
        at += count * dtype.itemsize
    return arrays
