"""A host under a light load with its dashboard: python -m tests.operations.dashboard_process BUNDLE PORT TOKEN"""

import sys
import time
from pathlib import Path

import vmhost
from vmhost.operations import Dashboard


def main(bundle, port, token):
    bundle = Path(bundle)
    noted = vmhost.Policy(task=vmhost.TaskPolicy(coverage=1.0))
    sources = [path for path in bundle.parent.iterdir() if (path / "task.yaml").is_file()]
    with (
        vmhost.Host(allow_unsigned=True, policy=noted) as host,
        Dashboard(host, f"127.0.0.1:{port}", token=token, sources=sources) as dashboard,
    ):
        task = host.load(bundle.read_bytes())
        print(dashboard.port, flush=True)
        number = 0
        while True:
            number += 1
            task(f"number {number}")
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
