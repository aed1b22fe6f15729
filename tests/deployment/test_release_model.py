"""The release engine against a model, by Hypothesis: devices join, vanish, fail, lie and fall silent, people act.

At every moment: no device has what no release gives it, no bad version is given to anybody, a release that was halted
or paused reaches nobody new, who was reached stays reached, counts are those of the database; and at the end nobody is
stuck: each device that asks has the newest release that is for it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.deployment.platforms import Clock, add_version, platform_in
from vmhost.cohorts import cohort_of
from vmhost.deployment.cloud import release_states as states
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.errors import DeploymentError

TASK = "shop/rank"
FACTS = {"python": "3.14", "os": "linux"}
DEVICES = [f"device-{number}" for number in range(12)]
STEPS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"devices": st.lists(st.sampled_from(DEVICES), max_size=3)}),
        st.fixed_dictionaries({"percent": st.sampled_from([1, 20, 50, 100])}),
        st.fixed_dictionaries({"count": st.integers(1, 6)}),
    ).flatmap(lambda step: st.integers(0, 3).map(lambda reports: step | {"min_reports": reports})),
    min_size=1,
    max_size=3,
)


class Fleet(RuleBasedStateMachine):
    @initialize()
    def open(self):
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory(prefix="vmhost-model-")
        self.clock = Clock()
        self.platform = platform_in(Path(self.folder.name) / "cloud", self.postgresql(), clock=self.clock)
        self.engine = self.platform.releases
        self.versions = 0
        self.runs = {}  # device -> release id that it was given last
        self.reached = {}  # release id -> devices

    def postgresql(self):
        """The connection string of a database for one run, or None: SQLite."""

    def teardown(self):
        if hasattr(self, "platform"):
            self.nobody_is_stuck()
            self.platform.close()
            self.folder.cleanup()

    @rule(steps=STEPS, on_failure=st.sampled_from(["roll_back", "halt", "pause"]), error=st.sampled_from([0, 0.4, 1]))
    def release(self, steps, on_failure, error):
        self.versions += 1
        add_version(self.platform, TASK, str(self.versions))
        plan = Plan.of({"steps": steps, "on_failure": on_failure, "max_error": error, "silence": "1 h"})
        self.engine.start(TASK, str(self.versions), plan, "ann", "")

    @rule(device=st.sampled_from(DEVICES))
    def ask(self, device):
        before = {identity: set(devices) for identity, devices in self.reached.items()}
        chosen = self.engine.choose(device, FACTS, frozenset()).get(TASK)
        if chosen is None:
            self.runs.pop(device, None)
            return
        release, state = chosen
        self.runs[device] = release.id
        assert release.version.bad is None
        assert state not in states.HAS_NO_MORE
        if device not in before.get(release.id, ()):
            assert release.state in ("running", "done"), "it spread further"
            if release.state == "running":
                steps = release.plan.steps[: release.step + 1]
                assert any(
                    device in step.devices
                    or (step.percent and cohort_of(TASK, device) <= step.percent)
                    or (step.count and len(before.get(release.id, ())) < step.count)
                    for step in steps
                ), "no step reached it"
        self.reached.setdefault(release.id, set()).add(device)

    @rule(device=st.sampled_from(DEVICES), state=st.sampled_from(sorted(states.DEVICE)))
    def report(self, device, state):
        if device in self.runs:
            self.engine.report(device, self.runs[device], state, "because")

    @rule(device=st.sampled_from(DEVICES), release=st.integers(0, 9), state=st.sampled_from(["proven", "failed", "x"]))
    def lie(self, device, release, state):
        if device not in self.reached.get(release, ()):
            assert not self.engine.report(device, release, state)

    @rule(event=st.sampled_from(["pause", "resume", "halt", "roll_back", "next", "cancel"]), which=st.integers(0, 9))
    def act(self, event, which):
        try:
            self.engine.act(which, event, "ann", "test")
        except DeploymentError:
            pass

    @rule(which=st.integers(1, 9))
    def forgive(self, which):
        try:
            self.engine.forgive(TASK, str(which), "ann", "test")
        except DeploymentError:
            pass

    @rule(seconds=st.sampled_from([1, 600, 7200, -300]))
    def time_passes(self, seconds):
        self.clock.now_s += seconds
        self.engine.tick()

    @rule()
    def killed(self):
        """All that is in memory only is gone."""
        self.engine._load()

    @invariant()
    def at_most_one_release_is_under_way(self):
        if hasattr(self, "engine"):
            active = [each for each in self.engine.of_task(TASK) if each.state in states.ACTIVE]
            queued = [each for each in self.engine.of_task(TASK) if each.state == "queued"]
            assert len(active) <= 1 and (active or not queued)

    @invariant()
    def counts_are_those_of_the_database(self):
        if hasattr(self, "engine"):
            before = [vars(each.counts) for _, each in sorted(self.engine.releases.items())]
            self.engine._load()
            assert before == [vars(each.counts) for _, each in sorted(self.engine.releases.items())]
            assert all(value >= 0 for counts in before for value in counts.values())

    def nobody_is_stuck(self):
        for device in DEVICES:
            chosen = self.engine.choose(device, FACTS, frozenset()).get(TASK)
            done = [each for each in self.engine.of_task(TASK) if each.state == "done" and each.version.bad is None]
            if chosen is None:
                rows = {row["device"]: row["state"] for each in done for row in self.engine.devices_of(each.id)}
                assert not done or rows.get(device) in states.HAS_NO_MORE, f"{device} gets nothing"


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=8, stateful_step_count=30, deadline=None)
