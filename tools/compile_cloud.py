"""`vmhost compile` as a script, for machines with a checkout and no installation: the same options and output.

    python tools/compile_cloud.py tasks/digits -o build/digits.vmb [--target 3.14] [--sign KEY] [--optimize N]
        [--with PKG]... [--record SCRIPT] [--strict] [--json]

Output and exit status: docs/cli.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vmhost.cli import run_alone
from vmhost.cli.compile import command
from vmhost.cli.examples import with_examples

if __name__ == "__main__":
    raise SystemExit(run_alone(with_examples(command, "compile"), "compile_cloud.py"))
