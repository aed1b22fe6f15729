"""`make package-tests`: a real call of each of many packages from PyPI, in plain Python and in a VM: equal, or filed.

    python -m tests.packages.calls [NAME...]

Each file of cases/ is a task's module; its first lines name what it requires. The packages are pure Python, much used,
and read data, import lazily or by computed names. Versions and hashes are in requirements.lock; uv installs them into
build/package-calls. Each task sees only its own requirements. A call fails here unless its result in the VM is plain
Python's, or filed.toml says why not: then the compiler must have told it, in a warning or as an absent module, and the
call must fail with that text. One that is filed and passes fails, too."""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LOCK = HERE / "requirements.lock"
HOME = ROOT / "build" / "package-calls"
_HEAD = re.compile(r"# (requires|records): (.*)\n")
_PLAIN = """
import json, sys
sys.path[:0] = sys.argv[1:]
import main
print("\\nRESULT " + json.dumps(main.run(None), default=str))
"""
_TASK = 'name: call\nversion: "1.0"\nentry: main:run\npython: "3.14"\n'


def site_packages():
    """The folder with all packages of the lock, installed once."""
    folder = HOME / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    if not folder.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(dir=HOME)
        command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--target", partial, "-r", str(LOCK)], check=True)
        os.replace(partial, folder)
    return folder


def view(pool, names, target):
    """Links the distributions `names` of the folder `pool`, and what they require, into the new folder `target`."""
    there = {_normal(each.name): each for each in importlib.metadata.distributions(path=[str(pool)])}
    waiting, seen = [Requirement(name) for name in names], set()
    while waiting:
        wanted = waiting.pop()
        key = _normal(wanted.name), frozenset(wanted.extras)
        if key not in seen:
            seen.add(key)
            for each in map(Requirement, there[key[0]].requires or ()):
                if each.marker is None or any(
                    each.marker.evaluate({"extra": extra}) for extra in wanted.extras or [""]
                ):
                    waiting.append(each)
    for name in {name for name, _ in seen}:
        for path in there[name].files:
            if ".." not in path.parts and path.suffix != ".pyc":
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                os.link(path.locate(), target / path)


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def outcome(case, pool):
    """(plain Python's result, the VM's result or the text of its error, what the compiler told) of a case."""
    import vmhost
    from vmhost.bytecode.compiler import compile_task

    text = case.read_text()
    head = dict(_HEAD.findall(text))
    with tempfile.TemporaryDirectory(dir=HOME) as work:
        folder, site = Path(work, "task"), Path(work, "site-packages")
        folder.mkdir()
        (folder / "main.py").write_text(text)
        (folder / "task.yaml").write_text(_TASK)
        view(pool, head["requires"].split(), site)
        command = [sys.executable, "-I", "-S", "-c", _PLAIN, str(folder), str(site)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return "a result", f"plain Python fails: {done.stderr.strip().splitlines()[-1]}", []
        plain = json.loads(done.stdout.rpartition("\nRESULT ")[2])
        script = folder / "record.py"
        script.write_text("import main\nmain.run(None)\n")
        compiled = compile_task(folder, packages=site, script=script if "records" in head else None)
        told = [*map(str, compiled.warnings), *(f"absent {each.name}: {each.reason}" for each in compiled.absent)]
        with vmhost.Host(allow_unsigned=True) as host:
            try:
                found = json.loads(json.dumps(host.load(compiled.to_bytes())(None), default=str))
            except vmhost.VMHostError as error:
                found = f"{type(error).__name__}: {error}"
    return plain, found, told


def judge(plain, found, told, filed):
    """What is wrong with an outcome, or None. `filed`: the text of the error that is expected, None: no error."""
    if filed is None:
        return None if found == plain else f"expected {str(plain)[:500]}, got {str(found)[:1500]}"
    if found == plain:
        return "it passes; remove it from filed.toml"
    if filed not in str(found):
        return f"expected an error with {filed!r}, got {str(found)[:1500]}"
    return None if any(filed in each for each in told) else f"the compiler did not tell: {filed}"


def main(arguments=None):
    """Runs the command line and returns the exit status."""
    cases = {path.stem.removesuffix("_call"): path for path in sorted((HERE / "cases").glob("*_call.py"))}
    parser = argparse.ArgumentParser(prog="python -m tests.packages.calls", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases (default: all)")
    names = parser.parse_args(arguments).names
    unknown = [name for name in names if name not in cases]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    filed = tomllib.loads((HERE / "filed.toml").read_text())
    pool, failed = site_packages(), []
    for name in names or cases:
        wrong = judge(*outcome(cases[name], pool), filed.get(name))
        print(f"{'right' if wrong is None else 'WRONG'}  {name}{'' if wrong is None else ': ' + wrong}", flush=True)
        failed += [name] if wrong else []
    print(f"{len(names or cases) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
