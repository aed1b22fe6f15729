# requires: arrow
import arrow


def run(value):
    then = arrow.get("2026-11-29T12:00:00+01:00")
    return [
        then.to("US/Pacific").isoformat(),
        then.humanize(then.shift(days=-2), locale="de"),
        then.format("dddd D. MMMM", locale="cs"),
    ]
