"""Compares the matcher of patterns with Apache Flink CEP: random rules and streams go through both, and every match and
time-out is compared, as multisets per event. `make cep-oracle` runs it.

    python -m tests.pipeline.flink FOLDER [--count 2000] [--seed N] [--questions FILE] [--keep FILE]

FOLDER holds Flink's jars (tools/flink.sh puts them there) and compiled classes. Java 17 with javac is needed. With
`--keep`, questions and Flink's answers become the file that tests without Java use.

Counted as the same: both refuse a rule; Flink says itself that its answer depends on the order of a heap (`fragile`)
and numbers of matches agree. What is left out: rules that we refuse on purpose (docs/patterns.md), questions at which
Flink itself fails with an error of its own (NullPointerException, no answer in time), and differences where time goes
back (see time_comes_again).
"""

import argparse
import collections
import gzip
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

from tests.pipeline.pattern_questions import question
from vmhost.pipeline.patterns.questions import answer

HERE = Path(__file__).parent
MAIN, GAVE_UP = "Flink", 75  # the class with `main`; its exit code when it gives up a question
OPENS = [f"--add-opens=java.base/java.{part}=ALL-UNNAMED" for part in ("util", "lang", "time")]
QUIET = ["-Dlog4j2.level=OFF", "-Dorg.apache.logging.log4j.level=OFF", "-Dlog4j2.StatusLogger.level=OFF"]


def class_path(folder):
    jars = sorted(str(path) for path in Path(folder).glob("*.jar"))
    if not any("flink-cep" in jar for jar in jars):
        raise SystemExit(f"{folder}: no flink-cep jar there; run tools/flink.sh, or `make cep-oracle`")
    return ":".join(jars)


def compiled(folder):
    """The folder with the classes of the Java files beside this one, compiled again if one has changed."""
    classes, sources = Path(folder, "classes"), sorted(HERE.glob("*.java"))
    made = classes / f"{MAIN}.class"
    if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        shutil.rmtree(classes, ignore_errors=True)
        subprocess.run(["javac", "-nowarn", "-cp", class_path(folder), "-d", classes, *sources], check=True)
    return classes


def java(folder, main):
    """The command that runs the class `main` beside Flink."""
    classes = compiled(folder)
    options = ["-Xmx3g", "-XX:+UseSerialGC", *QUIET, *OPENS]
    return ["java", *options, "-cp", f"{class_path(folder)}:{classes}", main]


def flinks_answers(folder, questions):
    """One answer for each question. If Flink loops without end, the Java process ends; another one continues."""
    command = java(folder, MAIN)
    # The first question loads Flink's classes, which on a busy machine takes longer than the limit of a question.
    warm = {"rule": {"pattern": [{"name": "a"}]}, "events": [{"id": 1, "at": 1}], "probe": True, "limit_ms": 120_000}
    answers = []
    while len(answers) < len(questions):
        lines = "".join(json.dumps(one) + "\n" for one in (warm, *questions[len(answers) :]))
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
        got = [json.loads(line) for line in done.stdout.splitlines()][1:]
        answers += got
        if not got or done.returncode not in (0, GAVE_UP):
            raise SystemExit(f"java: {len(answers)} answers of {len(questions)}\n{done.stderr[-4000:]}")
    return answers


def bags(result):
    """Matches and time-outs as multisets, with the events that they came at."""
    matches = collections.Counter(json.dumps(pair) for pair in zip(result["matches"], result["match_on"]))
    timeouts = zip(result["timeouts"], result["timeout_on"], result["timeout_at"])
    return matches, collections.Counter(json.dumps(triple) for triple in timeouts), result.get("late", [])


def time_comes_again(asked):
    """Whether a key has an event of a time that it has left before. Flink tells events apart by their time and a number
    which it counts from 0 again then, so one event takes another's place in its buffer. Its operator sorts events by
    time, so only the mode `direct` sees this."""
    last, left = {}, set()
    for event in asked["events"] if asked["watermark"] == "direct" else ():
        key, at = event.get("key", ""), event["at"]
        if (key, at) in left:
            return True
        if last.setdefault(key, at) != at:
            left.add((key, last[key]))
            last[key] = at
    return False


def with_one_limit(asked):
    """The question with the limits from the first event to the last as one, at the end of the rule: where Flink, and
    only there, looks at it in each case."""
    asked = json.loads(json.dumps(asked))
    rule, limits = asked["rule"], []

    def take(step):
        if "within_ms" in step and step.get("within", "first_and_last") == "first_and_last":
            limits.append(step.pop("within_ms"))
            step.pop("within", None)
        for inner in (*step.get("group", ()), *step.get("pattern", ())):
            take(inner)

    take(rule)
    last = rule["pattern"][-1]
    if "within_ms" in rule and "within_ms" in last:  # both from step to step
        rule["within_ms"] = min(rule["within_ms"], last.pop("within_ms"))
        del last["within"]
    if limits:
        (last if "within_ms" in rule else rule)["within_ms"] = min(limits)
    return asked


def verdict(asked, flink, ours):
    """`same`, `refused` (by both), `left out`, `fragile`, or `DIFFERS`."""
    found = _compared(flink, ours)
    return "left out" if found == "DIFFERS" and time_comes_again(asked) else found


def _compared(flink, ours):
    if "error" in ours and any(reason in ours["error"] for reason in ("may match nothing", "at the end of a group")):
        return "left out"
    if "error" in flink and "error" in ours:
        return "refused"
    if "error" in flink:
        own = "NullPointerException", "no answer in", "OutOfMemory"
        return "left out" if any(word in flink["error"] for word in own) else "DIFFERS"
    if "error" in ours:
        return "DIFFERS"
    if bags(flink) == bags(ours):
        return "same"
    return "fragile" if flink.get("fragile") else "DIFFERS"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", default=str(random.randrange(1 << 32)))
    options.add_argument("--questions")
    options.add_argument("--keep")
    asked = options.parse_args()
    if asked.questions:
        questions = [json.loads(line) for line in Path(asked.questions).read_text().splitlines()]
    else:
        questions = [question(f"{asked.seed}-{number}") for number in range(asked.count)]
    answers = flinks_answers(asked.folder, list(map(with_one_limit, questions)))
    counts, with_matches = collections.Counter(), 0
    for one, flink in zip(questions, answers):
        ours = answer(one)
        found = verdict(one, flink, ours)
        counts[found] += 1
        with_matches += bool(flink.get("matches"))
        if found == "DIFFERS":
            print(json.dumps(one), "\n  flink", json.dumps(flink), "\n  ours ", json.dumps(ours))
    print(f"seed {asked.seed}: {len(questions)} questions, {with_matches} with matches: {dict(counts)}")
    if asked.keep:
        with gzip.GzipFile(asked.keep, "wb", mtime=0) as kept:
            for one, flink in zip(questions, answers):
                kept.write((json.dumps([one, flink], separators=(",", ":")) + "\n").encode())
    return 1 if counts["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
