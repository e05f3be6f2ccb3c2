"""The Pod's side of a resize, as a pure state machine: what to ask of `pods/resize`, what the answers mean.

Each look at the Pod gives one verdict. Nothing is kept here: what was refused is handed in, with
the state of the world that it was refused in, so that it is not asked for again before something has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from hotvirt.api.conditions import Condition, find
from hotvirt.api.pods import Pod, ResourceRequirements
from hotvirt.api.quantity import Quantity
from hotvirt.plan.resources import own_limits

Quantities = Mapping[str, Quantity]
RESIZABLE: Final = ("cpu", "memory")
PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
INFEASIBLE: Final = "Infeasible"


@dataclass(frozen=True, slots=True)
class Size:
    """Requests and limits of a container, cpu and memory only: nothing else can change in place."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    own_limits: frozenset[str] = field(default=frozenset(), compare=False)
    """Of what a Pod asks for: the limits that only a quota demanded, which go with the machine's size."""

    def patch(self, container: str) -> dict[str, Any]:
        """The strategic merge patch that asks for this size."""
        resources: dict[str, Any] = {}
        for name, values in (("requests", self.requests), ("limits", self.limits)):
            if values:
                resources[name] = {key: str(value) for key, value in values.items()}
        return {"spec": {"containers": [{"name": container, "resources": resources}]}}

    def __str__(self) -> str:
        parts = [f"{key} {value}" for key, value in self.requests.items()]
        parts += [f"{key} limit {value}" for key, value in self.limits.items()]
        return ", ".join(parts) or "nothing"


class Cause(Enum):
    """Who refused, and so: what has to change before it is worth asking again."""

    NODE = "NodeCapacity"
    QUOTA = "ResourceQuota"
    LIMIT_RANGE = "LimitRange"
    QOS = "QOSClass"
    OTHER = "Refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    target: Size
    cause: Cause
    message: str
    world: str = ""
    """What the refusal depends on, as it was then (any text that changes with it)."""


class Step(Enum):
    DONE = "done"
    ASK = "ask"
    WAIT = "wait"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    step: Step
    size: Size | None = None
    """What to write through `pods/resize`: the target (ASK), or the actual size again (REFUSED)."""
    reason: str = ""
    message: str = ""
    refusal: Refusal | None = None


def size_of(resources: ResourceRequirements | Mapping[str, Any] | None) -> Size:
    """The resizable part of a container's resources."""
    if resources is None:
        return Size()
    if isinstance(resources, ResourceRequirements):
        requests, limits = resources.requests, resources.limits
    else:
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return Size(_resizable(requests), _resizable(limits))


def _resizable(values: Mapping[str, Any]) -> dict[str, Quantity]:
    return {
        name: value if isinstance(value, Quantity) else Quantity(value)
        for name in RESIZABLE
        if (value := values.get(name)) is not None
    }


def asked_size(pod: Pod, container: str) -> Size:
    asked = size_of(next((each.resources for each in pod.spec.containers if each.name == container), None))
    return replace(asked, own_limits=own_limits(pod.metadata.annotations))


def actual_size(pod: Pod, container: str) -> Size | None:
    """What the node has put in force; None while it has not said so."""
    status = next((each for each in pod.status.container_statuses if each.name == container), None)
    return None if status is None or status.resources is None else size_of(status.resources)


def is_seen(pod: Pod) -> bool:
    """Whether the node has looked at the size that is asked for now; one that does not tell is believed.

    Until then what it says to be in force may be on its way to another size.
    """
    return (pod.status.observed_generation or pod.metadata.generation) >= pod.metadata.generation


def differing(*sizes: Size | None) -> frozenset[str]:
    """The resources in which these are not all the same; all of them where one is not known."""

    def of(size: Size | None, name: str) -> object:
        return None if size is None else (size.requests.get(name), size.limits.get(name))

    return frozenset(
        name for name in RESIZABLE if None in sizes or len({of(size, name) for size in sizes}) > 1
    )


def grows_only(target: Size, asked: Size) -> bool:
    """Whether nothing is asked for that is less than before."""
    return all(
        target_part.get(name, value) >= value
        for part, target_part in ((asked.requests, target.requests), (asked.limits, target.limits))
        for name, value in part.items()
    )


