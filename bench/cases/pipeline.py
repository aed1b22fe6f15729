"""The data pipeline. Each part's rows are in a file of its own: functions that take `quick` and yield Results."""

from bench import event_store, features, patterns, triggers, whole_pipeline

ROWS = (*whole_pipeline.ROWS, *triggers.ROWS, *patterns.ROWS, *event_store.ROWS, *features.ROWS)


def run(quick):
    return [result for row in ROWS for result in row(quick)]
