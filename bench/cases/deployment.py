"""The deployment platform: functions that take `quick` and yield Results are in bench/deployment.py."""

from bench import deployment


def run(quick):
    return [result for row in deployment.ROWS for result in row(quick)]
