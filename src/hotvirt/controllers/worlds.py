"""What a refused size depends on, as texts that change when it does: asked again only then."""

from __future__ import annotations

from collections.abc import Iterable

from hotvirt.api.core import Node, Pod, ResourceQuota
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.plan.podresize import Cause, Quantities
from hotvirt.plan.runstrategy import FINAL_PHASES

from .caches import ON_NODE, Caches


def worlds(caches: Caches, vmi: VirtualMachineInstance, pod: Pod) -> dict[Cause, str]:
    """For each kind of refusal, what it depends on, as it is now."""
    namespace = vmi.metadata.namespace
    others = [
        each
        for each in caches.pods.by_index(ON_NODE, pod.spec.node_name)
        if each.metadata.uid != pod.metadata.uid
    ]
    return {
        Cause.NODE: _room(caches.nodes.get(None, pod.spec.node_name), others),
        Cause.QUOTA: _quotas(caches.quotas.list(namespace)),
        Cause.LIMIT_RANGE: ",".join(
            sorted(
                f"{each.metadata.name}:{each.metadata.resource_version}"
                for each in caches.limit_ranges.list(namespace)
            )
        ),
    }


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
            f"{quota.metadata.name}:{_amounts(quota.spec.hard)}:{_amounts(quota.status.used)}"
            for quota in quotas
        )
    )


def _amounts(amounts: Quantities) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))
