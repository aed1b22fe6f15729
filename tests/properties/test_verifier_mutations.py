"""No mutant that the verifier accepts may crash the interpreter; some hundreds here, 100,000 by `make mutations`."""

import json
import os
import subprocess
from pathlib import Path

from tests.properties import generated_programs, verifier_mutations

CRASHERS = sorted(Path(__file__).parents[1].joinpath("crashers").glob("verifier-3.14-*.txt"))
COUNT = 800
SLOW = {"verifier-3.14-2-6428.txt"}  # recurses for seconds until its stack is used up


def test_accepted_mutants_do_not_crash(capsys):
    seed = int(os.environ.get("VMHOST_SEED", verifier_mutations.DEFAULT_SEED))
    outcomes, kinds, crashes = verifier_mutations.measure(seed, COUNT, 2)
    with capsys.disabled():
        print()
        print("\n".join(verifier_mutations.report(seed, outcomes, kinds, crashes)))
    assert not crashes
    assert sum(outcomes.values()) == COUNT
    assert outcomes[verifier_mutations.RAN] >= COUNT // 10, (
        "fewer than a tenth were accepted: the mutations no longer test much"
    )


def outcomes_of_kept(paths, *options):
    """{file name: outcome} of mutants kept in tests/crashers."""
    process = verifier_mutations.start(["--files", *map(str, paths), *options], stdout=subprocess.PIPE, text=True)
    lines, _ = process.communicate()
    assert process.returncode == 0
    return dict(map(json.loads, lines.splitlines()))


def test_what_crashes_python_is_refused():
    outcomes = outcomes_of_kept(CRASHERS)
    assert len(outcomes) == len(CRASHERS) > 5
    assert set(outcomes.values()) <= {
        verifier_mutations.REJECTED,
        verifier_mutations.RAN,
        verifier_mutations.UNREADABLE,
    }


def test_crashes_are_seen():
    """Without the verifier, the same machinery finds the crashes that it is there to find."""
    paths = [path for path in CRASHERS if path.name not in SLOW]
    crashed = [outcome for outcome in outcomes_of_kept(paths, "--unverified").values() if outcome.startswith("SIG")]
    assert len(crashed) > len(CRASHERS) / 2


def test_generated_programs_are_accepted():
    compiled, _, refusals = generated_programs.measure(os.environ.get("VMHOST_SEED", "1"), 120)
    assert refusals == []
    assert compiled > 60
