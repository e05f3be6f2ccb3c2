"""Brings one machine to its size, a step at a time: vCPUs and memory, up and down.

What may be done is decided by the VMI alone: never more than what was granted, and nothing before it stands
in the VMI as claimed (`plan.change` has the rule). Each step waits a moment for the guest; a guest that takes
longer is looked at again, so that an edit in the middle of a change is seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec

import msgspec

from hotvirt.api.kubevirt import Obstacle, VirtualMachineInstance, VMIStatus
from hotvirt.api.quantity import Quantity
from hotvirt.hypervisor.driver import DriverError, Observed, RunningMachine, Status
from hotvirt.plan.change import CPU_RESOURCE, MEMORY_RESOURCE, Guest, wanted_guest

P = ParamSpec("P")
# How long one step waits for the guest before the VMI is looked at again.
MOMENT: Final = 2.0
# A guest that has not moved for so long is reported, with the figure it did reach.
PATIENCE: Final = 20.0
# Then it is looked at from time to time: a guest may come to its senses without any event.
LATER: Final = 15.0


def used(observed: Observed, unplugs: bool) -> Guest:
    """What the machine has, or may take at any moment.

    Where vCPUs are parked instead of unplugged, those that the guest does not use do not count.
    """
    memory = observed.memory
    vcpus = observed.plugged if unplugs else _in_use(observed)
    return Guest(vcpus, memory.boot + max(memory.requested, memory.plugged))


def reached(observed: Observed) -> Guest:
    """What the guest itself has; what it cannot be asked is taken from the hypervisor."""
    memory = observed.memory
    vcpus = min(observed.plugged, _in_use(observed))
    online = memory.plugged if memory.online is None else memory.online
    return Guest(vcpus, memory.boot + online)


def _in_use(observed: Observed) -> int:
    """vCPUs that the guest uses. One without an agent uses what it has, but for what was parked before."""
    guest = observed.guest
    if guest is not None and guest.vcpus:
        return guest.online
    return max(1, observed.plugged - (observed.parked or 0))


def recalled(observed: Observed, told: VMIStatus) -> Observed:
    """A guest that has not said it since we took it over has parked what was told of it then."""
    if observed.parked is not None:
        return observed
    vcpus, shape = told.hotvirt.vcpus, told.current_cpu_topology
    parked = 0
    if vcpus is not None and shape is not None:
        in_use = vcpus.online or max(1, shape.sockets) * max(1, shape.cores) * max(1, shape.threads)
        parked = max(0, min(vcpus.plugged, observed.plugged) - in_use)
    return msgspec.structs.replace(observed, parked=parked)


def aims(vmi: VirtualMachineInstance, claimed: Guest, has: Guest, boot: int, gate: bool) -> Guest:
    """Where to bring the machine now: what is wanted, as far as it is granted; with the gate off, nowhere."""
    if not gate or vmi.metadata.deleting:
        return has
    wanted = wanted_guest(vmi.spec)
    granted = vmi.status.hotvirt.granted
    vcpus, memory = wanted.vcpus, max(wanted.memory, boot)
    if vcpus > claimed.vcpus:
        vcpus = max(claimed.vcpus, min(vcpus, granted.vcpus if granted else 0))
    if memory > claimed.memory:
        most = granted.memory.value if granted and granted.memory is not None else 0
        memory = max(claimed.memory, min(memory, most))
    return Guest(vcpus, memory)


class Sizer:
    """One machine; what is remembered here is only since when a guest has not moved."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[tuple[int, int], float]] = {}

    async def step(
        self,
        running: RunningMachine,
        observed: Observed,
        aim: Guest,
        unplugs: bool,
        look: Callable[[], Awaitable[Observed]],
    ) -> tuple[Observed, tuple[Obstacle, ...]]:
        """Bring the machine nearer to its aim; what is true then, and what stands in the way."""
        steps = []
        if self._vcpus_wait(observed, aim, unplugs):
            steps.append(self._guarded(CPU_RESOURCE, self._vcpus, running, observed, aim.vcpus, unplugs))
        if self._memory_waits(observed, aim):
            more = max(0, aim.memory - observed.memory.boot)
            steps.append(self._guarded(MEMORY_RESOURCE, running.set_memory, more, MOMENT))
        problems: dict[str, Obstacle] = {}
        if steps:
            # One alone begins at once, not when the loop comes round.
            done = await asyncio.gather(*steps) if len(steps) > 1 else [await steps[0]]
            problems = {each.resource: each for each in done if each}
            observed = await look()
        return observed, tuple(self._obstacles(observed, aim, unplugs, problems))

    @staticmethod
    async def _vcpus(running: RunningMachine, observed: Observed, count: int, unplugs: bool) -> None:
        if observed.plugged < count:
            await running.plug_vcpus(count)
        if observed.agent_connected:
            await running.use_vcpus(count, MOMENT)
        if unplugs and observed.plugged > count:
            await running.unplug_vcpus(count, MOMENT)

    @staticmethod
    async def _guarded(
        resource: str, step: Callable[P, Awaitable[object]], *given: P.args, **options: P.kwargs
    ) -> Obstacle | None:
        try:
            await step(*given, **options)
        except DriverError as error:
            return Obstacle(resource=resource, reason="HypervisorRefused", message=f"{error}.")
        return None

    def has_to_act(self, observed: Observed, aim: Guest, unplugs: bool) -> bool:
        return self._vcpus_wait(observed, aim, unplugs) or self._memory_waits(observed, aim)

    @staticmethod
    def _vcpus_wait(observed: Observed, aim: Guest, unplugs: bool) -> bool:
        if observed.status is not Status.RUNNING:
            return False
        if observed.plugged < aim.vcpus or (unplugs and observed.plugged > aim.vcpus):
            return True
        return (
            observed.guest is not None and bool(observed.guest.vcpus) and observed.guest.online != aim.vcpus
        )

    @staticmethod
    def _memory_waits(observed: Observed, aim: Guest) -> bool:
        memory = observed.memory
        if observed.status is not Status.RUNNING:
            return False
        return memory.requested != aim.memory - memory.boot or (
            reached(observed).memory != aim.memory and memory.region > 0
        )

    def _obstacles(
        self, observed: Observed, aim: Guest, unplugs: bool, problems: dict[str, Obstacle]
    ) -> list[Obstacle]:
        now = reached(observed)
        found = []
        for resource in (CPU_RESOURCE, MEMORY_RESOURCE):
            if now.of(resource) == aim.of(resource) and used(observed, unplugs).of(resource) <= aim.of(
                resource
            ):
                self._since.pop(resource, None)
                continue
            obstacle = problems.get(resource) or self._obstacle(resource, observed, now, aim)
            if obstacle is not None:
                found.append(obstacle)
        return found

    def _obstacle(self, resource: str, observed: Observed, now: Guest, aim: Guest) -> Obstacle | None:
        if observed.status is Status.PAUSED:
            return Obstacle(
                resource=resource,
                reason="Paused",
                message="the guest is paused and takes nothing; it goes on when the guest does.",
            )
        shrinks = now.of(resource) > aim.of(resource)
        if resource == CPU_RESOURCE and not observed.agent_connected and (shrinks or observed.parked):
            what = "take vCPUs out of use" if shrinks else "bring back vCPUs that the guest does not use"
            return Obstacle(
                resource=resource,
                reason="NoGuestAgent",
                message=f"no guest agent answers, and without it nobody can {what}. "
                "Install qemu-guest-agent in the guest.",
            )
        # As long as the guest moves, however slowly, nothing is in its way.
        state = (aim.of(resource), now.of(resource))
        before, stands_since = self._since.get(resource, ((-1, -1), 0.0))
        if state != before:
            self._since[resource] = (state, self._clock())
            return None
        if self._clock() - stands_since < PATIENCE:
            return None
        if resource == CPU_RESOURCE:
            text = f"the guest uses {now.vcpus} vCPUs of {aim.vcpus}"
        else:
            text = f"the guest has {_size(now.memory)} of {_size(aim.memory)}"
        reason = "GuestRefused" if shrinks else "NotOnline"
        why = "it has not given back the rest" if shrinks else "it has not brought the rest online"
        return Obstacle(resource=resource, reason=reason, message=f"{text}: {why}. It is asked again.")


def _size(amount: int) -> str:
    return str(Quantity.bytes(amount))
