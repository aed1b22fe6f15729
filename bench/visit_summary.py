"""The summary of a visit's events, for rows of `pipeline`: in a VM, in a process, or with streamz."""


def run(value):
    events = value["events"]
    counts, shown, clicked, depth = {}, set(), set(), 0
    for event in events:
        name, contents = event["name"], event["contents"]
        counts[name] = counts.get(name, 0) + 1
        if name == "exposure":
            shown.add(contents["item"])
        elif name == "click":
            clicked.add(contents["item"])
        elif name == "page_scroll":
            depth = max(depth, contents["depth"])
    return {
        "visit": value["visit"],
        "events": len(events),
        "dwell_ms": events[-1]["time_ms"] - events[0]["time_ms"],
        "depth": depth,
        "exposures": counts.get("exposure", 0),
        "clicked": len(shown & clicked),
    }
