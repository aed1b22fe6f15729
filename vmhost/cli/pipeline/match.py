"""`vmhost pipeline match`: questions, each a rule and events; the answers have every match and time-out."""

import json
import sys

import click

from vmhost.cli import failures


@click.command(short_help="Match rules against events, both from a file of questions.")
@click.argument("questions", type=click.Path(allow_dash=True))
@failures.command
def match(output, questions):
    """Answer QUESTIONS, lines of JSON ("-": of stdin): {"rule": …, "events": [{"id", "at", "name", "key", …}, …],
    "watermark"?: "per-event" | "end" | "direct"}. Each answer is a line with matches, time-outs, and the events that
    caused them. docs/patterns.md describes rules. The status is 1 if a line is not a question, or its rule is
    refused."""
    from vmhost.pipeline.patterns.questions import answer

    refused = False
    try:
        with click.open_file(questions, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    said = answer(json.loads(line))
                except (json.JSONDecodeError, RecursionError) as error:
                    said = {"error": f"line {number}: not JSON: {error}", "phase": "read"}
                refused = refused or "error" in said
                sys.stdout.write(json.dumps(said, ensure_ascii=False) + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise failures.Failure(f"{questions}: {getattr(error, 'strerror', None) or error}") from error
    return failures.TASK_FAILED if refused else failures.DONE
