"""Steps of a build, each a process of its own, since they read or run what somebody pushed.

    python -m vmhost.deployment.cloud.build_worker STEP REPORT CPU_SECONDS MEMORY_BYTES FOLDER [...]

    describe FOLDER                   name and version in task.yaml, its requirements, and the plan in release.yaml
    fetch FOLDER                      installs the requirements, for this Python, by the hashes of its lock file
    build FOLDER BUNDLE [PACKAGES]    compiles the folder with these packages, and tries the bundle
    verify FOLDER BUNDLE              verifies the bundle, where packages ran in the process that made it

All but `fetch` run confined (confinement.py). With packages, whose code runs at compile time, what `build` reports is
the word of whoever pushed. `fetch` runs outside, and runs nothing of the task or of a package. REPORT and BUNDLE are
numbers of open files: the report is one JSON object with the results, or `errors`.

`vmhost.compiler`, which `vmhost compile` uses, makes the unsigned bundle. A Host in this process loads it and calls it
with the inputs in FOLDER/simulation/: files NAME.json, each an object with `input`, and `expect` (the result) or
`raises` (the name of an exception) where the result is to be compared; `self_test: false` withholds a case from
devices. Whatever task.yaml asks for, this Host grants nothing; host functions are stand-ins. Results of cases without
`expect` and `raises` are recorded: the platform compares them with those of the version before, and refuses a
difference where the case has `same: true`.
"""

import dataclasses
import hashlib
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

CASES = "simulation"
MAX_CASES = 1000
MAX_CASE_BYTES = 1 << 20
MAX_ALL_CASES_BYTES = 16 << 20
_MAX_FILE_BYTES = 1 << 30
_KEPT = ("host", "tables")  # permissions that reach nothing outside of the Host: stand-ins, and tables that it lacks


def read_cases(folder):
    """The cases of the task's folder by name, checked. CaseError."""
    from vmhost.deployment.cases import CaseError
    from vmhost.lines import json_values

    paths = sorted((Path(folder) / CASES).glob("*.json"))
    if len(paths) > MAX_CASES:
        raise CaseError(f"{CASES}/: expected at most {MAX_CASES} cases, got {len(paths)}")
    total = sum(path.stat().st_size for path in paths)
    if total > MAX_ALL_CASES_BYTES:
        raise CaseError(f"{CASES}/: expected at most {MAX_ALL_CASES_BYTES:,} bytes in all, got {total:,}")
    cases = {}
    for path in paths:
        where = f"{CASES}/{path.name}"
        try:
            data = path.read_bytes()
            if len(data) > MAX_CASE_BYTES:
                raise CaseError(f"{where}: expected at most {MAX_CASE_BYTES:,} bytes, got {len(data):,}")
            case = json.loads(data)
            if not isinstance(case, dict) or "input" not in case:
                raise ValueError('expected an object with "input"')
            unknown = case.keys() - {"input", "expect", "raises", "self_test", "entry", "same"}
            if unknown:
                raise ValueError(f"{sorted(unknown)[0]}: expected input, expect, raises, same, self_test or entry")
            for key in ("input", "expect"):
                if key in case:
                    json_values.from_plain(case[key])
        except (ValueError, TypeError, OSError) as error:
            raise CaseError(f"{where}: {error}") from error
        except RecursionError:
            raise CaseError(f"{where}: it is nested too deeply") from None
        cases[path.stem] = case
    return cases


def describe(folder):
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.bytecode.spec import SPEC_NAME, read_plain
    from vmhost.deployment.cloud.plan import FILE_NAME

    try:
        values = read_plain(folder / SPEC_NAME)
        if not isinstance(values, dict) or not {"name", "version"} <= values.keys():
            return {"errors": [f"{SPEC_NAME}: expected a name and a version"]}
        described = {key: values[key] for key in ("name", "version")}
        for key, value in described.items():
            if not isinstance(value, str):
                return {"errors": [f"{SPEC_NAME}: {key}: expected text, got {value!r:.80}; put it in quotes"]}
        described["requires"] = bool(values.get("requirements"))
        if (folder / FILE_NAME).exists():
            described["plan"] = read_plain(folder / FILE_NAME)
    except BytecodeError as error:
        return _errors(error, folder)
    return described


