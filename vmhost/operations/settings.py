"""The effective configuration of a host, and the origin of each value: a line of host.yaml, a task's own task.yaml, the
program that made the policy, or the default."""

from dataclasses import dataclass, fields

from vmhost import BreakerPolicy, DebugPolicy, Limits, Policy, TaskPolicy

DEFAULT, PROGRAM, BUNDLE = "default", "program", "task.yaml"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as text. `origin`: "default", "program", "task.yaml", or FILE:LINE."""

    name: str
    value: str
    origin: str


def settings(host):
    """[(title, [Setting, ...]), ...]: settings for all tasks, for tasks with settings of their own, and the limits of
    each loaded version."""
    policy = host.policy
    groups = [
        ("All tasks", _rows(policy, Policy(), policy, "", ("task", "tasks", "debugging", "origins"))),
        ("Each task", _rows(policy.task, TaskPolicy(), policy, "task.", ("breaker",))),
        ("Its breaker", _rows(policy.task.breaker, BreakerPolicy(), policy, "task.breaker.")),
        ("Debugging", _rows(policy.debugging, DebugPolicy(), policy, "debugging.")),
    ]
    for name, own in sorted(policy.tasks.items()):
        rows = _rows(own, policy.task, policy, f"tasks.{name}.", ("breaker",))
        rows += _rows(own.breaker, policy.task.breaker, policy, f"tasks.{name}.breaker.")
        groups.append((f"Task {name}", [row for row in rows if row.origin != DEFAULT]))
    for name in sorted(host.tasks):
        try:
            task = host.task(name)
        except KeyError:  # unloaded just now
            continue
        groups.append((f"Limits of {name} {task.version}", _limits(task.limits, name, policy)))
    return groups


def _rows(policy, default, whole, path, without=()):
    """A Setting for each field of `policy`, which is at `path` in `whole`."""
    rows = []
    for field in fields(policy):
        if field.name not in without:
            value = getattr(policy, field.name)
            source = _place(whole, f"{path}{field.name}", value)
            same = value == getattr(default, field.name)
            rows.append(Setting(field.name, _text(value), source or (DEFAULT if same else PROGRAM)))
    return rows


def _place(policy, path, value):
    """FILE:LINE of a value; None if no file sets it, or it was replaced since."""
    place, written = policy.origins.get(path, (None, None))
    return place if place is not None and written == value else None


def _limits(limits, name, policy):
    """The effective limits: for each, the smaller of the bundle's request and the host's policy."""
    caps = (
        (policy.for_task(name).limits, f"tasks.{name}.limits" if name in policy.tasks else "task.limits"),
        (policy.limits, "limits"),
    )
    rows = []
    for field in fields(limits):
        value = getattr(limits, field.name)
        origin = DEFAULT if value == getattr(Limits(), field.name) else BUNDLE
        for given, path in caps:
            if value is not None and value == Limits.given(given, path).get(field.name):
                origin = policy.origins.get(f"{path}.{field.name}", (PROGRAM,))[0]
                break
        rows.append(Setting(field.name, _text(value), origin))
    return rows


def _text(value):
    if value is None or value == {}:
        return "none"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "none"
    return str(value)
