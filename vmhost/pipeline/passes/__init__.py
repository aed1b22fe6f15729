"""Loops over many events in C, in place of attribute access one by one in Python."""

from vmhost.pipeline.passes._passes import EventList, columns, pack_contents, usual

__all__ = ["EventList", "columns", "pack_contents", "usual"]
