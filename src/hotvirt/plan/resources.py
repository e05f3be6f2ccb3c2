"""The resources of the launcher Pod's container `compute`.

Memory: the guest's plus the overhead; CPU: a share of the vCPUs. What the user sets in
`domain.resources` goes first. Limits only where the user sets them. The shape (which of the four there
are) is that of the quality of service that the Pod keeps for life, so it never depends on the size.
"""

from __future__ import annotations

from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import guest_memory, overhead
from hotvirt.plan.topology import topology

Resources = dict[str, dict[str, Quantity]]
_NOTHING = Quantity(0)


def pod_resources(spec: VMISpec, config: ClusterConfig) -> Resources:
    """Requests and limits of the container `compute`."""
    given = spec.domain.resources
    requests: dict[str, Quantity] = dict(given.requests) if given else {}
    limits: dict[str, Quantity] = dict(given.limits) if given else {}
    requests["cpu"] = requests.get("cpu") or _cpu_request(spec, config, limits.get("cpu"))
    _add_memory(spec, config, requests, limits)
    return {
        "requests": {name: amount for name, amount in requests.items() if amount},
        "limits": {name: amount for name, amount in limits.items() if amount},
    }


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
