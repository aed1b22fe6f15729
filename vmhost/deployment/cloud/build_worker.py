"""Compiles one task folder and tries it. It is a process of its own, since both run code that somebody pushed.

    python -m vmhost.deployment.cloud.build_worker FOLDER OUT CPU_SECONDS MEMORY_BYTES

`vmhost.compiler.compile_folder`, which `vmhost compile` uses, makes the unsigned bundle OUT. A Host in this process
loads it and calls it with the inputs in FOLDER/simulation/: files NAME.json, each an object with `input`, and `expect`
(the result) or `raises` (the name of an exception) where the result is to be compared; `self_test: false` withholds a
case from devices. Results of cases without either are recorded: the platform compares them with those of the version
before, and refuses a difference where the case has `same: true`. The last line on stdout is one JSON object: the
results, or `errors`.
"""

import hashlib
import json
import resource
import sys
from pathlib import Path

CASES = "simulation"
MAX_CASES = 1000
MAX_CASE_BYTES = 1 << 20
_MAX_FILE_BYTES = 1 << 30


def read_cases(folder):
    """The cases of the task's folder by name, checked. CaseError."""
    from vmhost.deployment.cases import CaseError
    from vmhost.lines import json_values

    paths = sorted((Path(folder) / CASES).glob("*.json"))
    if len(paths) > MAX_CASES:
        raise CaseError(f"{CASES}/: expected at most {MAX_CASES} cases, got {len(paths)}")
    cases = {}
    for path in paths:
        where = f"{CASES}/{path.name}"
        data = path.read_bytes()
        if len(data) > MAX_CASE_BYTES:
            raise CaseError(f"{where}: expected at most {MAX_CASE_BYTES:,} bytes, got {len(data):,}")
        try:
            case = json.loads(data)
            if not isinstance(case, dict) or "input" not in case:
                raise ValueError('expected an object with "input"')
            unknown = case.keys() - {"input", "expect", "raises", "self_test", "entry", "same"}
            if unknown:
                raise ValueError(f"{sorted(unknown)[0]}: expected input, expect, raises, same, self_test or entry")
            for key in ("input", "expect"):
                if key in case:
                    json_values.from_plain(case[key])
        except (ValueError, TypeError) as error:
            raise CaseError(f"{where}: {error}") from error
        cases[path.stem] = case
    return cases


def build(folder, out):
    from vmhost import Host, VMHostError
    from vmhost.bytecode.errors import BytecodeError
    from vmhost.bytecode.format import TARGET, read_bundle
    from vmhost.compiler import compile_folder
    from vmhost.deployment.cases import CaseError, host_functions, import_module, run_case

    try:
        compiled = compile_folder(folder)
        data = compiled.to_bytes()
        bundle = read_bundle(data, allow_unsigned=True)
        bundle.verify()
        cases = read_cases(folder)
    except (BytecodeError, CaseError) as error:
        return {"errors": str(error).replace(f"{folder}/", "").splitlines()}
    Path(out).write_bytes(data)
    manifest = bundle.manifest
    took, errors, recorded = {}, [], {}
    functions = host_functions(manifest.permissions.get("host", ()))
    try:
        with Host(allow_unsigned=True, functions=functions) as host:
            task = host.load(str(out))
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


if __name__ == "__main__":
    limit_resources(int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(build(sys.argv[1], sys.argv[2])), flush=True)
