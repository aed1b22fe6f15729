"""What operations cost: recording, metrics, profiles, the dashboard, replays. Functions are in bench/operations.py."""

from bench import operations


def run(quick):
    return [result for row in operations.ROWS for result in row(quick)]
