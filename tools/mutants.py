"""Mutation testing: changes one line of bytecode or engine at a time and checks whether that room's tests notice.

    python tools/mutants.py map                              which test files run which line, and how long each takes
    python tools/mutants.py run -o after.jsonl               runs a sample of mutants through their room's tests
    python tools/mutants.py run -o after.jsonl --of before.jsonl    runs the mutants of another run again
    python tools/mutants.py pairs BEFORE -o FOLDER           runs each mutant here and in BEFORE, another checkout
    python tools/mutants.py compare before.jsonl after.jsonl        lists the mutants that only one run caught

The sample is drawn with a seed, in equal parts from `bytecode` (Python), `engine` (Python) and `engine` (C). Each
mutant is applied to a private copy of the checkout, C is compiled there, and the room's test files run, the likeliest
to notice first, until one test fails. A test that fails without a mutant is left out. Results:

| result | means |
| --- | --- |
| caught | a test failed, or the tests exceeded their time: `by` names it |
| survived | the test files that run the line passed; `all` is false if these are not known, as for C |
| not compiled | the compiler refused it; another is drawn, and this one is not counted |

At most --seconds of tests run for one mutant. Results are written one line per mutant. An interrupted run continues
where it stopped. Needs only the standard library and pytest.

`pairs` compares the tests of two checkouts whose sources may differ. It draws lines of .py and .c files that are the
same in both and applies each mutation in both, against the tests of each. Both run the files that the map of this
checkout names for a line, in the same order; BEFORE skips those that it lacks, and begins with the file that caught the
mutant here. FOLDER gets before.jsonl and after.jsonl. A test that catches a mutant is run again without it; if it still
fails, it is left out from then on."""

import argparse
import ast
import difflib
import functools
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {  # kind: patterns of its sources, folders of its tests
    "bytecode": (("bytecode/**/*.py",), ("tests/bytecode", "tests/properties")),
    "engine": (("engine/**/*.py",), ("tests/engine",)),
    "engine-c": (("engine/src/**/*.[ch]", "engine/arrays/**/*.[ch]", "engine/embedding/**/*.[ch]"), ("tests/engine",)),
}
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv", ".python", ".hypothesis", ".pytest_cache", ".ruff_cache", ".mypy_cache", "__pycache__", "*.new"),
    *("mutants", "native_tests"),  # in build/: the copy itself is in build/mutants
)
CHUNKS_S = (10, 40)  # seconds of tests in the first chunks, after each of which the result is checked
IDLE_LIMIT = 12  # wall time over processor time after which tests count as hanging, even on a busy machine

# ---- mutations of one line


SWAPS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "+": "-", "-": "+", "*": "+", "//": "*",
    "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "+=": "-=", "-=": "+=", "&&": "||", "||": "&&",
    "and": "or", "or": "and", "True": "False", "False": "True", "true": "false", "false": "true", "is": "is not",
    "in": "not in", "not": "", "break": "continue", "continue": "break",
}  # fmt: skip


