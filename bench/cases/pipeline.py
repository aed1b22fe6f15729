"""The data pipeline. The rows of each part are in a file of their own: functions that take `quick` and yield
Results."""

from bench import event_store, features, http_events, patterns, triggers, whole_pipeline

ROWS = (*whole_pipeline.ROWS, *triggers.ROWS, *patterns.ROWS, *event_store.ROWS, *features.ROWS, *http_events.ROWS)


def run(quick):
    return [result for row in ROWS for result in row(quick)]
