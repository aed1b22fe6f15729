"""A device's statements to the platform: complete, or the changes since the last confirmed profile.

This is not persistent: a restarted agent states everything. If the platform has another profile than the device
believes (an answer was lost, or the platform was restored), it says so, and gets a complete statement.
"""

from vmhost.deployment.profile import changes


class Statements:
    """The statements of one agent. Not thread-safe."""

    def __init__(self):
        self._confirmed = None  # (profile, facts, tasks) that the platform has

    def send(self, facts, tasks, profile, post):
        """The platform's answer. `post(statement)` sends `facts` and `tasks`, or `base` and the changes since, with
        `profile` (profile.py: header_value) and anything else; it is called at most twice."""
        answer = post(self._since_confirmed(facts, tasks) | {"profile": profile})
        if answer.get("again") is True and self._confirmed is not None:
            self._confirmed = None
            answer = post({"facts": facts, "tasks": tasks, "profile": profile})
        return answer

    def confirm(self, facts, tasks, profile):
        """The platform answered, so it has this statement."""
        self._confirmed = (profile, facts, tasks)

    def _since_confirmed(self, facts, tasks):
        if self._confirmed is None:
            return {"facts": facts, "tasks": tasks}
        base, old_facts, old_tasks = self._confirmed
        (facts, facts_gone), (tasks, tasks_gone) = changes(old_facts, facts), changes(old_tasks, tasks)
        gone = {name: names for name, names in (("facts", facts_gone), ("tasks", tasks_gone)) if names}
        return {"base": base, "facts": facts, "tasks": tasks} | ({"gone": gone} if gone else {})
