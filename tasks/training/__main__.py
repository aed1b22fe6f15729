"""`python -m tasks.training NAME ...`: trains these networks and writes their files into the tasks' folders, where they
are committed."""

import importlib
import sys
from pathlib import Path

TASKS = Path(__file__).resolve().parent.parent
NAMES = ("digits_cnn", "ipv", "reranking", "vision")


def main(names):
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        return f"expected some of {', '.join(NAMES)}, got {' '.join(unknown) or 'none'}"
    for name in names:
        files, summary = importlib.import_module(f"tasks.training.{name}").prepare()
        for path, data in files.items():
            (TASKS / path).write_bytes(data)
            print(f"tasks/{path}: {len(data)} bytes")
        print(f"{name}: {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
