"""python -m bench [SUBJECT …] [--quick] [--only SUBJECT …] [--classes CLASS …] [--sizes SIZE …] [--networks NETWORK …]
                [--rows ROW …] [--calls COUNT] [--json] [--out FOLDER]

Runs every subject of bench/cases, ours and the peers' in turn, and prints medians, quartiles and ratios. It asserts
nothing."""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console

from bench import contenders, report
from bench.cases import ENGINE_CLASSES, ENGINE_SIZES, NETWORKS, OPERATIONS_ROWS

SUBJECTS = (
    "round_trip",
    "throughput",
    "compute",
    "lifecycle",
    "stops",
    "data",
    "engine",
    "models",
    "sessions",
    "search",
    "others",
    "trees",
    "decoders",
    "scripts",
    "guest",
    "device",
    "pipeline",
    "deployment",
    "tunnel",
    "training",
    "operations",
)


def main():
    parser = argparse.ArgumentParser(prog="vmhost bench", description=__doc__.split("\n\n")[1])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="the same as --only")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that everything runs; the figures mean little"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SUBJECTS, default=SUBJECTS, metavar="SUBJECT", help=", ".join(SUBJECTS)
    )
    parser.add_argument(
        "--classes",
        nargs="+",
        choices=ENGINE_CLASSES,
        metavar="CLASS",
        help=f"of engine, only: {', '.join(ENGINE_CLASSES)}",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=ENGINE_SIZES,
        metavar="SIZE",
        help=f"of engine's operators over arrays, elements: {', '.join(ENGINE_SIZES)}",
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        choices=NETWORKS,
        metavar="NETWORK",
        help=f"of models and sessions, only: {', '.join(NETWORKS)}",
    )
    parser.add_argument(
        "--families", nargs="+", metavar="FAMILY", help="of others, only: modules of bench/other_models"
    )
    parser.add_argument(
        "--rows", nargs="+", choices=OPERATIONS_ROWS, metavar="ROW", help=f"of operations: {', '.join(OPERATIONS_ROWS)}"
    )
    parser.add_argument(
        "--calls",
        type=int,
        metavar="COUNT",
        help="calls that operations replays, however long that takes",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), help="folder for results.json and results.svg"
    )
    options = parser.parse_args()
    for subject in options.subjects:
        if subject not in SUBJECTS:
            parser.error(f"expected one of {', '.join(SUBJECTS)}, got {subject!r}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)  # before anything is measured, which takes minutes
    except OSError as error:
        parser.error(f"--out: {options.out}: cannot create the folder: {error.strerror}")
    progress = Console(stderr=True)
    results = []
    try:
        for subject in options.subjects or options.only:
            progress.print(f"measuring {subject} …", style="dim")
            chosen = (
                {"classes": options.classes, "sizes": options.sizes}
                if subject == "engine"
                else {"networks_asked": options.networks}
                if subject in ("models", "sessions")
                else {"families": options.families}
                if subject == "others"
                else {"rows": options.rows, "calls": options.calls}
                if subject == "operations"
                else {}
            )
            results += importlib.import_module(f"bench.cases.{subject}").run(
                options.quick, **{name: values for name, values in chosen.items() if values}
            )
    finally:
        contenders.remove_bundles()
    if not results:
        raise SystemExit(1)  # a subject without what it needs has said so
    report.write_json(results, options.out / "results.json")
    try:
        report.draw(results, options.out / "results.svg")
    except ImportError:
        progress.print("no chart: matplotlib is not installed (pip install 'vmhost[bench]')", style="dim")
    if options.json:
        print(json.dumps(report.as_dict(results), indent=1))
    else:
        report.show(results)
        progress.print(f"written: {options.out / 'results.json'}, {options.out / 'results.svg'}", style="dim")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
