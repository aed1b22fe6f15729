"""Item page views: summarizes all events of one visit of an item page as a feature and its encoding, when the page is
left.

Takes the input of a triggered call, `{"key", "visit", "events", …}` (docs/pipeline.md); returns the row of the table
`ipv`, or None for a visit without a named item."""

from encoder import numbers, places
from features import feature

import vmhost.engine.numpy as np
from vmhost import engine

_known = {}


def setup():
    _known["model"] = engine.load("encoder")


def run(value):
    found = feature(value["events"])
    if found is None:
        return None
    return {
        "shopper": value["key"],
        "visit": value["visit"],
        "item": found["item"]["id"],
        "dwell_ms": found["dwell_ms"],
        "feature": found,
        "encoding": encoded(found),
    }


def encoded(found):
    """The feature's encoding: 32 float32 in the machine's byte order, 128 bytes."""
    figures = np.asarray([numbers(found)], dtype="float32")
    where = np.asarray([places(found["item"])], dtype="int64")
    return _known["model"]({"numbers": figures, "places": where})["encoding"].tobytes()
