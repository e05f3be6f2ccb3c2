"""A VM in a word (`printableStatus`), its Ready condition, and how long to wait after failed starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hotvirt.api.conditions import FALSE, Condition, find, is_true
from hotvirt.plan import runstrategy
from hotvirt.plan.runstrategy import Instance, Request

READY: Final = "Ready"
PAUSED: Final = "Paused"
SYNCHRONIZED: Final = "Synchronized"
POD_SCHEDULED: Final = "PodScheduled"
IMAGE_REASONS: Final = ("ErrImagePull", "ImagePullBackOff")
PVC_NOT_FOUND: Final = "FailedPvcNotFound"
UNSCHEDULABLE: Final = "Unschedulable"

FIRST_DELAY: Final = 10.0
MAX_DELAY: Final = 300.0
MAX_JITTER: Final = 0.5
BACKING_OFF: Final = frozenset({runstrategy.ALWAYS, runstrategy.RERUN_ON_FAILURE, runstrategy.ONCE})


@dataclass(frozen=True, slots=True)
class Volumes:
    """What is known of the DataVolumes and claims that a VM needs."""

    failed: bool = False
    provisioning: bool = False
    unbound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the one word depends on."""

    strategy: str
    instance: Instance | None = None
    conditions: Sequence[Condition] = ()
    """Those of the VMI."""
    requests: Sequence[Request] = ()
    deleting: bool = False
    migrating: bool = False
    starting: bool = False
    """A VMI was created just now and is not seen yet."""
    stopping: bool = False
    """The VMI was deleted just now and that is not seen yet."""
    volumes: Volumes = field(default_factory=Volumes)
    start_failures: int = 0


def printable_status(vm: Situation) -> str:
    """The first that fits, in KubeVirt's order."""
    instance = vm.instance
    active = instance is not None and not instance.final
    running = instance is not None and instance.phase == runstrategy.RUNNING
    synchronized = find(vm.conditions, SYNCHRONIZED)
    failure = synchronized.reason if synchronized and synchronized.status == FALSE else ""
    scheduled = find(vm.conditions, POD_SCHEDULED)
    unschedulable = bool(scheduled and scheduled.status == FALSE and scheduled.reason == UNSCHEDULABLE)
    in_starting_phase = instance is not None and instance.phase in runstrategy.STARTING_PHASES
    to_start = runstrategy.set_to_start(vm.strategy, vm.requests, instance)
    receiving = vm.strategy == runstrategy.WAIT_AS_RECEIVER

    table = (
        ("Terminating", vm.deleting),
        ("Stopping", active and (vm.stopping or bool(instance and instance.deleting))),
        ("Migrating", vm.migrating),
        ("Paused", running and is_true(vm.conditions, PAUSED)),
        ("Running", running),
        ("ErrorPvcNotFound", failure == PVC_NOT_FOUND),
        ("DataVolumeError", vm.volumes.failed),
        ("ErrorUnschedulable", unschedulable),
        ("Provisioning", vm.volumes.provisioning),
        ("WaitingForVolumeBinding", to_start and vm.volumes.unbound),
        (failure, failure in IMAGE_REASONS),
        ("Starting", vm.starting or in_starting_phase),
        ("CrashLoopBackOff", not active and vm.start_failures > 0 and vm.strategy in BACKING_OFF),
        ("Stopped", not active and not receiving),
        ("WaitingForReceiver", receiving and (instance is None or instance.phase == "WaitingForSync")),
    )
    return next((word for word, fits in table if fits), "Unknown")


def ready_condition(instance: Instance | None, conditions: Sequence[Condition]) -> Condition:
    """The VM's Ready condition, which is its VMI's."""
    if instance is None or instance.deleting:
        return Condition(type=READY, status=FALSE, reason="VMINotExists", message="VMI does not exist")
    ready = find(conditions, READY)
    if ready is None:
        return Condition(
            type=READY,
            status=FALSE,
            reason="VMIConditionMissing",
            message="VMI is missing the Ready condition",
        )
    return ready


def start_delay(failures: int, jitter: float) -> float:
    """Seconds until the next start after so many failed ones in a row; jitter is from 0 to 0.5."""
    delay = FIRST_DELAY * failures * failures
    return min(delay * (1 + min(max(jitter, 0.0), MAX_JITTER)), MAX_DELAY)
