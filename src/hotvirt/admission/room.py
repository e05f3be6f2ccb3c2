"""What is free around a running machine: on its node, and in the quotas of its namespace.

Kept from watches, so that an edit costs no further request; read with Hotvirt's own identity, so that a user
who may not read Nodes is told too. What has not been read yet is left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import field

from hotvirt.api import names
from hotvirt.api.core import Node, ResourceQuota
from hotvirt.api.meta import Kind, Struct
from hotvirt.api.pods import Quantities, ResourceRequirements
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import NODES, PODS, RESOURCEQUOTAS
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informer, Informers
from hotvirt.plan.headroom import NodeRoom, QuotaRoom, Surroundings
from hotvirt.plan.resources import Resources, own_limits

OF_VMI: Final = "vmi"
ENDED: Final = frozenset({"Succeeded", "Failed"})
# Quotas with one of these scopes count every launcher Pod; those with others, none.
COUNTING_SCOPES: Final = frozenset({"NotTerminating", "NotBestEffort"})


class _Container(Struct, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class _PodSpec(Struct, frozen=True):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: Quantities = field(default_factory=dict)


class _ContainerStatus(Struct, frozen=True):
    name: str = ""
    allocated_resources: Quantities = field(default_factory=dict)


class _PodStatus(Struct, frozen=True):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] = ()


class PodView(Kind, frozen=True):
    """The part of a Pod that says how much it holds; much quicker to read than all of it."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class Room:
    """Where there is room. Answers at once, from what the watches have brought."""

    def __init__(self, client: Client) -> None:
        self._informers = Informers(client)
        of = self._informers.of
        self._nodes: Informer[Node] = of(NODES, Node)
        self._quotas: Informer[ResourceQuota] = of(RESOURCEQUOTAS, ResourceQuota)
        self._pods: Informer[PodView] = of(
            PODS, PodView, indexes={OF_VMI: lambda pod: [pod.metadata.labels.get(names.LABEL_CREATED_BY, "")]}
        )
        self._held: dict[str, Counter[str]] = {}
        self._pods.add_handler(self._count)

    async def run(self) -> None:
        await self._informers.run()

    async def synced(self) -> None:
        await self._informers.synced()

    def around(self, vmi: dict[str, Any]) -> Surroundings:
        """What surrounds this running machine."""
        metadata, status = vmi.get("metadata") or {}, vmi.get("status") or {}
        namespace = str(metadata.get("namespace") or "")
        pod = self._pod(namespace, str(metadata.get("uid") or ""))
        return Surroundings(
            node=self._node(str(status.get("nodeName") or ""), pod),
            quotas=self._left_in(namespace),
            pod=None if pod is None else _compute(pod),
            own_limits=frozenset() if pod is None else own_limits(pod.metadata.annotations),
        )

    def _node(self, name: str, own: PodView | None) -> NodeRoom | None:
        """What is free beside what the machine's own Pod asks for, had or not."""
        node = self._nodes.get(None, name) if name else None
        if node is None or not self._pods.has_synced:
            return None
        held = Counter(self._held.get(name, {}))
        if own is not None and own.spec.node_name == name:
            held.subtract(held_by(own))
            held.update(asked_by(own))
        offers, free = node.status.allocatable, {}
        if "cpu" in offers:
            free["cpu"] = Quantity.millis(offers["cpu"].milli - held["cpu"])
        if "memory" in offers:
            free["memory"] = Quantity.bytes(offers["memory"].value - held["memory"])
        return NodeRoom(name, offers, free)

    def _left_in(self, namespace: str) -> tuple[QuotaRoom, ...]:
        rooms = []
        for quota in self._quotas.list(namespace) if namespace else ():
            if quota.spec.scope_selector or not COUNTING_SCOPES.issuperset(quota.spec.scopes):
                continue
            used = quota.status.used
            left = {name: hard - used[name] for name, hard in quota.status.hard.items() if name in used}
            rooms.append(QuotaRoom(quota.metadata.name, left))
        return tuple(sorted(rooms, key=lambda room: room.name))

    def _pod(self, namespace: str, vmi_uid: str) -> PodView | None:
        pods = self._pods.by_index(OF_VMI, vmi_uid) if vmi_uid else []
        own = (pod for pod in pods if pod.metadata.namespace == namespace)
        return next((pod for pod in own if pod.status.phase not in ENDED), None)

    def _count(self, old: PodView | None, new: PodView | None) -> None:
        for pod, sign in ((old, -1), (new, 1)):
            if pod is not None and pod.spec.node_name:
                held = self._held.setdefault(pod.spec.node_name, Counter())
                for name, amount in held_by(pod).items():
                    held[name] += sign * amount


def _compute(pod: PodView) -> Resources | None:
    for container in pod.spec.containers:
        if container.name == names.CONTAINER_COMPUTE:
            given = container.resources
            return {"requests": dict(given.requests), "limits": dict(given.limits)}
    return None


def held_by(pod: PodView) -> dict[str, int]:
    """Milli-CPUs and bytes that a Pod holds on its node: what the kubelet gave it, else what it asks for.

    A size that waits for room holds none.
    """
    given = {status.name: status.allocated_resources for status in pod.status.container_statuses}
    return _amounts(pod, given)


def asked_by(pod: PodView) -> dict[str, int]:
    """The same, as if it had what it asks for."""
    return _amounts(pod, {})


def _amounts(pod: PodView, given: dict[str, Quantities]) -> dict[str, int]:
    if pod.status.phase in ENDED:
        return {}
    held = {}
    for name in ("cpu", "memory"):
        steady, start = _number(name, pod.spec.overhead), 0
        for container in pod.spec.containers:
            steady += _number(name, given.get(container.name) or container.resources.requests)
        for container in pod.spec.init_containers:
            asked = _number(name, container.resources.requests)
            if container.restart_policy == "Always":
                steady += asked
            else:
                start = max(start, asked)
        held[name] = max(steady, start)
    return held


def _number(name: str, amounts: Quantities) -> int:
    amount = amounts.get(name)
    if amount is None:
        return 0
    return amount.milli if name == "cpu" else amount.value
