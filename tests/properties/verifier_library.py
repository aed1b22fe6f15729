"""Does the verifier accept everything that the compiler makes of the whole standard library?

    python -m tests.properties.verifier_library [FOLDER ...] [--optimize 0 --optimize 2]

Compiles and verifies every module below the folders (the running Python's library if none is named; give the folder of
the `test` package too where it is installed apart). Prints what was verified and how fast; the exit status is 1 if
anything was refused.
"""

import argparse
import os
import sys
import time
import types
import warnings
from pathlib import Path

from vmhost.bytecode.corrections import compile_corrected
from vmhost.bytecode.verifier import VerifyError, verify


def modules(folders):
    """(path, source) of every module that can be read."""
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            if path.is_file():
                yield path, path.read_bytes()


def measure(folders, levels):
    """{level: (modules, code objects, bytes of bytecode, seconds, [refusals])}; what is no Python source is left
    out."""
    found = {}
    for level in levels:
        count = objects = size = 0
        seconds, refusals = 0.0, []
        for path, source in modules(folders):
            try:
                with warnings.catch_warnings(action="ignore"):
                    code = compile_corrected(source, str(path), level)
            except SyntaxError, ValueError, RecursionError:
                continue
            begun = time.process_time()
            try:
                verify(code, where=path.name)
            except VerifyError as error:
                refusals.append(str(error))
            seconds += time.process_time() - begun
            count += 1
            pending = [code]
            while pending:
                one = pending.pop()
                objects += 1
                size += len(one.co_code)
                pending.extend(each for each in one.co_consts if isinstance(each, types.CodeType))
        found[level] = (count, objects, size, seconds, refusals)
    return found


def main():
    parser = argparse.ArgumentParser(description="Verifies everything that the compiler makes of the standard library.")
    parser.add_argument("folders", nargs="*", default=[os.path.dirname(os.__file__)])
    parser.add_argument("--optimize", type=int, action="append", choices=(0, 1, 2))
    options = parser.parse_args()
    refused = 0
    for level, (count, objects, size, seconds, refusals) in measure(
        options.folders, options.optimize or [0, 2]
    ).items():
        print(
            f"optimize {level}: {count} modules, {objects} code objects, {size} bytes of bytecode in {seconds:.1f} s of"
            f" CPU ({size / 1000 / seconds:.0f} kB/s), {len(refusals)} refused"
        )
        for each in refusals:
            print("   ", each)
        refused += len(refusals)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
