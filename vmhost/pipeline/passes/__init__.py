"""Passes over many events at once, in C: what Python would do for each of them, one attribute after another."""

from vmhost.pipeline.passes._passes import EventList, columns, pack_contents, usual

__all__ = ["EventList", "columns", "pack_contents", "usual"]
