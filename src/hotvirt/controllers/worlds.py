"""What a refused size depends on, as texts that change when it does: asked again only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from hotvirt.api.core import LimitRange, Node, Pod, ResourceQuota
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.plan.podresize import Cause, Quantities
from hotvirt.plan.runstrategy import FINAL_PHASES

from .caches import ON_NODE, Caches


class Worlds(Mapping[Cause, str]):
    """For each kind of refusal, what it depends on, as it is now: worked out when it is asked for."""

    def __init__(self, caches: Caches, vmi: VirtualMachineInstance, pod: Pod, era: str) -> None:
        """`era` changes when what nothing tells of is worth another try."""
        namespace = vmi.metadata.namespace
        self._ways: dict[Cause, Callable[[], str]] = {
            Cause.NODE: lambda: _node(caches, pod),
            Cause.QUOTA: lambda: _quotas(caches.quotas.list(namespace)),
            Cause.LIMIT_RANGE: lambda: _versions(caches.limit_ranges.list(namespace)),
            Cause.OTHER: lambda: era,
        }

    def __getitem__(self, cause: Cause) -> str:
        return self._ways[cause]()

    def __iter__(self) -> Iterator[Cause]:
        return iter(self._ways)

    def __len__(self) -> int:
        return len(self._ways)


def _node(caches: Caches, pod: Pod) -> str:
    name = pod.spec.node_name
    others = [each for each in caches.pods.by_index(ON_NODE, name) if each.metadata.uid != pod.metadata.uid]
    return _room(caches.nodes.get(None, name), others)


def _versions(ranges: Iterable[LimitRange]) -> str:
    return ",".join(sorted(f"{each.metadata.name}:{each.metadata.resource_version}" for each in ranges))


def _room(node: Node | None, others: Iterable[Pod]) -> str:
    if node is None:
        return ""
    cpu, memory = 0, 0
    for pod in others:
        if pod.status.phase in FINAL_PHASES:
            continue
        for container in pod.spec.containers:
            requests = container.resources.requests
            cpu += requests["cpu"].milli if "cpu" in requests else 0
            memory += requests["memory"].value if "memory" in requests else 0
    has = node.status.allocatable
    return f"{has.get('cpu')}/{has.get('memory')} less {cpu}m/{memory}"


def _quotas(quotas: Iterable[ResourceQuota]) -> str:
    return ";".join(
        sorted(
            # The API server counts by the status, which follows the spec a moment later.
            f"{quota.metadata.name}:{_amounts(quota.spec.hard)}"
            f":{_amounts(quota.status.hard)}:{_amounts(quota.status.used)}"
            for quota in quotas
        )
    )


def _amounts(amounts: Quantities) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))
