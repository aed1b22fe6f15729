"""The probe while a tool watches all events of sys.monitoring, as profilers and debuggers do."""

import sys

from tests.environments import probe

if __name__ == "__main__":
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.PROFILER_ID, "probe")
    seen = 0

    def count(*_):
        global seen
        seen += 1

    events = monitoring.events
    for event in (events.LINE, events.PY_START, events.PY_RETURN, events.CALL, events.RAISE):
        monitoring.register_callback(monitoring.PROFILER_ID, event, count)
    monitoring.set_events(
        monitoring.PROFILER_ID, events.LINE | events.PY_START | events.PY_RETURN | events.CALL | events.RAISE
    )
    probe.main(*sys.argv[1:])
    assert seen > 1000
