"""Packed: a value as msgpack bytes, decoded in the VM that it is sent to."""

from vmhost.isolation.vm import core

Packed = core().Packed
