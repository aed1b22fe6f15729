"""`python -m tests.differential [--seconds N] [--seed S] [--count N]`: random graphs (graphs.py) by our engine and by
ONNX Runtime, on one backend each, at two sizes where sizes are open. Exit status 1: they differ, or ours failed.
`--fusions`: families of operators in every dtype, also by ONNX's reference implementation (fusions.py).
`--rearrangements`: chains of those over open sizes instead (rearrangements.py), each called at eight.

What our compiler refuses is counted by its reason. A difference prints the seed and the nodes."""

import argparse
import collections
import sys
import time

import numpy

from tests.differential.comparison import NotTheirsError, difference, onnx_runtime_of, reference_of
from tests.differential.fusions import Fusion
from tests.differential.graphs import Graph
from tests.differential.rearrangements import Chain
from tests.differential.rearrangements import difference as difference_of_calls
from vmhost.engine.onnx import OnnxError


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="of the first graph; each next one has the next number")
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--length", type=int, default=7, help="operators of a graph")
    parser.add_argument("--rearrangements", action="store_true")
    parser.add_argument("--fusions", action="store_true")
    options = parser.parse_args()
    compared = _rearranged if options.rearrangements else _fusion if options.fusions else _graph
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seeds from {seed} on", flush=True)
    ends, done, reasons, wrong = time.monotonic() + options.seconds, 0, collections.Counter(), 0
    while time.monotonic() < ends and (options.count is None or done < options.count):
        try:
            result = compared(seed + done, options)
        except (OnnxError, NotTheirsError) as error:
            reasons[f"{'ours' if isinstance(error, OnnxError) else 'theirs'}: {reason(str(error))}"] += 1
            result = None
        if result is not None:
            wrong += 1
            print(f"seed {seed + done}: {result}\n", flush=True)
        done += 1
    print(f"{done} graphs, {wrong} differ, {sum(reasons.values())} refused")
    for text, count in reasons.most_common(20):
        print(f"  {count} {text}")
    return 1 if wrong else 0


def _graph(seed, options):
    return difference(Graph(seed, options.length), seed)


def _fusion(seed, options):
    return difference(Fusion(seed), seed, (onnx_runtime_of, reference_of))


def _rearranged(seed, options):
    return difference_of_calls(Chain(seed))


def reason(text):
    """Without the names and numbers that are this graph's."""
    words = [word for word in text.split() if not any(c.isdigit() for c in word)]
    return " ".join(words)[:150]


if __name__ == "__main__":
    numpy.seterr(all="ignore")
    sys.exit(main())
