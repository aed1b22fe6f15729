"""The bounds of a channel in the device's outbox, and what happens when it is full."""

from dataclasses import dataclass

from vmhost.tunnel.errors import TunnelConfigurationError

WHEN_FULL = ("oldest", "refuse", "replace")


@dataclass(frozen=True)
class Rule:
    """`max_bytes`, `max_count`: of waiting messages on the channel; None: only the bounds of the whole outbox.

    `when_full`: "oldest" drops the oldest message, "refuse" raises OutboxFullError for the new one, "replace" keeps
    only the new one. `max_age_s`: older messages are dropped when the channel is written to;
    time while the machine is off does not count (`stores.ages`).
    """

    max_bytes: int | None = None
    max_count: int | None = None
    max_age_s: float | None = None
    when_full: str = "oldest"

    def __post_init__(self):
        if self.when_full not in WHEN_FULL:
            raise TunnelConfigurationError(f"when_full: expected one of {', '.join(WHEN_FULL)}, got {self.when_full!r}")
        for name in ("max_bytes", "max_count", "max_age_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TunnelConfigurationError(f"{name}: expected a number above 0, got {value!r}")
