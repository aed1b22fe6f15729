"""Decides which task gets a VM next, and which has to give one up.

Within a lane the native queue decides (priority of the call, then FIFO). Between tasks VMs are shared max-min fair:
nobody gets more than it can use, and the rest is divided evenly, by weight, among those who could use more; tasks of a
higher priority come first. If there are more tasks than VMs, those with the least VM time so far are next, in turns of
the policy's quantum. Every method is called with the host's lock held, on events; an idle host runs none of this.
"""

from dataclasses import dataclass

# Shorter calls gain nothing from more VMs than cores: waking a VM costs more than the call.
_SHORT_CALL_S = 0.001


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one task.

    `demand`: VMs it could use. `used`: VM time per weight so far, in quanta. `held`: VMs it has.
    """

    demand: int
    weight: float = 1.0
    priority: int = 0
    used: float = 0.0
    held: int = 0


def shares(claims, capacity):
    """How many of `capacity` VMs each claimant gets. `claims` maps it to its Claim; returns a dict of ints.

    Everyone with a demand gets one VM; if there are not enough, first those of the highest `priority`, then those with
    the least `used`. The rest is dealt max-min fair: one by one, by `priority`, then to the claimant with the least for
    its weight. Ties go to claimants that already hold VMs, since moving one costs a boot.
    """
    given = dict.fromkeys(claims, 0)
    first = sorted(
        (c for c in claims if claims[c].demand), key=lambda c: (-claims[c].priority, claims[c].used, -claims[c].held)
    )
    for claimant in first[:capacity]:
        given[claimant] = 1
    for _ in range(capacity - len(first)):
        waiting = [c for c in first if given[c] < claims[c].demand]
        if not waiting:
            break
        pick = min(
            waiting, key=lambda c: (-claims[c].priority, (given[c] + 1) / claims[c].weight, given[c] >= claims[c].held)
        )
        given[pick] += 1
    return given


class Scheduler:
    """Deals the VMs of `pool` to the versions that were added."""

    def __init__(self, policy, pool, clock):
        self._policy = policy
        self._pool = pool
        self._clock = clock
        self._used = {}  # version -> [VM seconds per weight, time of that, whether it then had a demand]
        self._capped = {}  # version with short calls -> (calls ended, time when first seen)
        self.starved = 0

    @property
    def versions(self):
        return tuple(self._used)

    def add(self, version):
        self._used[version] = [0.0, self._clock(), False]

    def remove(self, version):
        self._used.pop(version, None)
        self._capped.pop(version, None)

    def demand(self, version):
        """The number of VMs that `version` could use now."""
        # Not queued plus running: a call that was handed to a VM and has not begun is in neither.
        demand = min(version.limits.concurrency, version.lane.unfinished)
        if demand <= self._policy.cores or version.recent_call_s() >= _SHORT_CALL_S:
            self._capped.pop(version, None)
        elif not self._stalls(version):
            demand = self._policy.cores
        if not version.draining:
            demand = max(demand, min(version.policy.ready, version.limits.concurrency))
        return demand

    def _stalls(self, version):
        """Whether none of its calls has ended for a quantum: then they are not short, but may wait for each other."""
        ended = version.ended()
        seen, since = self._capped.setdefault(version, (ended, self._clock()))
        if seen != ended:
            self._capped[version] = ended, self._clock()
            return False
        return self._clock() - since >= self._policy.quantum_s

    def deal(self):
        """Give VMs to the tasks that should have them.

        Returns the seconds until the next deal; None: on the next event.
        """
        pool = self._pool
        now = self._clock()
        demands = {version: self.demand(version) for version in self._used}
        self._account(demands, now)
        claims = {
            version: Claim(
                demand,
                version.policy.weight,
                version.priority,
                self._used[version][0] // self._policy.quantum_s,
                len(pool.held_by(version)),
            )
            for version, demand in demands.items()
            if demand
        }
        targets = shares(claims, self._policy.max_vms)
        missing = {}
        contended = {version for version, target in targets.items() if not target}  # waits for its turn
        for version in sorted(targets, key=lambda v: (-v.priority, len(pool.held_by(v)) / v.policy.weight)):
            lacking = targets[version] - len(pool.held_by(version))
            while lacking > 0:
                if pool.lent >= self._policy.max_vms and not self._make_room(version, targets, now):
                    contended.add(version)
                    break
                if not pool.lend(version):
                    missing[version.stack_bytes] = missing.get(version.stack_bytes, 0) + lacking
                    break
                lacking -= 1
        if missing:
            self.starved += 1
            pool.lacked()
        pool.boot_for(missing, {version.stack_bytes for version in self._used if not version.draining})
        if self._mute(targets, contended):
            return 0.0
        return self._policy.quantum_s if contended or self._capped else None

    def _mute(self, targets, contended):
        """Mute lanes that cannot get a VM before another event: they need not report that they are starved.

        A saturated lane would report it at every submission. True if a lane that was unmuted has become starved
        meanwhile.
        """
        missed = False
        for version in self._used:
            held = len(self._pool.held_by(version))
            muted = held >= version.limits.concurrency or held < targets.get(version, 0) or version in contended
            if muted != version.muted:
                version.mute(muted)
                missed = missed or not muted and version.lane.starved and self.demand(version) > held
        return missed

    def _account(self, demands, now):
        """Update the VM seconds per weight of all versions."""
        for version, entry in self._used.items():
            entry[0] += len(self._pool.held_by(version)) * (now - entry[1]) / version.policy.weight
            entry[1] = now
        minimum = min((entry[0] for entry in self._used.values() if entry[2]), default=0.0)
        for version, entry in self._used.items():
            if demands[version] and not entry[2]:
                entry[0] = max(entry[0], minimum)  # no credit for the time without a demand
            entry[2] = bool(demands[version])

    def _make_room(self, claimant, targets, now):
        """All VMs are lent: take one away for `claimant`. True if it went at once; False if it is in a call."""
        pool = self._pool
        rich = [
            version
            for version in self._used
            if version is not claimant and len(pool.serving(version)) > targets.get(version, 0)
        ]
        best, longest = None, 0.0
        for version in rich:
            vm, idle_s = pool.idle_of(version)
            if idle_s > longest:
                best, longest = vm, idle_s
        if best is not None:
            best.retire(now, idle=True)
            return True
        leaving = pool.lent - sum(len(pool.serving(version)) for version in self._used)
        if rich and not leaving:
            worst = max(rich, key=lambda version: len(pool.serving(version)) - targets.get(version, 0))
            # It ends after its current call; its "ended" event deals again.
            min(pool.serving(worst), key=lambda vm: vm.since).retire(now)
        return False
