"""One turn at one machine: look, claim, act, tell.

What is claimed stands in the API before it is taken, with the grant in most cases; what was reached is told
in one write afterwards (`plan.change` has the rule). A turn that finds nothing to do writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from hotvirt.api import codec
from hotvirt.api.conditions import Condition
from hotvirt.api.kubevirt import Obstacle, VirtualMachineInstance, VMIStatus
from hotvirt.api.meta import now
from hotvirt.api.pods import Pod
from hotvirt.api.resources import VMIS
from hotvirt.hypervisor.driver import Observed, RunningMachine, Status
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer
from hotvirt.kube.patch import merge_diff
from hotvirt.node import looks, sizes
from hotvirt.node.guest import STARTING_POLL, Guest
from hotvirt.node.requests import carry_out
from hotvirt.node.status import Seen, vmi_status
from hotvirt.plan import change


class Turns:
    def __init__(self, client: Client, vmis: Informer[VirtualMachineInstance], recorder: Recorder) -> None:
        self._client = client
        self._vmis = vmis
        self._recorder = recorder

    async def take(self, vmi: VirtualMachineInstance, pod: Pod, guest: Guest, gate: bool) -> float | None:
        """When to look again; None: when something changes."""
        again = await self._take(vmi, pod, guest, gate)
        if again is not None and again != looks.HOLD:
            guest.looks.forget()  # that is what it is to be looked at for
        return again

    async def _take(self, vmi: VirtualMachineInstance, pod: Pod, guest: Guest, gate: bool) -> float | None:
        running, generation = guest.running, vmi.metadata.generation
        assert running is not None
        if vmi.status.hotvirt.requests:
            await self._carry_out_requests(vmi, guest, running)
            guest.looks.forget()
        told = vmi.status

        async def look_anew() -> Observed:
            return sizes.recalled(await guest.looks.look_anew(running, generation), told)

        last = guest.looks.last
        plan = _plan(vmi, last, guest.unplugs, gate) if last is not None else None
        if plan is None or not guest.sizer.has_to_act(plan.observed, plan.aim, guest.unplugs):
            # An old look is enough to begin something, and to wait; not to say that all is well.
            if plan is not None and plan.waits and guest.looks.may_hold(generation):
                return looks.HOLD
            plan = _plan(vmi, await guest.looks.look(running, generation), guest.unplugs, gate)
        aim, claims = plan.aim, plan.claimed.join(plan.aim)
        if vmi.status.hotvirt.claimed != claims.status():
            vmi = await self._tell(vmi, self._status(vmi, pod, guest, plan.observed, claims, gate))
        if guest.sizer.has_to_act(plan.observed, aim, guest.unplugs):
            guest.looks.forget()  # whatever comes of it
        observed, obstacles = await guest.sizer.step(running, plan.observed, aim, guest.unplugs, look_anew)
        if guest.panicked:
            guest.panicked = False
            self._recorder.event(vmi, "Warning", "GuestPanicked", "The guest's kernel panicked.")
        # Never below what the machine still has: that is given back only when it was seen to be gone.
        claimed = aim.join(sizes.used(observed, guest.unplugs))
        status = self._status(vmi, pod, guest, observed, claimed, gate, obstacles)
        if plan.waits and _only_observes(vmi.status, status) and guest.looks.may_hold(generation):
            return looks.HOLD
        await self._tell(vmi, status)
        if obstacles:
            return sizes.LATER
        if sizes.reached(observed) != aim and observed.status is Status.RUNNING:
            return STARTING_POLL
        if observed.unread:
            return looks.SOON
        return guest.next_look_at_agent(observed)

    async def _carry_out_requests(
        self, vmi: VirtualMachineInstance, guest: Guest, running: RunningMachine
    ) -> None:
        """They go from the API with the status that is written next."""
        for request in vmi.status.hotvirt.requests:
            problem = await carry_out(running, guest.folder, request)
            if problem:
                self._recorder.event(vmi, "Warning", "RequestFailed", f"{request.action}: {problem}")

    @staticmethod
    def _status(
        vmi: VirtualMachineInstance,
        pod: Pod,
        guest: Guest,
        observed: Observed,
        claimed: change.Guest,
        gate: bool,
        obstacles: tuple[Obstacle, ...] | None = None,
    ) -> VMIStatus:
        assert guest.running is not None
        seen = Seen(
            observed=observed,
            accelerator=guest.accelerator,
            hypervisor=guest.running.version,
            boot_memory=guest.boot_memory,
            pod_address=pod.status.pod_ip,
            machine=guest.machine,
            claimed=claimed.status(),
            obstacles=vmi.status.hotvirt.obstacles if obstacles is None else obstacles,
            gate=gate,
        )
        return vmi_status(vmi, seen, now())

    async def _tell(self, vmi: VirtualMachineInstance, status: VMIStatus) -> VirtualMachineInstance:
        """Write the difference, if there is one, on top of exactly what was read."""
        if status == vmi.status:
            return vmi
        difference = merge_diff(codec.builtins(vmi.status), codec.builtins(status))
        if not difference:
            return vmi
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": vmi.metadata.resource_version},
            "status": difference,
        }
        written = await self._client.patch(
            VMIS,
            vmi.metadata.name,
            patch,
            vmi.metadata.namespace,
            kind="merge",
            subresource="status",
            cls=VirtualMachineInstance,
        )
        self._vmis.learn(written)
        if vmi.status.phase != status.phase:
            self._recorder.event(vmi, "Normal", "Started", "VirtualMachineInstance started.")
        return written


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do about one look at the machine."""

    observed: Observed
    claimed: change.Guest
    aim: change.Guest
    waits: bool
    """For more to be granted, and nothing stands in its way."""


def _plan(vmi: VirtualMachineInstance, look: Observed, unplugs: bool, gate: bool) -> _Plan:
    observed = sizes.recalled(look, vmi.status)
    has = sizes.used(observed, unplugs)
    claimed = _claimed(vmi, has)
    aim = sizes.aims(vmi, claimed, has, observed.memory.boot, gate)
    waits = gate and change.wanted_guest(vmi.spec).exceeds(aim) and change.goes_well(vmi)
    return _Plan(observed, claimed, aim, waits)


def _claimed(vmi: VirtualMachineInstance, has: change.Guest) -> change.Guest:
    """What stands in the VMI; what the machine has where nothing stands there yet."""
    stands = vmi.status.hotvirt.claimed
    if stands is None:
        return has
    return change.Guest(stands.vcpus, stands.memory.value if stands.memory else has.memory).join(has)


def _only_observes(old: VMIStatus, new: VMIStatus) -> bool:
    """Whether all that is new is for which generation it was seen."""

    def plain(conditions: tuple[Condition, ...]) -> list[Condition]:
        return [msgspec.structs.replace(each, observed_generation=None) for each in conditions]

    return msgspec.structs.replace(old, conditions=()) == msgspec.structs.replace(
        new, conditions=()
    ) and plain(old.conditions) == plain(new.conditions)
