"""Random questions for the matcher of patterns, and for Flink: rules with all features, over short streams.

python -m tests.pipeline.pattern_questions --count 1000 --seed 1 > questions.jsonl
"""

import argparse
import json
import random

NAMES = "abcd"
CONTIGUITIES = ("next", "followed_by", "followed_by", "followed_by_any")
NOTS = ("not_next", "not_followed_by", "not_followed_by")
OPS = ("==", "!=", "<", "<=", ">", ">=")


def question(seed):
    dice = random.Random(f"pattern {seed}")
    rule = _rule(dice)
    events = _events(dice)
    asked = {"case": seed, "rule": rule, "events": events, "probe": True, "limit": 3000, "limit_ms": 2000}
    mode = dice.choice(("per-event", "per-event", "end", "direct"))
    return asked | {"watermark": mode} | ({"flush": True} if dice.random() < 0.5 else {})


def _events(dice):
    at, events = dice.randint(0, 3), []
    keys = dice.choice((("",), ("k",), ("k", "l"), ("k", "l", "m")))
    for number in range(dice.randint(4, 14)):
        at += dice.choice((0, 1, 1, 1, 2, 3, 5, 9))
        late = dice.random() < 0.04
        event = {
            "id": number,
            "at": max(0, at - dice.randint(1, 4)) if late else at,
            "name": dice.choice(NAMES[: dice.choice((2, 3, 4))]),
        }
        if keys != ("",):
            event["key"] = dice.choice(keys)
        if dice.random() < 0.9:
            event["v"] = dice.choice((0, 1, 2, 3, 4, 5, 2.5, -1))
        if dice.random() < 0.3:
            event["w"] = dice.choice((None, True, False, "x", "y", 3))
        events.append(event)
    return events


def _rule(dice):
    names = iter("pqrstuvwxyz" + "".join(chr(0x3B1 + n) for n in range(20)))
    known = []
    pattern = _chain(dice, names, known, dice.choice((1, 2, 2, 3, 3, 4)), 0)
    rule = {"pattern": pattern}
    trailing = pattern[-1].get("contiguity") == "not_followed_by"
    if dice.random() < 0.6 or (trailing and dice.random() < 0.9):
        rule["within_ms"] = dice.choice((2, 3, 5, 8, 12, 30))
        if dice.random() < 0.25:
            rule["within"] = dice.choice(("first_and_last", "previous_and_current"))
    top = [step["name"] for step in pattern if "name" in step]
    kind = dice.choice(("no_skip", "no_skip", "to_next", "past_last", "to_first", "to_last"))
    if kind in ("to_first", "to_last"):
        if top:
            rule["skip"] = {kind: dice.choice(top)} | ({"throw": True} if dice.random() < 0.2 else {})
    elif dice.random() < 0.9:
        rule["skip"] = kind
    return rule


def _chain(dice, names, known, count, depth):
    steps = []
    for number in range(count):
        grouped = depth < 2 and dice.random() < 0.12
        step = {}
        if grouped:
            step["group"] = _chain(dice, names, known, dice.choice((1, 2, 2, 3)), depth + 1)
        else:
            step["name"] = next(names)
        if number:
            negative = not grouped and dice.random() < 0.2
            how = dice.choice(NOTS if negative else CONTIGUITIES)
            if how != "followed_by" or dice.random() < 0.5:
                step["contiguity"] = how
        else:
            negative = False
        if not grouped:
            step |= _conditions(dice, known, negative)
        if not negative or dice.random() < 0.02:
            step |= _quantifier(dice, known, grouped)
        if dice.random() < 0.08:
            step["within_ms"] = dice.choice((2, 4, 7))
            if dice.random() < 0.7:
                step["within"] = "previous_and_current"
        if not grouped and not negative:
            known.append(step["name"])
        steps.append(step)
    return steps


def _conditions(dice, known, negative):
    conditions = {}
    if dice.random() < 0.85:
        conditions["event"] = dice.choice(NAMES[:3])
    if dice.random() < 0.3 or not conditions:
        conditions["where"] = _condition(dice, known, 0)
    if dice.random() < 0.05:
        conditions["or"] = _condition(dice, known, 1)
    return conditions


def _condition(dice, known, depth):
    kind = dice.random()
    if depth < 2 and kind < 0.15:
        return {dice.choice(("all", "any")): [_condition(dice, known, depth + 1) for _ in range(dice.randint(1, 2))]}
    if depth < 2 and kind < 0.22:
        return {"not": _condition(dice, known, depth + 1)}
    if kind < 0.3:
        return {"event": dice.choice(NAMES)}
    if kind < 0.55 and known:
        aggregate = dice.choice(("sum_of", "count_of", "min_of", "max_of", "avg_of", "first_of", "last_of"))
        step = dice.choice(known)
        of = [step] if aggregate == "count_of" and dice.random() < 0.5 else [step, "v"]
        if dice.random() < 0.4:
            return {"field": "v", "op": dice.choice(OPS), aggregate: of}
        condition = {aggregate: of, "op": dice.choice(OPS), "value": dice.choice((0, 1, 2, 4, 6))}
        return condition | ({"plus": "v"} if dice.random() < 0.3 else {})
    field = dice.choice(("v", "v", "v", "w", "at", "none"))
    return {"field": field, "op": dice.choice(OPS), "value": dice.choice((0, 1, 2, 3, 4, "x", True, None))}


def _quantifier(dice, known, grouped):
    quantifier = {}
    if dice.random() < 0.4:
        quantifier["times"] = dice.choice(
            (1, 2, 3, [1, 2], [2, 3], [1, 3], [0, 2], [1, None], [1, None], [2, None], [0, None])
        )
        if dice.random() < 0.2:
            quantifier["consecutive"] = True
        elif dice.random() < 0.2:
            quantifier["combinations"] = True
        if dice.random() < (0.02 if grouped else 0.2):
            quantifier["greedy"] = True
        unbounded = isinstance(quantifier["times"], list) and quantifier["times"][1] is None
        if dice.random() < (0.25 if unbounded else 0.02):
            quantifier["until"] = _condition(dice, known, 1)
        if dice.random() < 0.06:
            quantifier["times_within_ms"] = dice.choice((2, 4, 6))
    if dice.random() < 0.15:
        quantifier["optional"] = True
    return quantifier


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    for number in range(asked.count):
        print(json.dumps(question(f"{asked.seed}-{number}"), ensure_ascii=False))


if __name__ == "__main__":
    main()
