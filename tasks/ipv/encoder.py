"""The encoding of a feature: 32 numbers, 128 bytes, by the network `encoder` in the bundle.

The network takes the feature's figures scaled to about one (`numbers`), and hashes of item, category, brand and shop as
rows of its tables (`places`), so that unseen ones have a row too.
"""

import math
from binascii import crc32

from features import AREAS, SOURCES, TARGETS

PLACES = {"id": 1024, "category": 64, "brand": 128, "shop": 128}  # rows of the network's tables
COUNTED = ("page_enter", "page_scroll", "exposure", "click")
DAY_MS = 86_400_000


def places(item):
    """The rows in the network's tables for the item's id, category, brand and shop: four integers."""
    return [crc32(str(item[name]).encode()) % size for name, size in PLACES.items()]


def numbers(feature):
    """The figures of a feature, `WIDTH` floats: logarithms of times and counts, shares unchanged."""
    order, cart, scroll, clicks = (feature[name] for name in ("order", "cart", "scroll", "clicks"))
    exposures, favourite = feature["exposures"], feature["favourite"]
    dwell = max(feature["dwell_ms"], 1)
    day = 2 * math.pi * (feature["entered_ms"] % DAY_MS) / DAY_MS
    return [
        _seconds(feature["dwell_ms"]),
        feature["active_ms"] / dwell,
        float(feature["complete"]),
        math.log1p(max(feature["item"]["price_cents"] or 0, 0)) / 10,
        math.sin(day),
        math.cos(day),
        *(float(feature["from"] == source) for source in SOURCES),
        *(math.log1p(feature["events"].get(name, 0)) for name in COUNTED),
        float(favourite["on"]),
        _seconds(favourite["first_ms"]),
        math.log1p(max(cart["pieces"], 0)),
        _seconds(cart["first_ms"]),
        math.log1p(max(order["pieces"], 0)),
        _seconds(order["first_ms"]),
        scroll["depth"],
        _seconds(scroll["deepest_ms"]),
        math.log1p(scroll["turns"]),
        math.log1p(scroll["distance_px"] / 1000),
        *(time / dwell for time in scroll["profile_ms"]),
        math.log1p(exposures["items"]),
        exposures["share"],
        *(math.log1p(exposures["areas"][area]["clicked"]) for area in AREAS),
        *(math.log1p(clicks["targets"][target]) for target in TARGETS),
        _seconds(clicks["first_ms"]),
    ]


WIDTH = 6 + len(SOURCES) + len(COUNTED) + 10 + 8 + 2 + len(AREAS) + len(TARGETS) + 1


def _seconds(time_ms):
    return 0.0 if time_ms is None else math.log1p(max(time_ms, 0) / 1000)
