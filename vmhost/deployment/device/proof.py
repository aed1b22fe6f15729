"""A device proves that a version runs: loaded by a host of its own, before anybody calls it, and tried on its cases."""

import json

from vmhost import Host, VMHostError
from vmhost.deployment.cases import CaseError, import_module, run_case
from vmhost.deployment.errors import DeploymentError


class ProofError(DeploymentError):
    """The version does not run here as it should; the message is the reason that the platform shows."""


def prove(bundle, proof, trust, policy):
    """Loads the bundle (its bytes) in a Host that ends with this call, and runs the cases in `proof` (bytes or None).
    ProofError."""
    try:
        plain = json.loads(proof) if proof else {"module": None, "cases": {}}
        module, cases = plain["module"], dict(plain["cases"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProofError(f"its self-test cannot be read: {error}") from error
    try:
        with Host(trust=trust, policy=policy) as host:
            task = host.load(bundle)
            if module is not None:
                import_module(task, module)
            if task.trigger is None:
                for name, case in cases.items():
                    run_case(task, f"self-test {name}", case)
    except (VMHostError, CaseError) as error:
        raise ProofError(f"{type(error).__name__}: {error}") from error
