"""The resources of the launcher Pod's container `compute`.

Memory: the guest's plus the overhead; CPU: a share of the vCPUs. What the user sets in
`domain.resources` goes first. Limits only where the user sets them or a quota demands them. The shape (which
of the four there are) is that of the quality of service that the Pod keeps for life, so it never depends on
the size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from hotvirt.api import names
from hotvirt.api.core import ResourceQuota
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import guest_memory, overhead
from hotvirt.plan.topology import topology

Resources = dict[str, dict[str, Quantity]]
QosClass = Literal["Guaranteed", "Burstable"]
LIMIT_PER_REQUEST: Final = 2
"""A memory limit that only a quota demands leaves the machine this much room, as KubeVirt's does."""
_NOTHING: Final = Quantity(0)


def pod_resources(spec: VMISpec, config: ClusterConfig, limited: Collection[str] = ()) -> Resources:
    """Requests and limits of the container `compute`.

    `limited` names what must have a limit although the user sets none: when a Pod is made, what the quotas
    of its namespace count limits of; later, what it was made with for their sake (`own_limits`).
    """
    given = spec.domain.resources
    requests: dict[str, Quantity] = dict(given.requests) if given else {}
    limits: dict[str, Quantity] = dict(given.limits) if given else {}
    requests["cpu"] = requests.get("cpu") or _cpu_request(spec, config, limits.get("cpu"))
    if "cpu" in limited and not limits.get("cpu"):
        limits["cpu"] = max(Quantity(topology(spec.domain).vcpus), requests["cpu"])
    _add_memory(spec, config, requests, limits)
    if "memory" in limited and not limits.get("memory"):
        least = guest_memory(spec) + overhead(spec, config)
        limits["memory"] = max(requests["memory"] * LIMIT_PER_REQUEST, least)
    return {
        "requests": {name: amount for name, amount in requests.items() if amount},
        "limits": {name: amount for name, amount in limits.items() if amount},
    }


def own_limits(annotations: Mapping[str, str]) -> frozenset[str]:
    """The limits of a Pod that Hotvirt set when it made the Pod, because a quota demanded them."""
    return frozenset(filter(None, annotations.get(names.ANNOTATION_LIMITED, "").split(",")))


def with_limits_of_others(
    needs: Resources, has: Mapping[str, Quantity], spec: VMISpec, config: ClusterConfig
) -> Resources:
    """With the limits that the Pod has and nobody here set: they are the default of a LimitRange.

    They stay as they are, unless the machine outgrows them.
    """
    memory = spec.domain.memory
    least = dict(needs["requests"])
    if not (memory and memory.hugepages):
        least["memory"] = max(least["memory"], guest_memory(spec) + overhead(spec, config))
    others = {
        name: max(limit, least.get(name, limit)) for name, limit in has.items() if name not in needs["limits"]
    }
    return {"requests": needs["requests"], "limits": needs["limits"] | others}


def demanded_limits(quotas: Iterable[ResourceQuota]) -> frozenset[str]:
    """What a Pod must have a limit of: a quota that counts limits lets no Pod in that has none."""
    counted = {name for quota in quotas for name in quota.spec.hard}
    return frozenset(name for name in ("cpu", "memory") if f"limits.{name}" in counted)


def qos_class(resources: Resources) -> QosClass:
    """The Pod's quality of service: its other container follows this one. There always are requests."""
    requests, limits = resources["requests"], resources["limits"]
    same = all(name in limits and requests.get(name) == limits[name] for name in ("cpu", "memory"))
    return "Guaranteed" if same else "Burstable"


def limit_is_raised(spec: VMISpec) -> bool:
    """Whether the user's memory limit is less than the guest has, so that the Pod gets a higher one."""
    given = spec.domain.resources
    limit = given.limits.get("memory") if given else None
    return bool(limit and limit < guest_memory(spec))


def _cpu_request(spec: VMISpec, config: ClusterConfig, limit: Quantity | None) -> Quantity:
    if config.cpu_request:
        request = config.cpu_request
    else:
        request = Quantity.millis(max(1, topology(spec.domain).vcpus * 1000 // config.cpu_allocation_ratio))
    return min(request, limit) if limit else request


def _add_memory(
    spec: VMISpec, config: ClusterConfig, requests: dict[str, Quantity], limits: dict[str, Quantity]
) -> None:
    given, memory = spec.domain.resources, spec.domain.memory
    guest, extra = guest_memory(spec), overhead(spec, config)
    limit = limits.get("memory")
    request = requests.get("memory") or limit or _overcommitted(guest, config)
    if limit and limit_is_raised(spec):
        # A guest that outgrew its limit would be killed. What was asked to be equal stays equal.
        request, limit = (guest if request == limit else request), guest
    if memory and memory.hugepages:
        pages = f"hugepages-{memory.hugepages.page_size}"
        requests[pages] = limits[pages] = guest
        request = max(request - guest, _NOTHING)
        limit = max(limit - guest, _NOTHING) if limit else None
    leaves_overhead_out = bool(given and given.overcommit_guest_overhead)
    requests["memory"] = request if leaves_overhead_out else (request + extra).in_family_of(extra)
    if limit is not None:
        limits["memory"] = (limit + extra).in_family_of(extra)


def _overcommitted(guest: Quantity, config: ClusterConfig) -> Quantity:
    return Quantity.from_nano(guest.nano * 100 // config.memory_overcommit, guest.family)