def python_mutations(path):
    """{line number: [mutated line, ...]} of a Python file; some may not compile."""
    source = path.read_text()
    lines = source.splitlines()
    found = {}
    tree = ast.parse(source)
    unread = set()  # lines of docstrings and of type annotations
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            unread.update(range(node.lineno, node.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if row in unread or row > len(lines) or token.start[0] != token.end[0]:
            continue
        new = None
        line = lines[row - 1]
        spaced = line[column - 1 : column] == line[token.end[1] : token.end[1] + 1] == " "
        if token.type == tokenize.NAME or (token.type == tokenize.OP and spaced):  # no signs, no unpacking
            new = SWAPS.get(token.string)
        elif token.type == tokenize.NUMBER and token.string.isdigit():
            new = str(int(token.string) + 1)
        if new is not None:
            found.setdefault(row, []).append(line[:column] + new + line[token.end[1] :])
    for node in ast.walk(tree):  # whole statements of one line
        if not isinstance(node, ast.stmt) or node.lineno != node.end_lineno or node.lineno in unread:
            continue
        line = lines[node.lineno - 1]
        if ";" in line or line[: node.col_offset].strip():
            continue
        indent = line[: node.col_offset]
        match node:
            case ast.Return(value=ast.expr()):
                found.setdefault(node.lineno, []).append(f"{indent}return None")
            case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Expr(value=ast.Call()):
                found.setdefault(node.lineno, []).append(f"{indent}pass")
    return found


def compiles(path, row, line):
    """Does a Python file with this line differ, and compile? For C, the compiler decides later."""
    lines = path.read_text().splitlines()
    if line.rstrip() == lines[row - 1].rstrip():
        return False
    if path.suffix != ".py":
        return True
    try:
        compile("\n".join([*lines[: row - 1], line, *lines[row:]]) + "\n", "mutant", "exec", dont_inherit=True)
    except SyntaxError, ValueError:
        return False
    return True


C_TOKEN = re.compile(
    r"""//.*|/\*.*?(?:\*/|$)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'
    |(?<=[ ])(?:==|!=|<=|>=|<<|>>|&&|\|\||\+=|-=|[-+*/%<>&|])(?=[ ])
    |\b(?:true|false|break|continue)\b|(?<![\w.])\d+(?![\w.])""",
    re.VERBOSE,
)
C_STATEMENT = re.compile(
    r"(\s+)(?!return\b|break\b|continue\b|goto\b|static\b|const\b)[a-z][\w>.\[\]-]*(\(| [-+*|&/]?= ).*;$"
)


def c_mutations(path):
    """{line number: [mutated line, ...]} of a C file formatted by clang-format; some may not compile."""
    found, comment = {}, False
    for row, line in enumerate(path.read_text().splitlines(), 1):
        if comment or line.lstrip().startswith(("#", "/*", "*")):
            comment = (comment or "/*" in line) and "*/" not in line
            continue
        comment = "/*" in line and "*/" not in line[line.rindex("/*") :]
        for token in C_TOKEN.finditer(line):
            text = token.group()
            new = str(int(text) + 1) if text.isdigit() and not (text[0] == "0" and len(text) > 1) else SWAPS.get(text)
            if new is not None:
                found.setdefault(row, []).append(line[: token.start()] + new + line[token.end() :])
        if statement := C_STATEMENT.match(line):
            found.setdefault(row, []).append(f"{statement[1]};")
    return found


def draw(root, kinds, seed):
    """Endless mutants, alternating between the kinds, no line twice: (kind, file, row, old line, new line)."""
    decks = {}
    for kind in kinds:
        order = random.Random(f"{seed} {kind}")
        files = sorted(
            {
                path
                for pattern in KINDS[kind][0]
                for path in root.glob(pattern)
                if not {"vendor", "cuda"} & set(path.parts)
            }
        )
        mutations = {path: (c_mutations if path.suffix in (".c", ".h") else python_mutations)(path) for path in files}
        deck = [(path, row) for path in files for row in mutations[path]]
        order.shuffle(deck)
        decks[kind] = _compiling_mutants(deck, mutations, order)
    for turn in zip(*decks.values()):
        for kind, (path, row, new) in zip(decks, turn):
            old = path.read_text().splitlines()[row - 1]
            yield {"kind": kind, "file": str(path.relative_to(root)), "row": row, "old": old, "new": new}


def _compiling_mutants(deck, mutations, order):
    for path, row in deck:
        news = mutations[path][row]
        for new in order.sample(news, len(news)):
            if compiles(path, row, new):
                yield path, row, new
                break


# ---- a private copy


class Copy:
    """A copy of a checkout and its build, in which mutants are applied one after the other."""

    def __init__(self, source, folder):
        self.folder = folder
        if not folder.exists():
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part, symlinks=True, ignore=NOT_COPIED)
            os.symlink(source / ".venv", part / ".venv")
            os.replace(part, folder)
        for pattern in {pattern for patterns, _ in KINDS.values() for pattern in patterns}:
            for path in source.glob(pattern):  # restore: a killed run leaves its mutant
                there = folder / path.relative_to(source)
                if there.exists() and there.read_bytes() != path.read_bytes():
                    there.write_bytes(path.read_bytes())
        self.python = str(source / ".venv/bin/python")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "tools")]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, command, log, cpu_s=None, **environment):
        """Runs the command in the copy; returns its exit status, None if it exceeded its time."""
        limits = (lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 5))) if cpu_s else None
        with open(log, "w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=limits,
            )
            try:
                status = process.wait(cpu_s and IDLE_LIMIT * cpu_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                try:
                    os.killpg(process.pid, 9)  # the process and its remaining children
                except ProcessLookupError:
                    pass
                process.wait()
        return None if status in (-24, -9) and cpu_s else status  # SIGXCPU, or SIGKILL at the hard limit

    def change(self, mutant):
        """Applies a mutant; returns a function that undoes it, or None if the old line is gone."""
        path = self.folder / mutant["file"]
        if not path.exists():
            return None
        text = path.read_text()
        lines = text.splitlines()
        rows = [row for row, line in enumerate(lines) if line == mutant["old"]]
        if not rows:
            return None
        row = min(rows, key=lambda row: abs(row + 1 - mutant["row"]))  # lines above may have been added or removed
        times = path.stat()
        lines[row] = mutant["new"]
        path.write_text("\n".join(lines) + "\n")

        def undo():
            path.write_text(text)
            if path.suffix == ".py":
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # C must be recompiled, Python need not

        return undo

    def build(self, log):
        return self.run([self.python, "setup.py", "-q", "build_ext", "--inplace"], log) == 0

    def failing(self, files, log, cpu_s, without):
        """The first failing test of these files; "time" if they exceed their time; None if all pass. Leaves out the
        tests `without`."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)  # failing examples of other mutants
        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0"]
        options += [f"--deselect={name}" for name in without if name.partition("::")[0] in files]
        status = self.run([self.python, "-m", "pytest", *options, *files], log, cpu_s)
        if status is None:
            return "time"
        if status in (0, 5):  # 5: every test of these files is deselected
            return None
        failure = re.search(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
        return failure[1] if failure else f"exit status {status}"


# ---- which test files run a line: this file as a pytest plugin


class Tracer:
    """Records for each test file the lines of bytecode and engine that it runs in the main interpreter."""

    def __init__(self, out, folder):
        self.out, self.prefixes = out, tuple(f"{folder}/{name}/" for name in ("bytecode", "engine"))
        self.length, self.real = len(f"{folder}/"), functools.cache(os.path.realpath)
        self.lines, self.seconds, self.failing, self.now = {}, Counter(), set(), "import"
        self.monitor = sys.monitoring
        self.monitor.use_tool_id(4, "mutants")
        self.monitor.register_callback(4, self.monitor.events.LINE, self.line)
        self.monitor.set_events(4, self.monitor.events.LINE)

    def line(self, code, row):
        name = self.real(code.co_filename)  # vmhost/engine is a link
        if name.startswith(self.prefixes):
            self.lines.setdefault(name[self.length :], {}).setdefault(row, set()).add(self.now)
        return self.monitor.DISABLE

    def pytest_runtest_logstart(self, nodeid):
        file = nodeid.partition("::")[0]
        if file != self.now:
            self.now = file
            self.monitor.restart_events()
        self.began = sum(os.times()[:4])

    def pytest_runtest_logfinish(self, nodeid):
        self.seconds[self.now] += sum(os.times()[:4]) - self.began

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failing.add(report.nodeid)

    def pytest_sessionfinish(self):
        lines = {name: {row: sorted(files) for row, files in rows.items()} for name, rows in self.lines.items()}
        found = {"seconds": self.seconds, "failing": sorted(self.failing), "lines": lines}
        Path(self.out).write_text(json.dumps(found))


def pytest_configure(config):
    if out := os.environ.get("MUTANTS_MAP"):
        config.pluginmanager.register(Tracer(out, config.rootpath))


def make_map(arguments):
    copy = Copy(arguments.checkout, arguments.work / "copy")
    for kind in dict.fromkeys(kind.partition("-")[0] for kind in arguments.kinds):
        if not (arguments.work / f"{kind}.map").exists():
            log = arguments.work / f"{kind}.map.log"
            command = [copy.python, "-m", "pytest", "-q", "-p", "mutants", "-p", "no:cacheprovider", *KINDS[kind][1]]
            copy.run(command, log, MUTANTS_MAP=str(arguments.work / f"{kind}.map.new"))
            if not (arguments.work / f"{kind}.map.new").exists():
                raise SystemExit(f"the tests of {kind} did not run, see {log}")
            os.replace(arguments.work / f"{kind}.map.new", arguments.work / f"{kind}.map")
            for name in json.loads((arguments.work / f"{kind}.map").read_text())["failing"]:
                print(f"left out, since it fails without a mutant: {name}")


class Map:
    def __init__(self, work, root, kinds=KINDS):
        self.root, self.seconds, self.failing, self.lines = root, {}, [], {}
        self.room = {}
        for room in dict.fromkeys(kind.partition("-")[0] for kind in kinds):
            path = work / f"{room}.map"
            if not path.exists():
                raise SystemExit(f"{path} is missing: run `python tools/mutants.py map` first")
            read = json.loads(path.read_text())
            self.room[room] = list(read["seconds"])
            self.seconds |= read["seconds"]
            self.failing += read["failing"]
            for name, rows in read["lines"].items():
                merged = self.lines.setdefault(name, {})
                for row, files in rows.items():
                    merged.setdefault(int(row), set()).update(files)

    def files(self, mutant):
        """The test files to run, in order, and whether all of the room's other files are known not to run the line."""
        room = self.room[mutant["kind"].partition("-")[0]]
        words = set(re.findall(r"[a-z]{3,}", mutant["file"]))
        likely = sorted(
            room, key=lambda name: (-len(words & set(re.findall(r"[a-z]{3,}", name[12:]))), self.seconds[name])
        )
        if mutant["kind"] == "engine-c":
            return likely, False
        run = set()
        for row in _statement(self.root / mutant["file"], mutant["row"]):
            run |= self.lines.get(mutant["file"], {}).get(row, set())
        if not run or "import" in run:  # it runs only in child processes and VMs, or during imports
            return likely, False
        return [name for name in likely if name in run], True


def _statement(path, row):
    """The rows of the smallest statement around a row, without nested statements."""
    rows = range(row, row + 1)
    size = None
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.stmt) and node.lineno <= row <= node.end_lineno:
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if row <= end and (size is None or end - node.lineno < size):
                size, rows = end - node.lineno, range(node.lineno, end + 1)
    return rows


