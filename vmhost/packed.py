"""Packed: a value as bytes of msgpack, which becomes the value in the VM that it goes to."""

from vmhost.isolation.vm import core

Packed = core().Packed
