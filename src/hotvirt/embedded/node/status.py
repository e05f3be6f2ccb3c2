"""A Pod's status as the kubelet reports it: a pure function of what is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hotvirt.api import codec
from hotvirt.api.conditions import Condition, find, set_condition
from hotvirt.api.pods import Container, Pod, ResourceRequirements

from .runtime import ContainerRun
from .sizes import Sizes, container_requests, qos_class, total

READY_TO_START = "PodReadyToStartContainers"
INITIALIZED = "Initialized"
READY = "Ready"
CONTAINERS_READY = "ContainersReady"
SCHEDULED = "PodScheduled"
RESIZE_PENDING = "PodResizePending"
RESIZE_IN_PROGRESS = "PodResizeInProgress"
OURS = (RESIZE_PENDING, RESIZE_IN_PROGRESS, READY_TO_START, INITIALIZED, READY, CONTAINERS_READY, SCHEDULED)


@dataclass(frozen=True)
class Waiting:
    reason: str = "ContainerCreating"
    message: str = ""


@dataclass
class Knowledge:
    """What the node knows of a Pod."""

    runs: dict[str, ContainerRun] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    allocated: Sizes = field(default_factory=dict)
    actual: Sizes = field(default_factory=dict)
    address: str = ""
    host_address: str = ""
    sandbox: bool = False
    """Network and cgroups are there."""
    start_time: str = ""
    rejected: tuple[str, str] | None = None
    """Reason and message of a Pod that the node does not take."""
    resize_pending: Condition | None = None
    resize_in_progress: Condition | None = None
    images: dict[str, str] = field(default_factory=dict)
    """imageID by image."""


def pod_status(pod: Pod, raw_status: dict[str, Any], known: Knowledge) -> dict[str, Any]:
    """The whole status, ready to be compared with `raw_status` and written."""
    phase = "Failed" if known.rejected else _phase(pod, known.runs)
    status = dict(raw_status)
    status |= {
        "phase": phase,
        "observedGeneration": pod.metadata.generation,
        "qosClass": raw_status.get("qosClass") or qos_class(pod.spec),
        "startTime": raw_status.get("startTime") or known.start_time,
    }
    if known.rejected:
        status["reason"], status["message"] = known.rejected
    if known.host_address:
        status |= {"hostIP": known.host_address, "hostIPs": [{"ip": known.host_address}]}
    if known.address:
        status |= {"podIP": known.address, "podIPs": [{"ip": known.address}]}
    if not known.rejected:
        status |= _container_statuses(pod, known)
    status["conditions"] = [_condition(c) for c in _conditions(pod, phase, known)]
    return status


def _phase(pod: Pod, runs: dict[str, ContainerRun]) -> str:
    for container in pod.spec.init_containers:
        run = runs.get(container.name)
        if run is None or run.running:
            return "Pending"
        if run.exit_code:
            return "Failed"
    started = [runs.get(container.name) for container in pod.spec.containers]
    if None in started:
        return "Pending"
    codes = [run.exit_code for run in started if run]
    if None in codes:
        return "Running"
    return "Failed" if any(codes) else "Succeeded"


def _container_statuses(pod: Pod, known: Knowledge) -> dict[str, Any]:
    statuses: dict[str, Any] = {
        "containerStatuses": [_container_status(pod, c, known, init=False) for c in pod.spec.containers]
    }
    if pod.spec.init_containers:
        statuses["initContainerStatuses"] = [
            _container_status(pod, c, known, init=True) for c in pod.spec.init_containers
        ]
    names = [container.name for container in pod.spec.containers]
    if known.allocated:
        allocated = [known.allocated.get(name, ResourceRequirements()) for name in names]
        statuses["allocatedResources"] = codec.builtins(total(map(container_requests, allocated)))
    if known.actual:
        actual = [known.actual.get(name, ResourceRequirements()) for name in names]
        pod_resources = {"requests": total(map(container_requests, actual))}
        limits = total(size.limits for size in actual)
        everywhere = {name for name in limits if all(name in size.limits for size in actual)}
        pod_resources["limits"] = {name: value for name, value in limits.items() if name in everywhere}
        statuses["resources"] = {k: codec.builtins(v) for k, v in pod_resources.items() if v}
    return statuses


def _container_status(pod: Pod, container: Container, known: Knowledge, *, init: bool) -> dict[str, Any]:
    run = known.runs.get(container.name)
    identity = f"hotvirt://{pod.metadata.uid}/{container.name}"
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": known.images.get(container.image, "") if run else "",
        "lastState": {},
        "restartCount": 0,
        "ready": bool(run and (run.exit_code == 0 if init else run.running)),
        "started": bool(run and run.running),
    }
    if run is None:
        waiting = known.waiting.get(container.name)
        if waiting is None:
            waiting = Waiting("PodInitializing" if pod.spec.init_containers else "ContainerCreating")
        status["state"] = {"waiting": _without_empty(reason=waiting.reason, message=waiting.message)}
    elif run.running:
        status |= {"state": {"running": {"startedAt": seconds(run.started_at)}}, "containerID": identity}
    else:
        ended = _without_empty(
            signal=run.signal, reason=run.reason, message=run.message, containerID=identity
        ) | {
            "exitCode": run.exit_code,
            "startedAt": seconds(run.started_at),
            "finishedAt": seconds(run.finished_at),
        }
        status |= {"state": {"terminated": ended}, "containerID": identity}
    if run is None:
        return status
    if allocated := known.allocated.get(container.name):
        status["allocatedResources"] = codec.builtins(container_requests(allocated))
    if actual := known.actual.get(container.name):
        resources = {"requests": container_requests(actual), "limits": actual.limits}
        status["resources"] = {key: codec.builtins(value) for key, value in resources.items() if value}
    return status


def _conditions(pod: Pod, phase: str, known: Knowledge) -> list[Condition]:
    old = list(pod.status.conditions)
    conditions = [condition for condition in old if condition.type not in OURS]
    for condition in (known.resize_pending, known.resize_in_progress):
        if condition:
            conditions.append(_kept_time(old, condition))
    scheduled = find(old, SCHEDULED)
    new = [
        _ready_to_start(known),
        _initialized(pod, phase, known.runs),
        _ready(pod, phase, known.runs, gates=True),
        _ready(pod, phase, known.runs, gates=False),
        scheduled if scheduled and scheduled.status == "True" else Condition(type=SCHEDULED, status="True"),
    ]
    for condition in new:
        observed = Condition(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            observed_generation=pod.metadata.generation or None,
        )
        conditions.append(_kept_time(old, observed))
    return conditions


def _kept_time(old: Iterable[Condition], condition: Condition) -> Condition:
    """With the time at which it last changed."""
    before = find(old, condition.type)
    return set_condition([before] if before else [], condition)[0]


def _ready_to_start(known: Knowledge) -> Condition:
    if known.sandbox or not known.runs:
        return Condition(type=READY_TO_START, status=_truth(known.sandbox))
    message = "pod sandbox is not ready"
    return Condition(type=READY_TO_START, status="False", reason="PodSandboxNotReady", message=message)


def _initialized(pod: Pod, phase: str, runs: dict[str, ContainerRun]) -> Condition:
    if phase == "Succeeded":
        return Condition(type=INITIALIZED, status="True", reason="PodCompleted")
    incomplete = [
        container.name
        for container in pod.spec.init_containers
        if (run := runs.get(container.name)) is None or run.exit_code != 0
    ]
    if incomplete:
        message = f"containers with incomplete status: [{' '.join(incomplete)}]"
        return Condition(type=INITIALIZED, status="False", reason="ContainersNotInitialized", message=message)
    return Condition(type=INITIALIZED, status="True")


def _ready(pod: Pod, phase: str, runs: dict[str, ContainerRun], *, gates: bool) -> Condition:
    type = READY if gates else CONTAINERS_READY
    if phase == "Succeeded":
        return Condition(type=type, status="False", reason="PodCompleted")
    if phase == "Failed":
        return Condition(type=type, status="False", reason="PodFailed")
    unready = [c.name for c in pod.spec.containers if not ((run := runs.get(c.name)) and run.running)]
    if unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return Condition(type=type, status="False", reason="ContainersNotReady", message=message)
    closed = [text for gate in pod.spec.readiness_gates if (text := _closed_gate(pod, gate))] if gates else []
    if closed:
        return Condition(
            type=type, status="False", reason="ReadinessGatesNotReady", message=", ".join(closed)
        )
    return Condition(type=type, status="True")


def _closed_gate(pod: Pod, gate: dict[str, Any]) -> str:
    name = str(gate.get("conditionType", ""))
    condition = find(pod.status.conditions, name)
    if condition is None:
        return f'corresponding condition of pod readiness gate "{name}" does not exist.'
    if condition.status != "True":
        return f'the status of pod readiness gate "{name}" is not "True", but {condition.status}'
    return ""


def _condition(condition: Condition) -> dict[str, Any]:
    data: dict[str, Any] = codec.builtins(condition)
    data.setdefault("lastProbeTime", None)
    return data


def _truth(value: bool) -> str:
    return "True" if value else "False"


def seconds(time: str) -> str:
    """A time without the fraction, as metav1.Time."""
    return time.partition(".")[0].rstrip("Z") + "Z" if time else time


def _without_empty(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def all_but_status(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in raw.get("metadata", {}).items() if k != "resourceVersion"}
    return {**raw, "metadata": {**metadata, "managedFields": None}, "status": None}


def difference_of(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A merge patch of the top-level fields; null removes one. Whether a null is kept is up to the API."""
    before, after = codec.without_nulls(old), codec.without_nulls(new)
    changed = {key: value for key, value in new.items() if before.get(key) != after.get(key)}
    return changed | {key: None for key in old if key not in new}
