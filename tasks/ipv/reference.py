"""Every feature of an event log, in the slow and plain way: `python -m tasks.ipv.reference events.jsonl`.

Written from the description in README.md, without the task's code, and without state: each figure is computed from the
visit's events from scratch. Tests and measurements compare the pipeline's features with it.
"""

import json
import sys
from fractions import Fraction


def features(log):
    """{id of a visit: its feature} for each visit of an item's page in `log`, events as dicts. Events with an id that
    was seen before are skipped, as by the pipeline."""
    visits, known = {}, set()
    for event in log:
        if event.get("id") is None or event["id"] not in known:
            known.add(event.get("id"))
            if event.get("page") == "item" and not _made_by_pipeline(event):
                visits.setdefault(event["visit"], []).append(event)
    made = {visit: _feature(events) for visit, events in visits.items()}
    return {visit: found for visit, found in made.items() if found is not None}


def _made_by_pipeline(event):
    """Whether an exit was made by the pipeline: it says how the visit was closed."""
    contents = event.get("contents")
    return event["name"] == "page_exit" and isinstance(contents, dict) and "closed_by" in contents


def _feature(events):
    numbered = sorted(enumerate(events), key=lambda pair: (pair[1]["time_ms"], pair[0]))
    events = [
        (event["name"], event["time_ms"], event.get("contents") if isinstance(event.get("contents"), dict) else {})
        for _, event in numbered
    ]
    start, end = events[0][1], events[-1][1]
    items = [contents["item"] for _, _, contents in events if isinstance(contents.get("item"), dict)]
    if not items or not isinstance(items[0].get("id"), str):
        return None
    sources = [contents["from"] for _, _, contents in events if "from" in contents]
    names = [name for name, _, _ in events]
    times = [time for _, time, _ in events]
    return {
        "item": {
            "id": items[0]["id"],
            "category": items[0].get("category"),
            "brand": items[0].get("brand"),
            "shop": items[0].get("shop"),
            "price_cents": items[0].get("price_cents"),
        },
        "from": sources[0] if sources else None,
        "entered_ms": start,
        "left_ms": end,
        "dwell_ms": end - start,
        "active_ms": sum(min(times[n + 1] - times[n], 15000) for n in range(len(times) - 1)),
        "complete": names.count("page_enter") > 0 and names.count("page_exit") > 0,
        "events": {name: len([other for other in names if other == name]) for name in sorted(names)},
        "favourite": _favourite([event for event in events if event[0] == "favourite"], start),
        "cart": _goods([event for event in events if event[0] == "cart"], start),
        "order": _goods([event for event in events if event[0] == "order"], start),
        "scroll": _scroll([event for event in events if event[0] == "page_scroll"], start, end),
        "exposures": _exposures(events),
        "seen": _seen(events, start),
        "clicks": _clicks([event for event in events if event[0] == "click"], start),
    }


def _favourite(events, start):
    if not events:
        return {"on": False, "changes": 0, "first_ms": None}
    return {"on": events[-1][2].get("on") is True, "changes": len(events), "first_ms": events[0][1] - start}


def _goods(events, start):
    return {
        "pieces": sum(contents.get("pieces", 0) for _, _, contents in events),
        "amount_cents": sum(contents.get("amount_cents", 0) for _, _, contents in events),
        "variants": sorted({contents["variant"] for _, _, contents in events if "variant" in contents}),
        "first_ms": min((time - start for _, time, _ in events), default=None),
    }


def _lower_edge(contents):
    """The position of the screen's lower edge on the page, as an exact share of its height."""
    return min(Fraction(contents["offset_px"] + contents["viewport_px"], contents["height_px"]), Fraction(1))


def _scroll(events, start, end):
    events = [event for event in events if event[2].get("height_px", 0) > 0]
    offsets = [0] + [contents["offset_px"] for _, _, contents in events]
    moves = [after - before for before, after in zip(offsets, offsets[1:])]
    directions = [1 if move > 0 else -1 for move in moves if move]
    depth = max((_lower_edge(contents) for _, _, contents in events), default=Fraction(0))
    # Between scrolls the edge was in one eighth of the page; before the first one, in the first eighth.
    changes = [(start, 0)] + [(time, min(int(_lower_edge(contents) * 8), 7)) for _, time, contents in events]
    ends = [time for time, _ in changes[1:]] + [end]
    return {
        "count": len(events),
        "depth": round(float(depth), 4),
        "deepest_ms": min(
            (time - start for _, time, contents in events if _lower_edge(contents) == depth > 0), default=None
        ),
        "distance_px": sum(abs(move) for move in moves),
        "turns": sum(before != after for before, after in zip(directions, directions[1:])),
        "profile_ms": [
            sum(until - since for (since, where), until in zip(changes, ends) if where == eighth) for eighth in range(8)
        ],
    }


def _shown(events):
    """Each exposed (area, item), in the order of first exposures."""
    shown = []
    for name, _, contents in events:
        if name == "exposure" and contents.get("shown") is not None:
            if (contents.get("area"), contents["shown"]) not in shown:
                shown.append((contents.get("area"), contents["shown"]))
    return shown


def _was_clicked(events, area, item):
    first = next(number for number, event in enumerate(events) if _is_about(event, "exposure", area, item))
    return any(_is_about(event, "click", area, item) for event in events[first:])


def _is_about(event, name, area, item):
    return event[0] == name and event[2].get("area") == area and event[2].get("shown") == item


def _visible(events, area, item):
    return sum(event[2].get("visible_ms", 0) for event in events if _is_about(event, "exposure", area, item))


def _exposures(events):
    shown = _shown(events)
    clicked = [one for one in shown if _was_clicked(events, *one)]
    return {
        "count": sum(name == "exposure" for name, _, _ in events),
        "items": len(shown),
        "visible_ms": sum(_visible(events, *one) for one in shown),
        "clicked": len(clicked),
        "share": round(len(clicked) / len(shown), 4) if shown else 0.0,
        "areas": {
            area: {
                "shown": sum(one[0] == area for one in shown),
                "clicked": sum(one[0] == area for one in clicked),
            }
            for area in ("recommended", "bought_together", "same_shop")
        },
    }


def _seen(events, start):
    rows = []
    for area, item in _shown(events)[:8]:
        first = next(event for event in events if _is_about(event, "exposure", area, item))
        rows.append(
            [
                item,
                area,
                first[2].get("slot"),
                first[1] - start,
                _visible(events, area, item),
                int(_was_clicked(events, area, item)),
            ]
        )
    return rows


def _clicks(events, start):
    times = [time - start for _, time, _ in events]
    return {
        "count": len(events),
        "first_ms": times[0] if times else None,
        "last_ms": times[-1] if times else None,
        "targets": {
            target: sum(contents.get("target") == target for _, _, contents in events)
            for target in ("gallery", "reviews", "variant", "item", "shop", "share", "favourite", "cart", "buy")
        },
    }


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        for visit, found in features(json.loads(line) for line in file).items():
            print(json.dumps({"visit": visit, "feature": found}))
