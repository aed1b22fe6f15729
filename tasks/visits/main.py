"""A stream task: what a shopper did on an item's page, as one row of the table `visits`."""


def run(value):
    """`value["events"]`: the events of one visit, from page_enter to page_exit, in order of time."""
    events = value["events"]
    return {
        "shopper": value["key"],
        "item": next((event["contents"]["item"] for event in events if event["name"] == "page_enter"), ""),
        "dwell_ms": events[-1]["time_ms"] - events[0]["time_ms"],
        "clicks": sum(event["name"] == "click" for event in events),
    }
