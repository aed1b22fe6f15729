"""The VMs of one host: boots them ahead, lends, keeps and retires them.

    booting -> warm -> serving one task version, for good -> leaving -> ending -> gone (ended, failed or quarantined)

A VM is never lent twice, so that no task sees what another one left in it. The pool decides how many VMs are kept warm
and which idle ones retire; the scheduler decides who gets the next one. Every method is called with the host's lock
held.
"""

from vmhost import statistics
from vmhost.isolation.vm import BOOTING, DEFAULT_STACK_BYTES, ENDING, LEAVING, SERVING, WARM, OwnedVM
from vmhost.runtime import machine

_OVER = frozenset(("ending", "ended", "quarantined"))  # such a VM accepts no calls, even before its event arrives
_PRESSURE_EVERY_S = 1.0
_MIN_CHECK_INTERVAL_S = 0.01
# The memory limit until a VM is lent: enough for any boot, and low enough to stop a runaway one.
_BOOT_BYTES = 256 << 20


class Pool:
    """The VMs of one host under `policy`. `native`: the native core; `system`: the code store that all VMs boot
    from."""

    def __init__(self, policy, native, system, events, clock):
        self._policy = policy
        self._native = native
        self._system = system
        self._events = events
        self._clock = clock
        self._vms = {}
        self._warm_wanted = policy.warm
        self._last_miss = clock()
        self._failed_in_a_row = 0
        self._broken = False  # boots fail: none ahead until one succeeds
        self._pressure = (float("-inf"), False)
        self._memory_bytes = policy.memory_bytes or machine.memory_bytes() // 4
        self._of = {}  # owner -> its OwnedVMs
        self.changed = True  # VMs were added, removed or lent since the pool's owner last set this to False
        self.cannot_boot = None  # why a boot could not even be started, until someone reads it
        self.closing = False
        self.quarantined = []  # statistics of VMs that could not be ended
        self.totals = statistics.VMTotals()  # of VMs that have left the pool
        self.booted = self.boot_failures = self.ended = 0

    # -- queries --------------------------------------------------------------------------------------------------

    def __len__(self):
        return len(self._vms)

    def owned(self, native):
        """The OwnedVM of a native one; None if it is gone."""
        return self._vms.get(native.id)

    def serving(self, owner):
        """VMs that serve `owner` and will continue to."""
        return [vm for vm in self._of.get(owner, ()) if vm.phase == SERVING and vm.native.state not in _OVER]

    def held_by(self, owner):
        """VMs that may run a call of `owner`: those that serve it, and those that leave after their current call."""
        return [vm for vm in self._of.get(owner, ()) if vm.phase in (SERVING, LEAVING) and vm.native.state not in _OVER]

    def is_free_of(self, owner):
        """True if no VM of `owner` is left, not even one that is ending."""
        return owner not in self._of

    def ids_of(self, owner):
        """The ids of all VMs of `owner`, including ending ones."""
        return {vm.native.id for vm in self._of.get(owner, ())}

    @property
    def lent(self):
        """VMs that may run a call, of all tasks."""
        return sum(len(self.held_by(owner)) for owner in self._of)

    @property
    def warm(self):
        return self.count(WARM)

    @property
    def booting(self):
        return self.count(BOOTING)

    def count(self, phase):
        return sum(vm.phase == phase for vm in self._vms.values())

    def snapshot(self):
        """(VMStatistics of all, memory held by all in bytes)."""
        all_vms = tuple(
            statistics.of_vm(vm.native, vm.owner and vm.owner.name, vm.owner and vm.owner.version)
            for vm in self._vms.values()
        )
        return all_vms, sum(vm.live_bytes for vm in all_vms)

    # -- lending --------------------------------------------------------------------------------------------------

    def lend(self, owner):
        """Attach a warm VM to `owner` (a Version). False if none with its stack size is warm."""
        for vm in self._vms.values():
            if vm.phase == WARM and vm.stack_bytes == owner.stack_bytes:
                vm.serve(
                    owner,
                    owner.lane,
                    self._clock(),
                    soft_bytes=owner.limits.memory_bytes,
                    hard_bytes=owner.limits.hard_bytes,
                    descriptors=owner.limits.descriptors,
                    output_bytes=owner.limits.output_bytes,
                    permissions=owner.permissions,
                )
                self._of.setdefault(owner, []).append(vm)
                self.changed = True
                if not self._policy.replace_warm:
                    self._warm_wanted = max(0, self._warm_wanted - 1)
                return True
        return False

    def lacked(self):
        """A task has to wait because no VM is warm: keep more of them from now on."""
        if self.count(BOOTING):
            return  # a VM that is booting already will meet this demand
        self._last_miss = self._clock()
        self._warm_wanted = min(self._policy.max_warm, self._warm_wanted + 1)

    def boot_for(self, missing, stacks=()):
        """Boot the needed VMs: `missing` maps stack sizes to the number needed now; the warm ones are added to it.

        Those are `warm` of the default stack size, more if they were lacking, and one for each other size in `stacks`.
        """
        wanted = dict(missing)
        if self._policy.max_warm and not self.closing and not self._broken and not self.under_pressure():
            for stack_bytes in stacks:
                if stack_bytes != DEFAULT_STACK_BYTES:
                    wanted[stack_bytes] = wanted.get(stack_bytes, 0) + 1
            now, ahead = wanted.get(DEFAULT_STACK_BYTES, 0), self._warm_wanted
            wanted[DEFAULT_STACK_BYTES] = now + ahead if self._policy.replace_warm else max(now, ahead)
        for stack_bytes, number in wanted.items():
            ahead = sum(vm.phase in (BOOTING, WARM) and vm.stack_bytes == stack_bytes for vm in self._vms.values())
            room = self._policy.boots_at_once - self.count(BOOTING)
            for _ in range(min(number - ahead, room)):
                try:
                    self._boot(stack_bytes)
                except (OSError, MemoryError) as error:
                    self.boot_failures += 1
                    if self._make_room():
                        return
                    self._broken = True
                    self.cannot_boot = f"{type(error).__name__}: {error}"
                    return

    def _make_room(self):
        """Retire the VM that has been idle longest, unless one ends already. False if there is neither. Its end makes
        the scheduler try again."""
        if any(vm.phase in (LEAVING, ENDING) and vm.native.statistics()["idle_s"] > 0 for vm in self._vms.values()):
            return True
        idle = [(vm.native.statistics()["idle_s"], vm) for vm in self._vms.values() if vm.phase == SERVING]
        longest, vm = max(idle, key=lambda entry: entry[0], default=(0, None))
        if longest <= 0:
            return False
        vm.retire(self._clock(), idle=True)
        return True

    def _boot(self, stack_bytes):
        """Start to boot a VM. OSError or MemoryError if the machine has no thread or memory for it."""
        native = self._native.VM(
            self._system,
            self._events,
            stack_bytes=stack_bytes,
            soft_bytes=_BOOT_BYTES,
            hard_bytes=_BOOT_BYTES + _BOOT_BYTES // 4,
            grace_s=self._policy.grace_s,
        )
        self._vms[native.id] = OwnedVM(native, stack_bytes, self._clock())
        self.changed = True

    def _remove(self, native):
        """Remove `native` from the pool: its OwnedVM, or None if it was not there."""
        vm = self._vms.pop(native.id, None)
        if vm is not None:
            self.changed = True
            last = (statistics.of_vm(native),)
            self.totals = self.totals.with_vms(last)
            if vm.owner is not None:
                vm.owner.totals = vm.owner.totals.with_vms(last)
                others = self._of[vm.owner]
                others.remove(vm)
                if not others:
                    del self._of[vm.owner]
        return vm

    # -- native events --------------------------------------------------------------------------------------------

    def on_ready(self, native):
        vm = self.owned(native)
        if vm is None:
            return
        self.booted += 1
        self._failed_in_a_row = 0
        self._broken = False
        if vm.phase == BOOTING:
            vm.move(WARM, self._clock())

    def on_failed(self, native):
        """A boot failed. True if so many failed in a row that waiting calls should fail."""
        if self._remove(native) is None:
            return False
        self.boot_failures += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row < self._policy.boot_tries:
            return False
        self._failed_in_a_row = 0
        self._broken = True
        return True

    def on_stopped(self, native):
        """A call in it was stopped; it ends by itself and accepts no more calls."""
        vm = self.owned(native)
        if vm is not None:
            vm.move(ENDING, self._clock())

    def on_ended(self, native):
        """It has ended. Returns its owner, or None."""
        vm = self._remove(native)
        if vm is None:
            return None
        self.ended += 1
        return vm.owner

    def on_quarantined(self, native):
        """It could not be ended, and leaves the pool for good. Returns its owner, or None."""
        vm = self._remove(native)
        owner = vm.owner if vm else None
        self.quarantined.append(statistics.of_vm(native, owner and owner.name, owner and owner.version))
        return owner

    # -- retiring -------------------------------------------------------------------------------------------------

    def retire_all(self, owner):
        """Retire each VM of `owner` after its current call."""
        for vm in self.serving(owner):
            vm.retire(self._clock())

    def close(self):
        """Stop booting ahead, and retire VMs that are not lent."""
        self.closing = True
        for vm in self._vms.values():
            if vm.owner is None:
                vm.retire(self._clock())

    def idle_of(self, owner):
        """The VM of `owner` that has been idle longest, and its idle seconds; (None, 0) if all are busy."""
        best, longest = None, 0.0
        for vm in self.serving(owner):
            idle_s = vm.native.statistics()["idle_s"]
            if idle_s > longest:
                best, longest = vm, idle_s
        return best, longest

    def retire_idle(self, keep):
        """Retire VMs that were idle too long, and more while memory is short. `keep(owner)` VMs of a task stay.

        Returns the seconds until the next check, or None if there is nothing to wait for.
        """
        now = self._clock()
        looked_at = [(vm, vm.native.statistics()) for vm in self._vms.values()]
        memory = sum(counters["live_bytes"] for _, counters in looked_at)
        pressed_now = self.under_pressure()
        lent = [(counters["idle_s"], counters["live_bytes"], vm) for vm, counters in looked_at if vm.phase == SERVING]
        lent.sort(key=lambda entry: entry[0], reverse=True)
        again = None
        for idle_s, live_bytes, vm in lent:
            over = memory > self._memory_bytes or pressed_now
            if (
                idle_s > 0
                and (over or idle_s >= self._policy.idle_s)
                and (over or len(self.serving(vm.owner)) > keep(vm.owner))
            ):
                vm.retire(now, idle=True)
                memory -= live_bytes
                pressed_now = False  # one per check: the memory it frees shows only at the next one
            elif len(self.serving(vm.owner)) > keep(vm.owner):
                left = max(self._policy.idle_s - idle_s, _MIN_CHECK_INTERVAL_S)
                again = left if again is None else min(again, left)
        if self._warm_wanted > self._policy.warm:
            left = self._last_miss + self._policy.idle_s - now
            if left <= 0:
                self._warm_wanted -= 1
                self._last_miss = now
                left = self._policy.idle_s
                spare = [vm for vm in self._vms.values() if vm.phase == WARM and vm.stack_bytes == DEFAULT_STACK_BYTES]
                if len(spare) > self._warm_wanted:
                    spare[0].retire(now)
            again = left if again is None else min(again, left)
        return again

    def under_pressure(self):
        """Whether the machine's memory is short; measured at most once a second."""
        now = self._clock()
        when, pressed = self._pressure
        if now - when >= _PRESSURE_EVERY_S:
            pressed = machine.memory_used_percent() >= self._policy.pressure_percent
            self._pressure = (now, pressed)
        return pressed
