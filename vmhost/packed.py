"""Packed: a value as msgpack bytes, decoded in the VM that it is sent to."""

from vmhost.isolation.vm import core

TYPE_CHECKING = False
if TYPE_CHECKING:

    class Packed:
        """For type checkers; the class is the native core's."""

        def __init__(self, data: bytes) -> None: ...

else:
    Packed = core().Packed
