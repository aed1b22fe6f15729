"""Heavy task: grows a random forest on 400 breast tumours whose diagnosis is known, then judges the caller's.

Takes `{"rows": [[30 numbers], ...], "seed": 0, "trees": 240}` (`seed` and `trees` may be left out) and returns one
label per row: 1 benign, 0 malignant. The same seed gives the same answer.
"""

import csv
import random

from tree import grow, share

COLUMNS = 30
DEPTH = 8

_rows = []
_labels = []


def setup():
    _rows.clear()
    _labels.clear()
    with open("training.csv", encoding="ascii", newline="") as file:
        for *row, label in csv.reader(file):
            _rows.append([float(number) for number in row])
            _labels.append(int(label))


def run(value):
    for number, row in enumerate(value["rows"]):
        if len(row) != COLUMNS:
            raise ValueError(f"rows[{number}]: expected {COLUMNS} numbers, got {len(row)}")
    chance = random.Random(value.get("seed", 0))
    forest = []
    for _ in range(value.get("trees", 240)):
        drawn = chance.choices(range(len(_rows)), k=len(_rows))
        forest.append(grow([_rows[number] for number in drawn], [_labels[number] for number in drawn], chance, DEPTH))
    return [int(2 * sum(share(tree, row) for tree in forest) >= len(forest)) for row in value["rows"]]
