"""How large Pods are: what they request, what they may use, and what is in force.

Counting follows Kubernetes: a Pod requests the larger of the sum of its containers and its largest init
container, plus its overhead. While a resize is under way the larger of asked, allocated and actual counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hotvirt.api import codec
from hotvirt.api.pods import Container, Pod, PodSpec, ResourceRequirements
from hotvirt.api.quantity import Quantity

from .cgroups import Limits

ZERO = Quantity(0)
Amounts = dict[str, Quantity]
Sizes = dict[str, ResourceRequirements]
"""By the name of the container."""


def asked_sizes(pod: Pod) -> Sizes:
    return {c.name: c.resources for c in (*pod.spec.init_containers, *pod.spec.containers)}


def total(amounts: Iterable[Mapping[str, Quantity]]) -> Amounts:
    result: Amounts = {}
    for amount in amounts:
        for name, value in amount.items():
            result[name] = result[name] + value if name in result else value
    return result


def largest(amounts: Iterable[Mapping[str, Quantity]]) -> Amounts:
    result: Amounts = {}
    for amount in amounts:
        for name, value in amount.items():
            result[name] = max(result.get(name, value), value)
    return result


def container_requests(resources: ResourceRequirements) -> Amounts:
    """A limit without a request counts as one."""
    return {**resources.limits, **resources.requests}


def pod_requests(spec: PodSpec, sizes: Sizes | None = None) -> Amounts:
    """What the Pod requests, or would request with other sizes."""

    def of(container: Container) -> Amounts:
        return container_requests((sizes or {}).get(container.name, container.resources))

    running = total(of(container) for container in spec.containers)
    starting = (of(container) for container in spec.init_containers)
    return total([largest([running, *starting]), spec.overhead])


def most_requests(spec: PodSpec, *sizes: Sizes) -> Amounts:
    """What the Pod requests at the most, with any of these sizes."""
    return largest(pod_requests(spec, each) for each in sizes)


def held_requests(pod: Pod) -> Amounts:
    """What the Pod takes from its node: the most of asked for, allocated and in force."""
    asked = pod_requests(pod.spec)
    statuses = pod.status.container_statuses
    if not statuses:
        return asked
    specs = {container.name: container.resources for container in pod.spec.containers}
    allocated = total(s.allocated_resources or specs.get(s.name, _NONE).requests for s in statuses)
    actual = total((s.resources or specs.get(s.name, _NONE)).requests for s in statuses)
    return largest([asked, total([allocated, pod.spec.overhead]), total([actual, pod.spec.overhead])])


_NONE = ResourceRequirements()


class Ledger:
    """What a node's Pods hold, kept as a sum: a thousand Pods are not counted again for each one that
    comes.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Amounts] = {}
        self._sum: Amounts = {}

    def __len__(self) -> int:
        return len(self._entries)

    def book(self, uid: str, amounts: Amounts | None) -> bool:
        """Note what the Pod holds from now on, None when it is gone; true when that made room."""
        old = self._entries.pop(uid, {})
        for name, amount in old.items():
            self._sum[name] -= amount
        for name, amount in (amounts or {}).items():
            self._sum[name] = self._sum.get(name, ZERO) + amount
        if amounts is not None:
            self._entries[uid] = amounts
        return any((amounts or {}).get(name, ZERO) < amount for name, amount in old.items())

    def total(self, without: str = "") -> Amounts:
        own = self._entries.get(without, {})
        return {name: amount - own.get(name, ZERO) for name, amount in self._sum.items()}


def qos_class(spec: PodSpec) -> str:
    containers = (*spec.containers, *spec.init_containers)
    used = [r for c in containers for r in (c.resources.requests, c.resources.limits)]
    if not any(amount for sizes in used for name, amount in sizes.items() if name in ("cpu", "memory")):
        return "BestEffort"
    for container in containers:
        requests, limits = container_requests(container.resources), container.resources.limits
        for name in ("cpu", "memory"):
            if not limits.get(name) or requests.get(name) != limits[name]:
                return "Burstable"
    return "Guaranteed"


def container_limits(resources: ResourceRequirements) -> Limits:
    cpu, memory = resources.limits.get("cpu"), resources.limits.get("memory")
    return Limits(
        cpu_request=container_requests(resources).get("cpu", ZERO).milli,
        cpu_limit=cpu.milli if cpu else None,
        memory_limit=memory.value if memory else None,
    )


def pod_limits(containers: Iterable[ResourceRequirements]) -> Limits:
    """As the kubelet: the Pod has a limit only where every container has one."""
    each = [container_limits(resources) for resources in containers]
    cpu = [limits.cpu_limit for limits in each]
    memory = [limits.memory_limit for limits in each]
    return Limits(
        cpu_request=sum(limits.cpu_request for limits in each),
        cpu_limit=None if None in cpu else sum(value for value in cpu if value is not None),
        memory_limit=None if None in memory else sum(value for value in memory if value is not None),
    )


class SizeFile:
    """What a Pod was given and what is in force, kept beside it: a restarted node must not forget either."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sizes.json"
        self.allocated: Sizes = {}
        self.actual: Sizes = {}
        self.generation = 0
        """Of the spec that was allocated."""
        self._load()

    def _load(self) -> None:
        try:
            saved: dict[str, Any] = msgspec.json.decode(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        for name in ("allocated", "actual"):
            sizes = {key: codec.convert(value, ResourceRequirements) for key, value in saved[name].items()}
            setattr(self, name, sizes)
        self.generation = saved["generation"]

    def save(self) -> None:
        content = {
            "allocated": {name: codec.builtins(size) for name, size in self.allocated.items()},
            "actual": {name: codec.builtins(size) for name, size in self.actual.items()},
            "generation": self.generation,
        }
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(self._path)