# ---- a run


def try_mutant(copy, mutant, files, times, log, limit_s, first=()):
    """The result for a mutant: {"result": ..., "by": ..., "ran": number of test files}."""
    undo = copy.change(mutant)
    if undo is None:
        return {"result": "gone"}
    try:
        if mutant["kind"] == "engine-c" and not copy.build(log):
            return {"result": "not compiled"}
        chunks, spent = [[]], 0.0
        for name in files:
            if spent + times.seconds[name] > limit_s:
                continue
            spent += times.seconds[name]
            if len(chunks) <= len(CHUNKS_S) and spent > CHUNKS_S[len(chunks) - 1] and chunks[-1]:
                chunks.append([])
            chunks[-1].append(name)
        if first:
            chunks = [list(first), *chunks]
        ran = 0
        for chunk in filter(None, chunks):
            cpu_s = 60 + 4 * sum(times.seconds.get(name, 30) for name in chunk)
            by = copy.failing(chunk, log, cpu_s, times.failing)
            ran += len(chunk)
            if by:
                return {"result": "caught", "by": by, "ran": ran}
        return {"result": "survived", "ran": ran}
    finally:
        undo()


def run(arguments):
    copy = Copy(arguments.checkout, arguments.work / "copy")
    times = Map(arguments.work, copy.folder, arguments.kinds)
    done = _read(arguments.out) if arguments.out.exists() else {}
    before = _read(arguments.of) if arguments.of else {}
    log = arguments.work / f"{arguments.out.stem}.log"
    if not copy.build(log):
        raise SystemExit(f"the copy does not build, see {log}")
    sample = before.values() if before else draw(copy.folder, arguments.kinds, arguments.seed)
    counted = Counter()
    for drawn in sample:
        mutant = {name: drawn[name] for name in ("kind", "file", "row", "old", "new")}
        if not before and sum(counted.values()) - counted["not compiled"] >= arguments.count:
            break
        if before and drawn["result"] not in ("caught", "survived"):
            continue
        outcome = done.get(_key(mutant))
        if outcome is None:
            began = time.monotonic()
            files, all_of_them = times.files(mutant)
            caught_by = drawn.get("by", "").partition("::")[0]
            first = [caught_by] if caught_by.endswith(".py") and (copy.folder / caught_by).exists() else []
            outcome = mutant | try_mutant(copy, mutant, files, times, log, arguments.seconds, first)
            outcome |= {"of": len(files), "all": all_of_them, "wall_s": round(time.monotonic() - began, 1)}
            with open(arguments.out, "a") as output:
                output.write(json.dumps(outcome) + "\n")
            print(outcome["result"], outcome.get("by", ""), f"{mutant['file']}:{mutant['row']}", flush=True)
        counted[outcome["result"]] += 1
    print(", ".join(f"{count} {result}" for result, count in counted.most_common()))


