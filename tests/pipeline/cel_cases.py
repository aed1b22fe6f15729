"""The conformance cases of the CEL specification for the subset of the language that conditions may use.

    python -m tests.pipeline.cel_cases                      prints what is claimed, passed and left out, by file
    python -m tests.pipeline.cel_cases --read FOLDER        makes cel_cases.jsonl.gz of a folder of .textproto files

A case is claimed if the subset accepts its expression: it must then give the value, or the error, that the
specification states. The cases are the specification's, under the Apache License 2.0 (cel_cases.NOTICE).
"""

import argparse
import collections
import gzip
import json
import math
import re
import sys
from pathlib import Path

from vmhost.pipeline.patterns import PatternEngine, cel
from vmhost.pipeline.patterns.lowering import lower
from vmhost.pipeline.patterns.rules import RuleError, Skip, Step

KEPT = Path(__file__).with_name("cel_cases.jsonl.gz")
FILES = (
    "basic",
    "comparisons",
    "conversions",
    "fields",
    "fp_math",
    "integer_math",
    "logic",
    "macros",
    "parse",
    "plumbing",
    "string",
)
_TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[{}:\[\],<>;]|[^\s{}:\[\],<>;"\']+)')
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


# ---- protocol buffers' text format


def _text(token):
    """The bytes of a quoted text."""

    def replaced(found):
        value = found[1]
        if value[:1] == b"x":
            return bytes([int(value[1:], 16)])
        if value[:1] in b"01234567":
            return bytes([int(value, 8)])
        if value[:1] in b"uU":
            return chr(int(value[1:], 16)).encode()
        return _SIMPLE.get(value, value)

    return _ESCAPE.sub(replaced, token[1:-1].encode())


def _message(tokens):
    """{name: [values]} up to the brace that closes it."""
    found = {}
    while (name := next(tokens, None)) not in (None, "}", ">"):
        if name in ",;":
            continue
        if name == "[":  # an extension or a type's address
            while name != "]":
                name = next(tokens)
            name = "[]"
        token = next(tokens)
        if token == ":":
            token = next(tokens)
        if token in "{<":
            value = _message(tokens)
        elif token == "[":
            value = []
            while (token := next(tokens)) != "]":
                if token in "{<":
                    value.append(_message(tokens))
                elif token != ",":
                    value.append(token)
        else:
            value = token
            while value[0] in "\"'" and tokens.peek()[:1] in ('"', "'"):  # texts in a row are one
                value = '"' + value[1:-1].replace('"', '\\"') + next(tokens)[1:-1].replace('"', '\\"') + '"'
        found.setdefault(name, []).append(value)
    return found


class _Tokens:
    def __init__(self, text):
        self._found, self._at = _TOKEN.findall(text), 0

    def __iter__(self):
        return self

    def peek(self):
        return self._found[self._at] if self._at < len(self._found) else ""

    def __next__(self):
        if self._at == len(self._found):
            raise StopIteration
        self._at += 1
        return self._found[self._at - 1]


def _value(message):
    """[kind, value as JSON]; None for kinds that the subset lacks."""
    if len(message) != 1:
        return None
    ((kind, (value, *_)),) = message.items()
    if kind == "null_value":
        return ["null", None]
    if kind == "bool_value":
        return ["bool", value == "true"]
    if kind in ("int64_value", "uint64_value"):
        return ["int" if kind[0] == "i" else "uint", int(value, 0)]
    if kind == "double_value":
        return ["double", repr(float(value.replace("infinity", "inf")))]
    if kind == "string_value":
        return ["string", _text(value).decode()]
    return ["bytes", _text(value).hex()] if kind == "bytes_value" else None


def read_cases(folder):
    for name in FILES:
        message = _message(_Tokens(Path(folder, f"{name}.textproto").read_text()))
        for section in message["section"]:
            for test in section.get("test", ()):
                variables = {}
                for entry in test.get("bindings", ()):
                    key = _text(entry["key"][0]).decode()
                    inner = entry["value"][0].get("value")
                    variables[key] = _value(inner[0]) if inner else None
                types = {}
                for entry in test.get("type_env", ()):
                    primitive = entry.get("ident", [{}])[0].get("type", [{}])[0].get("primitive", [None])[0]
                    types[_text(entry["name"][0]).decode()] = primitive
                case = {
                    "case": f"{name}/{_text(section['name'][0]).decode()}/{_text(test['name'][0]).decode()}",
                    "expr": _text(test["expr"][0]).decode(errors="surrogateescape"),
                    "variables": variables,
                    "types": types,
                }
                if "eval_error" in test or "any_eval_errors" in test:
                    case["error"] = True
                elif "value" in test:
                    case["value"] = _value(test["value"][0])
                elif "unknown" in test or "typed_result" in test:
                    case["value"] = None
                else:
                    case["value"] = ["bool", True]
                yield case


def kept():
    with gzip.open(KEPT, "rt") as lines:
        return [json.loads(line) for line in lines]


# ---- running them

_TYPES = {"BOOL": "BOOL", "INT64": "INT", "UINT64": "UINT", "DOUBLE": "DOUBLE", "STRING": "STRING", "BYTES": "BYTES"}


def verdict(case):
    """(`passed`, `left out` or `FAILED`, why)"""
    from cel_expr_python import cel as google

    if case.get("value", 1) is None:
        return "left out", "a value of another kind"
    if any(value is None or value[0] == "uint" for value in case["variables"].values()):
        return "left out", "a variable of another kind"
    variables = dict.fromkeys(case["variables"], google.Type.DYN)
    for name, kind in case["types"].items():
        variables[name] = getattr(google.Type, _TYPES.get(kind, "DYN"))
    try:
        checked = cel.compile_checked(google.NewEnv(variables=variables), case["expr"], "case")
        _, operations = cel._Lowering(checked, None, None, variables=variables or {"": None}).program()
    except RuleError as error:
        return ("left out", "Google's checker does not take it") if not case.get("error") else ("left out", str(error))
    except cel.Unsupported as error:
        return "left out", str(error)
    got = evaluated(
        cel.Program(case["expr"], operations), {name: _python(value) for name, value in case["variables"].items()}
    )
    wanted = ["error", None] if case.get("error") else case["value"]
    return ("passed", "") if _same(got, wanted) else ("FAILED", f"{case['expr']}: expected {wanted}, got {got}")


def _python(value):
    kind, field = value
    return float(field) if kind == "double" else bytes.fromhex(field) if kind == "bytes" else field


def _same(got, wanted):
    if got[0] != wanted[0]:
        return False
    value = _python(wanted)
    if got[0] == "double" and math.isnan(value):
        return math.isnan(got[1])
    return got[1] == value and (got[0] != "double" or math.copysign(1, got[1]) == math.copysign(1, value))


def evaluated(program, contents):
    """(kind, value) of a program's result."""
    from vmhost.pipeline.patterns import automaton
    from vmhost.pipeline.patterns.rules import Rule

    rule = Rule((Step("pattern[0]", "a", None, ("leaf", program)),), 0, Skip("no_skip"))
    engine = PatternEngine()
    lowered = lower(rule, automaton.build(rule), "key", engine.field)
    engine.put("r", object(), lowered.description)
    return engine.evaluate("r", 0, contents, "", "", "", "", 0, 0)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--read")
    asked = options.parse_args()
    if asked.read:
        with gzip.GzipFile(KEPT, "wb", mtime=0) as file:
            for case in read_cases(asked.read):
                file.write((json.dumps(case) + "\n").encode())
    counts, failed = collections.defaultdict(collections.Counter), []
    for case in kept():
        found, why = verdict(case)
        counts[case["case"].partition("/")[0]][found] += 1
        if found == "FAILED":
            failed.append(f"{case['case']}: {why}")
    print(*failed, sep="\n")
    print("| file | claimed | passed | left out |\n| --- | --- | --- | --- |")
    for name, row in [*counts.items(), ("all", sum(counts.values(), collections.Counter()))]:
        print(f"| {name} | {row['passed'] + row['FAILED']} | {row['passed']} | {row['left out']} |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
