"""The deployment platform: functions that take `quick` and yield Results are in bench/deployment*.py."""

from bench import deployment, deployment_fleet


def run(quick):
    return [result for row in (*deployment.ROWS, *deployment_fleet.ROWS) for result in row(quick)]
