"""`python -m vmhost.stdlib.patches --check LIB` lists the hunks that do not apply to the standard library in LIB."""

import argparse
import sys
from pathlib import Path

from vmhost.stdlib.patches import VERSION, Patch, PatchError, patch_names


def check(library, version):
    """The messages for hunks refused by the sources below `library`, and the number of patches."""
    sources, refusals = {}, []
    names = patch_names(version)
    for name in names:
        patch = Patch(name)
        if patch.target not in sources:
            path = library / patch.target
            if not path.is_file():
                refusals.append(f"vmhost/stdlib/patches/{name}: there is no {path}")
                continue
            sources[patch.target] = path.read_bytes().decode()
        # keep what was applied, so that a startup patch meets the source that it was made for
        sources[patch.target], refused = patch.apply(sources[patch.target])
        refusals += [patch.refusal(hunk, found) for hunk, found in refused]
    return refusals, len(names)


def main(arguments=None):
    """Exit status 0 if all patches apply, 1 if not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m vmhost.stdlib.patches", description=__doc__)
    parser.add_argument("--check", type=Path, metavar="LIB", required=True, help="such as /usr/lib/python3.15")
    parser.add_argument("--version", default=VERSION, help="whose patches (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        refusals, count = check(options.check, options.version)
    except PatchError as error:
        refusals, count = [str(error)], 0
    print("\n".join(refusals) or f"all {count} patches for Python {options.version} apply to {options.check}")
    return 1 if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
