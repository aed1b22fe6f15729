"""What a device states of itself to the platform: all, or what changed since the profile that was confirmed last.

Nothing of this is kept: an agent that begins anew states all. Where the platform knows another profile than the device
believes (an answer was lost, or it was restored), it says so, and is told all.
"""

from vmhost.deployment.profile import changes


class Statements:
    """The statements of one agent. Not for several threads at once."""

    def __init__(self):
        self._confirmed = None  # (profile, facts, tasks) that the platform has

    def tell(self, facts, tasks, profile, post):
        """The platform's answer. `post(statement)` sends `facts` and `tasks`, or `base` with what changed since, and
        `profile` (profile.py: header_value), beside whatever else it sends; it is asked twice at most."""
        answer = post(self._since_confirmed(facts, tasks) | {"profile": profile})
        if answer.get("again") is True and self._confirmed is not None:
            self._confirmed = None
            answer = post({"facts": facts, "tasks": tasks, "profile": profile})
        return answer

    def confirm(self, facts, tasks, profile):
        """The platform answered: this is what it has of the device."""
        self._confirmed = (profile, facts, tasks)

    def _since_confirmed(self, facts, tasks):
        if self._confirmed is None:
            return {"facts": facts, "tasks": tasks}
        base, old_facts, old_tasks = self._confirmed
        (facts, facts_gone), (tasks, tasks_gone) = changes(old_facts, facts), changes(old_tasks, tasks)
        gone = {name: names for name, names in (("facts", facts_gone), ("tasks", tasks_gone)) if names}
        return {"base": base, "facts": facts, "tasks": tasks} | ({"gone": gone} if gone else {})
