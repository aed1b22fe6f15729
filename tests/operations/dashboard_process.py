"""A host under a light load with its dashboard: python -m tests.operations.dashboard_process BUNDLE PORT TOKEN"""

import sys
import time
from pathlib import Path

import vmhost
from vmhost.operations import Dashboard


def main(bundle, port, token):
    with vmhost.Host(allow_unsigned=True) as host, Dashboard(host, f"127.0.0.1:{port}", token=token) as dashboard:
        task = host.load(Path(bundle).read_bytes())
        print(dashboard.port, flush=True)
        number = 0
        while True:
            number += 1
            task(f"number {number}")
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
