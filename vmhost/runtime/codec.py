"""The host's side of values whose classes the native wire does not know: how they are taken apart, and made again.

Each service has a Codec; its lanes call it, on the thread of whoever sends a value or asks for a result. What comes
from a VM may be made up: `vmhost.guest.kinds` checks every part.
"""


class Codec:
    """What the lanes of one service pack and unpack with."""

    @staticmethod
    def pack(value):
        """(kind, detail, payload) of a value that crosses; None. ValueError says why this one cannot."""
        from vmhost.guest.kinds import pack  # few calls bring such a value

        return pack(value)

    @staticmethod
    def unpack(kind, detail, payload, in_key):
        """The value that a VM took apart; `in_key`: it is to be hashed. ValueError says what is wrong with it."""
        from vmhost.guest.kinds import unpack

        return unpack(kind, detail, payload)
