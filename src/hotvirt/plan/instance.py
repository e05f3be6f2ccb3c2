"""What a VMI's status says, as far as its Pod and its volumes decide it: phase, conditions, places.

The node agent says the rest (phase Running, sizes, guest); the writers are listed in `docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from hotvirt.api import names
from hotvirt.api.cdi import DataVolume
from hotvirt.api.conditions import FALSE, TRUE, Condition, find, is_true, set_condition
from hotvirt.api.core import ContainerStatus, PersistentVolumeClaim, Pod
from hotvirt.api.kubevirt import (
    ClaimInfo,
    PhaseTransition,
    VirtualMachineInstance,
    VMIStatus,
    Volume,
    VolumeStatus,
)
from hotvirt.plan.runstrategy import FAILED, FINAL_PHASES, PENDING, RUNNING, SCHEDULED, SCHEDULING, SUCCEEDED
from hotvirt.plan.status import (
    IMAGE_REASONS,
    PAUSED,
    POD_SCHEDULED,
    PVC_NOT_FOUND,
    READY,
    SYNCHRONIZED,
)

DATA_VOLUMES_READY: Final = "DataVolumesReady"
FAILED_CREATE: Final = "FailedCreate"
OWN: Final = (READY, SYNCHRONIZED, POD_SCHEDULED, DATA_VOLUMES_READY)
"""Conditions that follow the Pod and the volumes."""
OF_A_GUEST: Final = ("AgentConnected", PAUSED, "Resizable")
"""Conditions that are true of a machine that runs."""
BEFORE_HANDOVER: Final = frozenset({"", PENDING, SCHEDULING})
WAITING_REASONS: Final = frozenset(
    {
        *IMAGE_REASONS,
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
USABLE_DATA_VOLUMES: Final = frozenset({"Succeeded", "WaitForFirstConsumer", "PendingPopulation"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the VMI is not where it should be; the reason and message of Synchronized=False."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class VolumesView:
    """The state of what a VMI's volumes need."""

    missing: Problem | None = None
    data_volumes: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    """DataVolumes that are not usable yet."""

    @property
    def ready(self) -> bool:
        return self.missing is None and not self.unready


def volumes_view(
    volumes: Iterable[Volume],
    data_volumes: Mapping[str, DataVolume],
    claims: Mapping[str, PersistentVolumeClaim],
) -> VolumesView:
    """`data_volumes` and `claims` of the VMI's namespace, by name."""
    named: list[str] = []
    unready: list[str] = []
    missing = None
    for volume in volumes:
        claim = volume.claim_name
        if not claim:
            continue
        if volume.data_volume:
            named.append(claim)
            made = data_volumes.get(claim)
            if made is not None:
                if made.status.phase not in USABLE_DATA_VOLUMES:
                    unready.append(claim)
                continue
        if claim not in claims and missing is None:
            what = "DataVolume" if volume.data_volume else "PersistentVolumeClaim"
            missing = Problem(
                PVC_NOT_FOUND, f"{what} {claim} of volume {volume.name} does not exist; the VM waits for it."
            )
    return VolumesView(missing, tuple(named), tuple(unready))


def compute_status(pod: Pod) -> ContainerStatus | None:
    return next(
        (each for each in pod.status.container_statuses if each.name == names.CONTAINER_COMPUTE), None
    )


def phase_of(current: str, pod: Pod | None) -> str:
    """The phase that the Pod asks for. Running is the node agent's to say."""
    if current in FINAL_PHASES:
        return current
    if pod is None:
        return PENDING if current in ("", PENDING) else FAILED
    compute = compute_status(pod)
    if compute is not None and compute.state.terminated is not None:
        return SUCCEEDED if compute.state.terminated.exit_code == 0 else FAILED
    if pod.status.phase in FINAL_PHASES:
        return pod.status.phase
    if current not in BEFORE_HANDOVER:
        return current
    runs = pod.status.phase == RUNNING and compute is not None and compute.state.running is not None
    return SCHEDULED if runs and pod.spec.node_name else SCHEDULING


def last_words(pod: Pod | None) -> str:
    """Why the machine ended, as far as its Pod says; a sentence."""
    if pod is None:
        return "Its launcher Pod is gone."
    compute = compute_status(pod)
    ended = compute.state.terminated if compute is not None else None
    if ended is None:
        for step in pod.status.init_container_statuses:
            failed = step.state.terminated
            if failed is not None and failed.exit_code:
                said = f": {failed.message.strip()}" if failed.message else "."
                return f"Its Pod's init step {step.name} ended with exit code {failed.exit_code}{said}"
        return pod.status.message or f"Its launcher Pod {pod.status.reason or 'ended'}."
    said = f": {ended.message}" if ended.message else "."
    return f"It ended with exit code {ended.exit_code} ({ended.reason or 'Error'}){said}"


