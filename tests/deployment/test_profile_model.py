"""A device's statements of changes against its whole profile, by Hypothesis: facts and tasks change, requests and
answers are lost, late or repeated, both ends restart. A profile that the platform acknowledged is complete."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.deployment.platforms import platform_in
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.device.statements import Statements
from vmhost.deployment.errors import TransferError
from vmhost.deployment.profile import header_value

SECRET = "s" * 40
DEVICES = st.sampled_from(["kitchen-1", "kitchen-1", "kitchen-1", "kitchen-2"])
NAMES = st.sampled_from(["shop/rank", "shop/rank before", ""])
VALUES = st.none() | st.integers(0, 2) | st.text(max_size=3) | st.lists(st.integers(0, 1), max_size=2)
VALUES = VALUES | st.dictionaries(st.text(max_size=2), VALUES, max_size=2)


class Device:
    def __init__(self, name):
        self.name, self.facts, self.tasks = name, {}, {}
        self.begin()

    def begin(self):
        self.statements, self.confirmed = Statements(), None


class Profiles(RuleBasedStateMachine):
    @initialize()
    def open(self):
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory(prefix="vmhost-profiles-")
        self.cloud = Path(self.folder.name) / "cloud"
        self.platforms = [platform_in(self.cloud, self.postgresql())]
        if self.platforms[0].database.shared:
            self.platforms.append(Platform(self.cloud))
        self.devices = {name: Device(name) for name in ("kitchen-1", "kitchen-2")}
        for name in self.devices:
            self.platforms[0].devices.enrol(name, SECRET)
        self.sent = []

    def postgresql(self):
        """The connection string of a database for one run, or None: SQLite, with one platform."""

    def teardown(self):
        if hasattr(self, "platforms"):
            for platform in self.platforms:
                platform.close()
            self.folder.cleanup()

    def platform(self, which):
        return self.platforms[which % len(self.platforms)]

    @rule(name=DEVICES, of=st.sampled_from(["facts", "tasks"]), key=NAMES, value=VALUES)
    def something_changes(self, name, of, key, value):
        getattr(self.devices[name], of)[key] = value

    @rule(name=DEVICES, of=st.sampled_from(["facts", "tasks"]), which=st.integers(0, 9))
    def something_goes(self, name, of, which):
        mapping = getattr(self.devices[name], of)
        if mapping:
            del mapping[sorted(mapping)[which % len(mapping)]]

    @rule(name=DEVICES, which=st.integers(0, 1), lost=st.sampled_from([None, None, "request", "answer", "last answer"]))
    def ask(self, name, which, lost):
        device, asked = self.devices[name], []

        def post(statement):
            plain = json.loads(json.dumps(statement))
            asked.append(plain)
            if lost == "request":
                raise TransferError("lost")
            self.sent.append((name, plain))
            answer = self.platform(which).check(name, SECRET, plain)
            if lost == "answer" or (lost == "last answer" and "again" not in answer):
                raise TransferError("lost")
            return answer

        facts, tasks = dict(device.facts), dict(device.tasks)
        profile = header_value(name, facts, tasks)
        known = self.platform(which).devices.stated(name)
        is_base = device.confirmed == known
        different = [
            {key for key in new.keys() | old.keys() if new.get(key, ...) != old.get(key, ...)}
            for new, old in zip((facts, tasks), known)
        ]
        try:
            answer = device.statements.send(facts, tasks, profile, post)
        except TransferError:
            if len(asked) > 1:  # the platform asked for all of it
                device.confirmed = None
            return
        assert "again" not in answer and len(asked) <= 2
        device.statements.confirm(facts, tasks, profile)
        device.confirmed = (facts, tasks)
        if is_base:  # it states the changes, and nothing else
            [plain] = asked
            gone = plain.get("gone", {})
            assert [set(plain[of]) | set(gone.get(of, ())) for of in ("facts", "tasks")] == different
        assert self.platform(which + 1).devices.stated(name) == (facts, tasks)
        # the next one states nothing, as nothing changed, to either platform
        device.statements.send(facts, tasks, profile, post)
        assert asked[-1] == {"base": profile, "facts": {}, "tasks": {}, "profile": profile}

    @rule(which=st.integers(0, 1), back=st.integers(1, 3))
    def a_request_comes_late(self, which, back):
        if len(self.sent) >= back:
            name, plain = self.sent[-back]
            self.platform(which).check(name, SECRET, plain)

    @rule(what=st.sampled_from(["device", "platform", "database"]), name=DEVICES, which=st.integers(0, 1))
    def begins_anew(self, what, name, which):
        """A device or a platform that was restarted, or a database that was restored from long ago."""
        if what == "device":
            self.devices[name].begin()
        elif what == "platform":
            which %= len(self.platforms)
            self.platforms[which].close()
            self.platforms[which] = Platform(self.cloud)
        else:
            with self.platforms[0].database.transaction() as connection:
                connection.execute("UPDATE deploy_devices SET facts = '{}', profile = '{}' WHERE id = ?", (name,))


class TestProfiles(Profiles.TestCase):
    settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


@pytest.mark.stress
class TestManyProfiles(Profiles.TestCase):
    settings = settings(max_examples=500, stateful_step_count=30, deadline=None)