# ---- two checkouts


class Pairs:
    """Runs mutants of lines that two checkouts share, against the tests of each."""

    def __init__(self, arguments):
        self.copies = {
            "after": Copy(arguments.checkout, arguments.work / "copy"),
            "before": Copy(arguments.before, arguments.work / "before"),
        }
        self.times = {name: Map(arguments.work, self.copies["after"].folder, arguments.kinds) for name in self.copies}
        self.times["before"].failing = []  # of the other checkout; filled when they catch a mutant
        self.rows, self.passing = {}, set()
        self.log = {name: arguments.work / f"pairs.{name}.log" for name in self.copies}
        self.limit_s = arguments.seconds

    def in_before(self, mutant):
        """The row of the same line in the older checkout; None if it differs there."""
        name = mutant["file"]
        if name not in self.rows:
            here, there = (copy.folder / name for copy in self.copies.values())
            rows = {}
            if there.exists():
                texts = [path.read_text().splitlines() for path in (here, there)]
                for block in difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks():
                    rows |= {block.a + i + 1: block.b + i + 1 for i in range(block.size)}
            self.rows[name] = rows
        return self.rows[name].get(mutant["row"])

    def outcome(self, name, mutant, files, first):
        """The result for a mutant in one of the checkouts, with only tests that pass without it."""
        copy, times = self.copies[name], self.times[name]
        while True:
            began = time.monotonic()
            files = [file for file in files if (copy.folder / file).exists()]
            outcome = try_mutant(copy, mutant, files, times, self.log[name], self.limit_s, first)
            by = outcome.get("by", "")
            if "::" in by and (name, by) not in self.passing:
                if mutant["kind"] == "engine-c" and not copy.build(self.log[name]):
                    raise SystemExit(f"the copy does not build, see {self.log[name]}")
                if copy.failing([by], self.log[name], 120, []):
                    times.failing.append(by)
                    continue
                self.passing.add((name, by))
            return mutant | outcome | {"of": len(files), "wall_s": round(time.monotonic() - began, 1)}