def with_phase(status: VMIStatus, phase: str, now: str) -> VMIStatus:
    """The status in that phase, with the time it got there."""
    if status.phase == phase:
        return status
    return msgspec.structs.replace(
        status,
        phase=phase,
        phase_transition_timestamps=(
            *status.phase_transition_timestamps,
            PhaseTransition(phase=phase, phase_transition_timestamp=now),
        ),
    )


def was_running(status: VMIStatus) -> bool:
    return any(transition.phase == RUNNING for transition in status.phase_transition_timestamps)


def ready_of(phase: str, conditions: Sequence[Condition], pod: Pod | None) -> Condition:
    """The VMI's Ready condition."""
    if pod is None:
        return _not_ready("PodNotExists", "The VMI has no launcher Pod.")
    if phase in FINAL_PHASES:
        return _not_ready("PodTerminated", "The machine has ended.")
    if pod.metadata.deleting:
        return _not_ready("PodTerminating", "The launcher Pod is terminating.")
    if phase != RUNNING:
        return _not_ready("GuestNotRunning", "The guest is not running yet.")
    if is_true(conditions, PAUSED):
        return _not_ready("Paused", "The guest is paused.")
    ready = find(pod.status.conditions, READY)
    if ready is None:
        return _not_ready("PodConditionMissing", "The launcher Pod does not say whether it is ready.")
    return Condition(type=READY, status=ready.status, reason=ready.reason, message=ready.message)


def _not_ready(reason: str, message: str) -> Condition:
    return Condition(type=READY, status=FALSE, reason=reason, message=message)


def pod_problem(pod: Pod | None) -> Problem | None:
    """What keeps the Pod's containers from starting, as the node says it."""
    if pod is None:
        return None
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in WAITING_REASONS:
            return Problem(waiting.reason, waiting.message or f"Container {container.name} cannot start.")
    return None


def conditions_of(
    old: Sequence[Condition],
    *,
    phase: str,
    pod: Pod | None,
    volumes: VolumesView,
    problem: Problem | None,
    generation: int | None = None,
) -> list[Condition]:
    """The VMI's conditions with those of its Pod and its volumes brought up to date; the others stay.

    One that says what it said before is not written for a new generation alone: the first write of the change
    that this asks for brings all of them up to it.
    """
    wanted = [ready_of(phase, old, pod)]
    if problem is not None:
        wanted.append(
            Condition(type=SYNCHRONIZED, status=FALSE, reason=problem.reason, message=problem.message)
        )
    scheduled = find(pod.status.conditions, POD_SCHEDULED) if pod is not None else None
    if scheduled is not None and scheduled.status == FALSE:
        wanted.append(
            Condition(type=POD_SCHEDULED, status=FALSE, reason=scheduled.reason, message=scheduled.message)
        )
    if volumes.data_volumes:
        wanted.append(_data_volumes_ready(volumes))
    present = {each.type for each in wanted}
    conditions = [each for each in old if each.type not in OWN or each.type in present]
    for each in wanted:
        before = find(old, each.type)
        same = before is not None and (before.status, before.reason, before.message) == (
            each.status,
            each.reason,
            each.message,
        )
        seen = before.observed_generation if before is not None and same else None
        conditions = set_condition(
            conditions, msgspec.structs.replace(each, observed_generation=seen or generation)
        )
    return conditions


def observed_at(conditions: Iterable[Condition], generation: int) -> list[Condition]:
    """The conditions with those that are told here as seen at that generation."""
    return [
        msgspec.structs.replace(each, observed_generation=generation) if each.type in OWN else each
        for each in conditions
    ]


def _data_volumes_ready(volumes: VolumesView) -> Condition:
    if volumes.ready:
        return Condition(
            type=DATA_VOLUMES_READY, status=TRUE, reason="AllDVsReady", message="All DataVolumes are ready."
        )
    waiting = ", ".join(volumes.unready) or "claims"
    return Condition(
        type=DATA_VOLUMES_READY, status=FALSE, reason="NotAllDVsReady", message=f"Waiting for {waiting}."
    )


def volume_status(
    vmi: VirtualMachineInstance, claims: Mapping[str, PersistentVolumeClaim]
) -> tuple[VolumeStatus, ...]:
    """One entry per volume, with what is known of its claim; what others wrote into an entry stays."""
    known = {status.name: status for status in vmi.status.volume_status}
    entries = []
    for volume in sorted(vmi.spec.volumes, key=lambda each: each.name):
        entry = known.get(volume.name) or VolumeStatus(name=volume.name)
        claim = claims.get(volume.claim_name) if volume.claim_name else None
        if claim is not None:
            info = ClaimInfo(
                claim_name=claim.metadata.name,
                access_modes=claim.status.access_modes or claim.spec.access_modes,
                volume_mode=claim.spec.volume_mode,
                capacity=claim.status.capacity,
                requests=claim.spec.resources.requests if claim.spec.resources else {},
            )
            entry = msgspec.structs.replace(entry, persistent_volume_claim_info=info)
        entries.append(entry)
    return tuple(entries)
