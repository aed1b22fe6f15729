"""A device proves that a version runs: it loads it in a host of its own, before real calls, and runs its cases."""

import json

from vmhost import Host, VMHostError
from vmhost.deployment.bounds import case_outside, memory_outside
from vmhost.deployment.cases import CaseError, host_functions, import_module, run_case
from vmhost.deployment.errors import DeploymentError


class ProofError(DeploymentError):
    """The version does not run here as it should; the message is the reason shown by the platform."""


def prove(bundle, proof, trust, policy, rules, functions=()):
    """Loads the bundle (its bytes) in a temporary Host, and runs the cases in `proof` (bytes or None). `functions`:
    names of host functions that the task asks for. ProofError if a case has another outcome, or a bound of `rules`
    on time or memory is exceeded."""
    try:
        plain = json.loads(proof) if proof else {"module": None, "cases": {}}
        module, cases = plain["module"], dict(plain["cases"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProofError(f"its self-test cannot be read: {error}") from error
    try:
        with Host(trust=trust, policy=policy, functions=host_functions(functions)) as host:
            task = host.load(bundle)
            if module is not None:
                import_module(task, module)
            if task.trigger is None:
                for name, case in cases.items():
                    took_s, _ = run_case(task, f"self-test {name}", case)
                    if (reason := case_outside(rules, f"self-test {name}", took_s)) is not None:
                        raise ProofError(reason)
            peaks = [vm.peak_bytes for vm in host.statistics().vms if vm.task == task.name]
            if (reason := memory_outside(rules, max(peaks, default=0))) is not None:
                raise ProofError(f"self-test: {reason}")
    except (VMHostError, CaseError) as error:
        raise ProofError(f"{type(error).__name__}: {error}") from error
