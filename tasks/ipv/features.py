"""The feature of one visit of an item page: a summary of all its events, one value of about 1.3 KB.

An event is a dict with "name", "time_ms" and "contents", as a triggered call gets it (docs/pipeline.md); README.md
describes the contents. Any part of the contents may be missing, which counts as not having happened. Times ending in
`_ms` are milliseconds since the visit began, except `entered_ms` and `left_ms`, which are event times.
"""

PAUSE_MS = 15_000  # of a longer gap between two events only this much counts as activity
EIGHTHS = 8  # parts of the page's height in the profile
SEEN = 8  # exposed items listed in the feature
SOURCES = ("home", "search", "item", "cart", "order", "message")
AREAS = ("recommended", "bought_together", "same_shop")
TARGETS = ("gallery", "reviews", "variant", "item", "shop", "share", "favourite", "cart", "buy")


def feature(events):
    """The feature of a visit's events; None if none of them names the page's item."""
    events = [event for event in events if not _made_by_pipeline(event)]
    events.sort(key=lambda event: event["time_ms"])  # stable: equal times stay in order of arrival
    contents = [event["contents"] if isinstance(event["contents"], dict) else {} for event in events]
    item = next((one["item"] for one in contents if isinstance(one.get("item"), dict)), None)
    if item is None or not isinstance(item.get("id"), str):
        return None
    entered, left = events[0]["time_ms"], events[-1]["time_ms"]
    steps = [(event["name"], event["time_ms"] - entered, one) for event, one in zip(events, contents)]
    names = [name for name, _, _ in steps]
    return {
        "item": {name: item.get(name) for name in ("id", "category", "brand", "shop", "price_cents")},
        "from": next((one["from"] for one in contents if "from" in one), None),
        "entered_ms": entered,
        "left_ms": left,
        "dwell_ms": left - entered,
        "active_ms": sum(min(after - before, PAUSE_MS) for (_, before, _), (_, after, _) in zip(steps, steps[1:])),
        "complete": "page_enter" in names and "page_exit" in names,
        "events": {name: names.count(name) for name in sorted(set(names))},
        "favourite": _favourite(steps),
        "cart": _pieces(steps, "cart"),
        "order": _pieces(steps, "order"),
        "scroll": _scroll(steps),
        **_exposures(steps),
        "clicks": _clicks(steps),
    }


def _made_by_pipeline(event):
    """Whether the pipeline made this exit because none came."""
    contents = event["contents"]
    return event["name"] == "page_exit" and isinstance(contents, dict) and "closed_by" in contents


def _number(contents, name):
    value = contents.get(name)
    return value if isinstance(value, (int, float)) else 0


def _named(steps, name):
    return [(time, contents) for one, time, contents in steps if one == name]


def _favourite(steps):
    changes = _named(steps, "favourite")
    return {
        "on": bool(changes and changes[-1][1].get("on")),
        "changes": len(changes),
        "first_ms": changes[0][0] if changes else None,
    }


def _pieces(steps, name):
    changes = _named(steps, name)
    return {
        "pieces": sum(_number(contents, "pieces") for _, contents in changes),
        "amount_cents": sum(_number(contents, "amount_cents") for _, contents in changes),
        "variants": sorted({contents["variant"] for _, contents in changes if "variant" in contents}),
        "first_ms": changes[0][0] if changes else None,
    }


def _scroll(steps):
    """`depth`: the lowest part of the page that was on the screen, 0 to 1; `profile_ms`: how long the screen's lower
    edge was in each eighth of the page; `turns`: how often the direction changed."""
    depth, deepest_ms, distance, turns, count = 0.0, None, 0, 0, 0
    offset, direction, profile, eighth, since = 0, 0, [0] * EIGHTHS, 0, 0
    for name, time, contents in steps:
        height = _number(contents, "height_px")
        if name == "page_scroll" and height > 0:
            count += 1
            now = _number(contents, "offset_px")
            moved = now - offset
            distance, offset = distance + abs(moved), now
            sign = (moved > 0) - (moved < 0)
            turns, direction = turns + (sign * direction < 0), sign or direction
            reached = min((now + _number(contents, "viewport_px")) / height, 1.0)
            if reached > depth:
                depth, deepest_ms = reached, time
            profile[eighth] += time - since
            eighth, since = min(int(reached * EIGHTHS), EIGHTHS - 1), time
    profile[eighth] += steps[-1][1] - since
    return {
        "count": count,
        "depth": round(depth, 4),
        "deepest_ms": deepest_ms,
        "distance_px": distance,
        "turns": turns,
        "profile_ms": profile,
    }


def _exposures(steps):
    """What was shown besides the item: each (area, item) once, with its total visible time, and whether a click on it
    followed its first exposure."""
    shown = {}
    for name, time, contents in steps:
        about = (contents.get("area"), contents.get("shown"))
        if name == "exposure" and about[1] is not None:
            entry = shown.setdefault(about, {"slot": contents.get("slot"), "first": time, "visible": 0, "clicked": 0})
            entry["visible"] += _number(contents, "visible_ms")
        elif name == "click" and about in shown:
            shown[about]["clicked"] = 1
    areas = {area: {"shown": 0, "clicked": 0} for area in AREAS}
    for (area, _), entry in shown.items():
        if area in areas:
            areas[area]["shown"] += 1
            areas[area]["clicked"] += entry["clicked"]
    clicked = sum(entry["clicked"] for entry in shown.values())
    return {
        "exposures": {
            "count": len(_named(steps, "exposure")),
            "items": len(shown),
            "visible_ms": sum(entry["visible"] for entry in shown.values()),
            "clicked": clicked,
            "share": round(clicked / len(shown), 4) if shown else 0.0,
            "areas": areas,
        },
        "seen": [
            [item, area, entry["slot"], entry["first"], entry["visible"], entry["clicked"]]
            for (area, item), entry in list(shown.items())[:SEEN]
        ],
    }


def _clicks(steps):
    clicks = _named(steps, "click")
    targets = [contents.get("target") for _, contents in clicks]
    return {
        "count": len(clicks),
        "first_ms": clicks[0][0] if clicks else None,
        "last_ms": clicks[-1][0] if clicks else None,
        "targets": {target: targets.count(target) for target in TARGETS},
    }