def fetch(folder):
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.bytecode.packages import Requirements, installed
    from vmhost.bytecode.spec import read_task

    try:
        return {"packages": str(installed(Requirements.of_task(read_task(folder)), is_trusted=False))}
    except BytecodeError as error:
        return _errors(error, folder)


def build(folder, bundle_file, packages=None):
    from vmhost import Host, VMHostError
    from vmhost.bytecode.compiler import compile_task
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.bytecode.format import TARGET, read_bundle
    from vmhost.compiler import compile_onnx
    from vmhost.deployment.cases import CaseError, host_functions, import_module, run_case

    if packages is not None:  # the texts that packages compile are recorded beside task.yaml
        folder = Path(shutil.copytree(folder, Path(tempfile.mkdtemp()) / folder.name))
    try:
        compiled = compile_task(folder, compile_model=compile_onnx, packages=packages)
        data = compiled.to_bytes()
        bundle = read_bundle(data, allow_unsigned=True)
        bundle.verify()
        cases = read_cases(folder)
    except (BytecodeError, CaseError) as error:
        return _errors(error, folder)
    with open(bundle_file, "wb") as file:
        file.write(data)
    manifest = bundle.manifest
    kept = {kind: names for kind, names in manifest.permissions.items() if kind in _KEPT}
    tried = dataclasses.replace(bundle, manifest=dataclasses.replace(manifest, permissions=kept))
    took, errors, recorded = {}, [], {}
    functions = host_functions(manifest.permissions.get("host", ()))
    try:
        with Host(allow_unsigned=True, functions=functions) as host:
            task = host.load(tried)
            try:
                import_module(task, manifest.entry.partition(":")[0])
            except CaseError as error:
                return {"errors": [f"simulation: {line}" for line in str(error).splitlines()]}
            if manifest.trigger is None:
                for name, case in cases.items():
                    try:
                        took_s, result = run_case(task, f"{CASES}/{name}.json", case)
                        took[name] = round(took_s, 6)
                        if not case.keys() & {"expect", "raises"}:
                            recorded[name] = record(case, result)
                    except CaseError as error:
                        errors += str(error).splitlines()
            peak_bytes = max((vm.peak_bytes for vm in host.statistics().vms if vm.task == task.name), default=0)
    except VMHostError as error:
        errors += str(error).splitlines()
    if errors:
        return {"errors": [f"simulation: {errors[0]}", *errors[1:]]}
    return {
        "name": manifest.name,
        "version": manifest.version,
        "target": TARGET,
        "size": len(data),
        "warnings": [str(warning).replace(f"{folder}/", "") for warning in compiled.warnings],
        "module": manifest.entry.partition(":")[0],
        "cases": cases,
        "took_s": took,
        "peak_bytes": peak_bytes,
        "recorded": recorded,
        "functions": sorted(manifest.permissions.get("host", ())),
        "stream": manifest.trigger is not None,
    }


def verify(folder, bundle_file):
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.bytecode.format import read_bundle

    try:
        with open(bundle_file, "rb") as file:
            read_bundle(file.read(), allow_unsigned=True).verify()
    except BytecodeError as error:
        return _errors(error, folder)
    return {}


def _errors(error, folder):
    return {"errors": str(error).replace(f"{folder}/", "").splitlines()}


def record(case, result):
    """The record of a result: the input's and the result's digests, and the beginning of the result."""
    asked = json.dumps([case["input"], case.get("entry")], sort_keys=True)
    text = json.dumps(result, sort_keys=True)
    digests = [hashlib.sha256(each.encode()).hexdigest() for each in (asked, text)]
    return {"input": digests[0], "digest": digests[1], "begins": text[:200]}


def limit_resources(cpu_s, memory_bytes):
    """Limits the resources of this process and its children from here on."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(step, report, cpu_s, memory_bytes, folder, *more):
    limit_resources(int(cpu_s), int(memory_bytes))
    os.set_inheritable(int(report), False)
    if step in ("build", "verify"):
        more = (int(more[0]), *more[1:])
        os.set_inheritable(more[0], False)
    found = {"describe": describe, "fetch": fetch, "build": build, "verify": verify}[step](Path(folder), *more)
    with open(int(report), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