def target_size(wanted: Size, in_use: Size, asked: Size) -> Size:
    """What to ask for: what is wanted, but never less than what the guest still has, in the shape of the Pod.

    A request or limit can neither appear nor go in place, and the QoS class stays: only what the Pod was made
    with is asked for again.
    """

    def merged(which: str) -> dict[str, Quantity]:
        old: Quantities = getattr(asked, which)
        new: Quantities = getattr(wanted, which)
        used: Quantities = getattr(in_use, which)
        return {
            name: max(new.get(name, current), used.get(name, Quantity(0))) if name in new else current
            for name, current in old.items()
        }

    return Size(merged("requests"), merged("limits"))


def covers(actual: Size | None, needed: Size) -> bool:
    """Whether what is in force is enough for what is needed."""
    if actual is None:
        return False
    return all(actual.requests.get(name, value) >= value for name, value in needed.requests.items()) and all(
        actual.limits.get(name, value) >= value for name, value in needed.limits.items()
    )


def fallback(refusal: Refusal, asked: Size, actual: Size | None) -> Size | None:
    """What to ask for when the target is refused; None when that is asked for already.

    A size that was refused but still stands in the Pod's spec would go on holding quota. What shrinks in the
    same change goes on where only the growth was refused.
    """
    known, target = actual if actual is not None else asked, refusal.target

    def least(has: Quantities, wanted: Quantities) -> dict[str, Quantity]:
        return {name: min(value, wanted.get(name, value)) for name, value in has.items()}

    size = Size(least(known.requests, target.requests), least(known.limits, target.limits))
    if size == target or refusal.cause not in (Cause.NODE, Cause.QUOTA):
        size = known
    return size if size != asked else None


def decide(
    *,
    target: Size,
    asked: Size,
    actual: Size | None,
    conditions: Sequence[Condition],
    worlds: Mapping[Cause, str],
    refusal: Refusal | None = None,
) -> Verdict:
    """The next step towards `target`, from what the Pod says.

    `worlds` has, for each cause of a refusal, the present state of what it depends on.
    """
    known = actual if actual is not None else asked
    if asked != target:
        if (
            refusal is not None
            and refusal.target == target
            and refusal.world == worlds.get(refusal.cause, "")
        ):
            return refused(refusal, fallback(refusal, asked, actual))
        return Verdict(Step.ASK, target, "PodResize", f"The Pod is being asked for {target}.")
    if known == target:
        return Verdict(Step.DONE)
    pending, progress = find(conditions, PENDING), find(conditions, IN_PROGRESS)
    if pending is not None and pending.reason == INFEASIBLE:
        message = _ended(pending.message or "the node cannot hold it")
        refusal = Refusal(target, Cause.NODE, message, worlds.get(Cause.NODE, ""))
        return refused(refusal, fallback(refusal, asked, actual))
    if pending is not None:
        return Verdict(
            Step.WAIT, reason=f"PodResize{pending.reason or 'Pending'}", message=_sentence(pending, target)
        )
    if progress is not None:
        return Verdict(
            Step.WAIT,
            reason=f"PodResize{progress.reason or 'InProgress'}",
            message=_sentence(progress, target),
        )
    return Verdict(
        Step.WAIT, reason="PodResizeInProgress", message=f"The node is bringing the Pod to {target}."
    )


def refused(refusal: Refusal, revert_to: Size | None = None) -> Verdict:
    return Verdict(
        Step.REFUSED,
        revert_to,
        refusal.cause.value,
        f"The Pod cannot have {refusal.target}: {refusal.message} "
        "The guest runs on as it is; this is tried again when there may be room.",
        refusal,
    )


def _sentence(condition: Condition, target: Size) -> str:
    said = f": {condition.message}" if condition.message else "."
    return f"The node has not yet brought the Pod to {target}{said}"


def refused_by_api(
    target: Size, worlds: Mapping[Cause, str], *, code: int, message: str, details: Mapping[str, Any]
) -> Refusal:
    """What a refusal of the API server (403, 422) means."""
    causes = {cause.get("reason") or cause.get("type") for cause in details.get("causes") or ()}
    text = message.lower()
    if "NodeCapacity" in causes or "node didn't have enough" in text:
        cause = Cause.NODE
    elif "exceeded quota" in text or "failed quota" in text:
        cause = Cause.QUOTA
    elif "usage per" in text or "limitrange" in text or "limit range" in text:
        cause = Cause.LIMIT_RANGE
    elif code == 422 and "qos" in text:
        cause = Cause.QOS
    else:
        cause = Cause.OTHER
    return Refusal(target, cause, _ended(message), worlds.get(cause, ""))


def _ended(message: str) -> str:
    return message if message.endswith((".", "!")) else f"{message}."
