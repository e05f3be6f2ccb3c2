"""Resizing a Pod in place, with the answers of the kubelet (1.34 and newer).

    asked for (spec) -> allocated -> in force (cgroup)

A size that the node can never hold is Infeasible, and looked at again only when it changes. One that does
not fit now is Deferred, and tried again when room appears. A memory limit below what is in use is refused,
and tried again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hotvirt.api import codec
from hotvirt.api.conditions import Condition
from hotvirt.api.pods import Pod, PodSpec

from .cgroups import Limits
from .runtime import PodRuntime
from .sizes import ZERO, Amounts, Sizes, container_limits, pod_limits, pod_requests
from .status import RESIZE_IN_PROGRESS, RESIZE_PENDING

DEFERRED = "Deferred"
INFEASIBLE = "Infeasible"
COUNTED = ("cpu", "memory")


@dataclass(frozen=True)
class Refusal:
    reason: str
    message: str
    resource: str = ""


def _figure(name: str, amounts: Amounts) -> int:
    """CPUs in thousandths and everything else in units, as the kubelet writes them in messages."""
    amount = amounts.get(name, ZERO)
    return amount.milli if name == "cpu" else amount.value


def why_not_now(wanted: Amounts, used: Amounts, allocatable: Amounts) -> Refusal | None:
    """Why a Pod of this size cannot be on this node beside what the others use."""
    for name in COUNTED:
        requested, taken, capacity = (_figure(name, amounts) for amounts in (wanted, used, allocatable))
        if requested and requested > capacity - taken:
            figures = f"{name}, requested: {requested}, used: {taken}, capacity: {capacity}"
            return Refusal(DEFERRED, f"Node didn't have enough resource: {figures}", name)
    return None


def why_not_ever(wanted: Amounts, allocatable: Amounts) -> Refusal | None:
    for name in reversed(COUNTED):
        requested, capacity = _figure(name, wanted), _figure(name, allocatable)
        if requested > capacity:
            figures = f"{name}, requested: {requested}, capacity: {capacity}"
            return Refusal(INFEASIBLE, f"Node didn't have enough capacity: {figures}", name)
    return None


def why_not_resize(
    spec: PodSpec, asked: Sizes, allocated: Sizes, used: Amounts, allocatable: Amounts
) -> Refusal | None:
    wanted, had = pod_requests(spec, asked), pod_requests(spec, allocated)
    never = why_not_ever(wanted, allocatable)
    if never:
        return never
    grows = {name: amount for name, amount in wanted.items() if amount > had.get(name, ZERO)}
    if not grows:
        return None  # less is always possible, also on a node that is overfull
    return why_not_now(grows, used, allocatable)


def pending(refusal: Refusal, generation: int) -> Condition:
    return Condition(
        type=RESIZE_PENDING,
        status="True",
        reason=refusal.reason,
        message=refusal.message,
        observed_generation=generation,
    )


def in_progress(generation: int, error: str = "") -> Condition:
    return Condition(
        type=RESIZE_IN_PROGRESS,
        status="True",
        reason="Error" if error else "",
        message=error,
        observed_generation=generation,
    )


def event_message(what: str, pod: Pod, sizes: Sizes, generation: int, error: str = "") -> str:
    """The kubelet's events on resizes carry the sizes as JSON."""
    content: dict[str, Any] = {
        "containers": [
            {"name": container.name, "resources": dict(sorted(codec.builtins(sizes[container.name]).items()))}
            for container in pod.spec.containers
            if container.name in sizes
        ],
        "generation": generation,
    }
    if error:
        content["error"] = error
    return f"Pod resize {what}: {json.dumps(content, separators=(',', ':'))}"


def limits_of(pod: Pod, sizes: Sizes) -> tuple[Limits, dict[str, Limits]]:
    """For the cgroup of the Pod and those of its containers."""
    main = [sizes[container.name] for container in pod.spec.containers if container.name in sizes]
    return pod_limits(main), {name: container_limits(size) for name, size in sizes.items()}


def memory_in_the_way(runtime: PodRuntime, pod: Pod, before: Sizes, after: Sizes) -> str:
    """Empty, or why the memory limits cannot go down now."""
    (old_pod, old), (new_pod, new) = limits_of(pod, before), limits_of(pod, after)
    problems = []
    pairs: list[tuple[str | None, Limits, Limits]] = [(None, old_pod, new_pod)]
    pairs += [(name, old[name], limits) for name, limits in new.items() if name in old]
    for name, was, will_be in pairs:
        if will_be.memory_limit is None or (was.memory_limit or 1 << 62) <= will_be.memory_limit:
            continue
        usage = runtime.memory_usage(name)
        if usage is not None and usage >= will_be.memory_limit:
            what = f'container "{name}"' if name else "pod"
            limit = will_be.memory_limit
            problems.append(f"attempting to set {what} memory limit ({limit}) below current usage ({usage})")
    if not problems:
        return ""
    listed = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return f"cannot decrease memory limits: {listed}"
