"""Costs of operations: recording, metrics, profiles, the dashboard, replays. Functions are in bench/operations.py."""

from bench import operations


def run(quick, rows=None, calls=None):
    found = []
    for row in operations.ROWS:
        if rows is None or row.__name__ in rows:
            found += row(quick, calls) if row is operations.replays else row(quick)
    return found