def pairs(arguments):
    pair = Pairs(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    done = {}
    for name, copy in pair.copies.items():
        path = arguments.out / f"{name}.jsonl"
        done[name] = _read(path) if path.exists() else {}
        if not copy.build(pair.log[name]):
            raise SystemExit(f"the copy does not build, see {pair.log[name]}")
    counted = Counter()
    for mutant in draw(pair.copies["after"].folder, arguments.kinds, arguments.seed):
        if counted.total() - counted["not compiled"] >= arguments.count:
            break
        row = pair.in_before(mutant)
        if row is None or mutant["file"].endswith(".h"):  # a header would recompile all files that include it
            continue
        files, _ = pair.times["after"].files(mutant)
        first, results = [], []
        for name in pair.copies:
            outcome = done[name].get(_key(mutant))
            if outcome is None:
                there = mutant | ({"row": row} if name == "before" else {})
                outcome = pair.outcome(name, there, files, first) | {"row": mutant["row"]}
                with open(arguments.out / f"{name}.jsonl", "a") as output:
                    output.write(json.dumps(outcome) + "\n")
                print(name, outcome["result"], outcome.get("by", ""), f"{mutant['file']}:{mutant['row']}", flush=True)
            results.append(outcome["result"])
            if results == ["not compiled"]:
                break
            caught_by = outcome.get("by", "").partition("::")[0]
            there = pair.copies["before"].folder / caught_by
            first = [caught_by] if caught_by.endswith(".py") and there.exists() else []
        counted["not compiled" if "not compiled" in results else ", ".join(results)] += 1
    print("after, before: " + "; ".join(f"{count} {result}" for result, count in counted.most_common()))


def _key(mutant):
    return mutant["file"], mutant["row"], mutant["new"]


def _read(path):
    return {_key(mutant): mutant for mutant in map(json.loads, path.read_text().splitlines())}


def compare(arguments):
    one, other = _read(arguments.one), _read(arguments.other)
    both = [key for key in one if key in other]
    for kind in KINDS:
        of_kind = [key for key in both if one[key]["kind"] == kind]
        caught = [sum(run[key]["result"] == "caught" for key in of_kind) for run in (one, other)]
        print(f"{kind}: {len(of_kind)} mutants, {caught[0]} and {caught[1]} caught")
    different = [key for key in both if one[key]["result"] != other[key]["result"]]
    for key in different:
        print(f"{key[0]}:{key[1]}: {one[key]['result']} and {other[key]['result']}; {one[key]['new'].strip()}")
    return bool(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("map", "run", "pairs"):
        one = commands.add_parser(name)
        one.add_argument("--checkout", type=Path, default=ROOT, help="the checkout to copy; built, with its .venv")
        one.add_argument(
            "--work", type=Path, default=ROOT / "build/mutants", help="the folder of the copy and the maps"
        )
        one.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
        if name != "map":
            one.add_argument("--count", type=int, default=200)
            one.add_argument("--seed", type=int, default=1)
            one.add_argument("--seconds", type=float, default=600, help="the most seconds of tests for one mutant")
            one.add_argument("-o", "--out", type=Path, required=True)
        if name == "run":
            one.add_argument("--of", type=Path, help="the results of another run, to run its mutants again")
        if name == "pairs":
            one.add_argument("before", type=Path, help="the other checkout; built, with its .venv")
    one = commands.add_parser("compare")
    one.add_argument("one", type=Path)
    one.add_argument("other", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(arguments)
    arguments.checkout, arguments.work = arguments.checkout.resolve(), arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    return {"map": make_map, "run": run, "pairs": pairs}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
