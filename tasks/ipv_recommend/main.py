"""Recommends items to a shopper by the latest visits of item pages: the features stored by the task `ipv`, read on
request.

Takes the input of a triggered call, `{"key", "visit", "events", …}`, and reads the shopper's rows with the host
function `table_rows`; or takes the rows themselves, `{"key", "rows": rows of the table ipv, latest first}`. Returns the
row of its own table: the ten best items and their scores. Items that were ordered according to the rows are not
recommended."""

import json

import vmhost.engine.numpy as np
from vmhost import engine
from vmhost.guest import host

TOP = 10
_known = {}


def setup():
    with open("catalogue.json", encoding="ascii") as file:
        _known["items"] = [item["id"] for item in json.load(file)]
    _known["model"] = model = engine.load("recommender")
    _known["recent"], _known["width"] = next(port.shape for port in model.inputs if port.name == "encodings")


def run(value):
    recent = _known["recent"]
    rows = value["rows"] if "rows" in value else _stored(value["key"])
    encodings = np.zeros((recent, _known["width"]), dtype="float32")
    for number, row in enumerate(rows[:recent]):
        encodings[number] = np.frombuffer(row["encoding"], dtype="float32")
    there = (np.arange(recent) < len(rows))[None]
    scores = _known["model"]({"encodings": encodings, "there": there})["scores"][0]
    ordered = {row["item"] for row in rows if row["feature"]["order"]["pieces"] > 0}
    best = [place for place in np.argsort(-scores, kind="stable").tolist() if _known["items"][place] not in ordered]
    return {
        "shopper": value["key"],
        "visit": value.get("visit", ""),
        "items": [_known["items"][place] for place in best[:TOP]],
        "scores": [float(scores[place]) for place in best[:TOP]],
        "visits": len(rows),
    }


def _stored(key):
    return host.table_rows({"table": "ipv", "key": key, "limit": _known["recent"]})
