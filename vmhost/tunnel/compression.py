"""Compression of frames with zstd, with dictionaries trained on the traffic of a channel.

A dictionary has a number and never changes; a newer one has a higher number. The cloud stores them and sends each
device the newest one once; the device stores it and uses it for the channel from then on. Number 0 means no dictionary.
The first four bytes of zstd's frames, which are always the same, are not sent.
"""

from compression import zstd

from vmhost.tunnel.errors import ProtocolError, TunnelConfigurationError

MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 3
_WINDOW_LOG = 20  # 1 MiB: bound of the memory for unpacking
_SMALLEST = 96  # bytes; smaller frames are not compressed
DICTIONARY_BYTES = 32 << 10
_OPTIONS = {
    zstd.CompressionParameter.compression_level: _LEVEL,
    zstd.CompressionParameter.window_log: 17,
    zstd.CompressionParameter.checksum_flag: 0,
    zstd.CompressionParameter.dict_id_flag: 0,
    zstd.CompressionParameter.content_size_flag: 0,
}
_UNPACKING = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}


def train(samples, size=DICTIONARY_BYTES):
    """The bytes of a dictionary trained on samples (bytes). TunnelConfigurationError if there are too few."""
    try:
        return zstd.train_dict(samples, size).dict_content
    except (zstd.ZstdError, ValueError) as error:
        raise TunnelConfigurationError(
            f"a dictionary cannot be trained on {len(samples)} samples: {error}; some hundred are wanted"
        ) from None


class Compression:
    """The dictionaries of one end of a connection. Connections on one thread may share it."""

    def __init__(self, dictionaries=()):
        """`dictionaries`: (channel, number, bytes)."""
        self._dictionaries = {}
        self._newest = {}
        self._packers = {}
        for channel, number, data in dictionaries:
            self.add(channel, number, data)

    def add(self, channel, number, data):
        """ValueError if the bytes are not a dictionary."""
        try:
            self._dictionaries[number] = zstd.ZstdDict(data)
        except (zstd.ZstdError, ValueError) as error:
            raise ValueError(f"dictionary {number} of channel {channel}: {error}") from None
        if number > self._newest.get(channel, 0):
            self._newest[channel] = number

    @property
    def numbers(self):
        return sorted(self._dictionaries)

    def newest(self, channel):
        """The number of the channel's newest dictionary; 0 if there is none."""
        return self._newest.get(channel, 0)

    def only(self, numbers):
        """A Compression that packs with these dictionaries only, and unpacks with all."""
        return _Restricted(self, frozenset(numbers))

    def pack(self, channel, data):
        """(number of the dictionary, packed data); None if packing saves nothing."""
        return self._pack(self._newest.get(channel, 0), data)

    def _pack(self, number, data):
        if len(data) < _SMALLEST:
            return None
        packer = self._packers.get(number)
        if packer is None:
            dictionary = self._dictionaries.get(number)
            packer = self._packers[number] = zstd.ZstdCompressor(
                options=_OPTIONS, zstd_dict=dictionary and dictionary.as_digested_dict
            )
        packed = packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        return (number, packed[4:]) if len(packed) + 4 < len(data) else None

    def unpack(self, data, number, size):
        """The unpacked data. ProtocolError."""
        dictionary = None
        if number:
            dictionary = self._dictionaries.get(number)
            if dictionary is None:
                raise ProtocolError(f"packed with dictionary {number}, which this end does not have")
        try:
            unpacker = zstd.ZstdDecompressor(zstd_dict=dictionary, options=_UNPACKING)
            plain = unpacker.decompress(MAGIC + data, size + 1)
        except zstd.ZstdError as error:
            raise ProtocolError(f"a packed frame cannot be unpacked: {error}") from None
        if len(plain) != size or not unpacker.eof or unpacker.unused_data:
            raise ProtocolError(f"a packed frame does not hold the {size} bytes that it says")
        return plain


class _Restricted:
    def __init__(self, whole, numbers):
        self._whole, self._numbers = whole, numbers
        self.unpack = whole.unpack

    def pack(self, channel, data):
        number = self._whole.newest(channel)
        return self._whole._pack(number if number in self._numbers else 0, data)
