"""Brings a running VMI's Pod to the size that its spec asks for, and says in its conditions how far that is.

The order of a growth: this asks the Pod for more (`pods/resize`), the node gives it, the node agent plugs the
vCPUs and writes what the guest has, this ends the change. `plan.podresize` decides what to do next; here are
the writes, the events, and the memory of what was refused. Lost, that means one more try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from hotvirt.api import names
from hotvirt.api.conditions import TRUE, Condition, find, remove, set_condition
from hotvirt.api.core import Node, Pod, ResourceQuota
from hotvirt.api.kubevirt import CPU, CPUTopology, SizeChange, VirtualMachineInstance, VMISpec, VMIStatus
from hotvirt.api.meta import now_micro, parse_time
from hotvirt.api.resources import PODS, VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import Forbidden, Invalid
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Key
from hotvirt.plan import podresize
from hotvirt.plan.podresize import Cause, Refusal, Size, Step, Verdict
from hotvirt.plan.resources import pod_resources
from hotvirt.plan.runstrategy import RUNNING
from hotvirt.plan.topology import Topology, topology

from .caches import ON_NODE, Caches
from .writes import write_status

HOT_VCPU_CHANGE: Final = "HotVCPUChange"
QUIET: Final = 1.0
"""Seconds before a stage that goes well is written into the condition: most changes are over sooner."""


@dataclass(frozen=True, slots=True)
class _Refused:
    key: Key
    node: str
    refusal: Refusal


class PodResizer:
    def __init__(
        self, client: Client, caches: Caches, recorder: Recorder, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._clock = clock
        self._refused: dict[str, _Refused] = {}

    def forget(self, key: Key) -> None:
        """The VMI is gone."""
        self._refused = {uid: entry for uid, entry in self._refused.items() if entry.key != key}

    def waiting_for_node(self, name: str) -> Iterable[Key]:
        """VMIs on that node whose size was refused: something there changed."""
        return [entry.key for entry in self._refused.values() if entry.node == name]

    def waiting_in(self, namespace: str) -> Iterable[Key]:
        return [entry.key for entry in self._refused.values() if entry.key[0] == namespace]

    async def sync(
        self, vmi: VirtualMachineInstance, pod: Pod
    ) -> tuple[VirtualMachineInstance, float | None]:
        """One step. The VMI as it is then, and when to look again (None: when something changes)."""
        current = vmi.status.current_cpu_topology
        if vmi.status.phase != RUNNING or current is None or vmi.metadata.deleting:
            return vmi, None
        wanted = topology(vmi.spec.domain)
        under_way = find(vmi.status.conditions, HOT_VCPU_CHANGE) is not None
        if not under_way:
            if wanted.vcpus == _vcpus(current):
                return vmi, None
            vmi = await self._begin(vmi, current, wanted)
        verdict = await self._step(vmi, pod, current)
        if verdict.step is Step.DONE:
            self._refused.pop(vmi.metadata.uid, None)
            if wanted.vcpus == _vcpus(current):
                return await self._end(vmi, wanted), None
        return await self._report(vmi, verdict, current, wanted)

    async def _begin(
        self, vmi: VirtualMachineInstance, current: CPUTopology, wanted: Topology
    ) -> VirtualMachineInstance:
        what = f"sockets {current.sockets} → {wanted.sockets}"
        condition = Condition(
            type=HOT_VCPU_CHANGE,
            status=TRUE,
            reason="PodResize",
            message=f"{what}: the Pod is resized first.",
        )
        change = SizeChange(sockets=current.sockets, started_at=now_micro())
        vmi = await self._write(vmi, condition, change)
        self._recorder.event(
            vmi, "Normal", "ResizeStarted", f"{what} ({_vcpus(current)} → {wanted.vcpus} vCPUs)"
        )
        return vmi

    async def _step(self, vmi: VirtualMachineInstance, pod: Pod, current: CPUTopology) -> Verdict:
        asked = podresize.asked_size(pod, names.CONTAINER_COMPUTE)
        config = self._caches.config
        target = podresize.target_size(
            podresize.size_of(pod_resources(vmi.spec, config)),
            podresize.size_of(pod_resources(_with_sockets(vmi.spec, current.sockets), config)),
            asked,
        )
        worlds = self._worlds(vmi, pod)
        known = self._refused.get(vmi.metadata.uid)
        verdict = podresize.decide(
            target=target,
            asked=asked,
            actual=podresize.actual_size(pod, names.CONTAINER_COMPUTE),
            conditions=pod.status.conditions,
            worlds=worlds,
            refusal=known.refusal if known else None,
        )
        if verdict.step is Step.ASK:
            try:
                await self._resize(pod, target)
            except (Forbidden, Invalid) as error:
                refusal = podresize.refused_by_api(
                    target, worlds, code=error.code, message=error.message, details=error.details
                )
                verdict = podresize.refused(refusal)
        elif verdict.step is Step.REFUSED and verdict.size is not None:
            await self._resize(pod, verdict.size)
        if verdict.refusal is not None and (known is None or known.refusal != verdict.refusal):
            self._refused[vmi.metadata.uid] = _Refused(vmi.metadata.key, pod.spec.node_name, verdict.refusal)
            self._recorder.event(vmi, "Warning", "ResizeRefused", verdict.message)
        return verdict

    async def _resize(self, pod: Pod, size: Size) -> None:
        patch = size.patch(names.CONTAINER_COMPUTE)
        patch["metadata"] = {"resourceVersion": pod.metadata.resource_version}
        await self._client.patch(
            PODS, pod.metadata.name, patch, pod.metadata.namespace, kind="strategic", subresource="resize"
        )

    async def _report(
        self, vmi: VirtualMachineInstance, verdict: Verdict, current: CPUTopology, wanted: Topology
    ) -> tuple[VirtualMachineInstance, float | None]:
        reason, message = verdict.reason, verdict.message
        if verdict.step is Step.DONE:
            reason, message = (
                "GuestPending",
                "The Pod has its new size; the guest has not taken the vCPUs yet.",
            )
        goes_well = verdict.step in (Step.ASK, Step.DONE) or reason == "PodResizeInProgress"
        change = vmi.status.hotvirt.change
        if goes_well and change is not None and change.started_at:
            left = parse_time(change.started_at) + QUIET - self._clock()
            if left > 0:
                return vmi, left
        condition = Condition(
            type=HOT_VCPU_CHANGE,
            status=TRUE,
            reason=reason,
            message=f"sockets {current.sockets} → {wanted.sockets}: {message}",
        )
        return await self._write(vmi, condition, change), None

    async def _end(self, vmi: VirtualMachineInstance, now: Topology) -> VirtualMachineInstance:
        change = vmi.status.hotvirt.change
        vmi = await self._write(vmi, None, None)
        if change is None or not change.started_at:
            return vmi
        took = round((self._clock() - parse_time(change.started_at)) * 1000)
        if change.sockets == now.sockets:
            self._recorder.event(
                vmi, "Normal", "ResizeReverted", f"sockets stay {now.sockets}: taken back after {took} ms"
            )
        else:
            self._recorder.event(
                vmi, "Normal", "ResizeCompleted", f"sockets {change.sockets} → {now.sockets} in {took} ms"
            )
        return vmi

    async def _write(
        self, vmi: VirtualMachineInstance, condition: Condition | None, change: SizeChange | None
    ) -> VirtualMachineInstance:
        old = vmi.status
        conditions = (
            remove(old.conditions, HOT_VCPU_CHANGE)
            if condition is None
            else set_condition(
                old.conditions,
                msgspec.structs.replace(condition, observed_generation=vmi.metadata.generation),
            )
        )
        new: VMIStatus = msgspec.structs.replace(
            old, conditions=tuple(conditions), hotvirt=msgspec.structs.replace(old.hotvirt, change=change)
        )
        return await write_status(self._client, VMIS, vmi, old, new)

    def _worlds(self, vmi: VirtualMachineInstance, pod: Pod) -> dict[Cause, str]:
        """What each kind of refusal depends on, as it is now."""
        namespace = vmi.metadata.namespace
        node = self._caches.nodes.get(None, pod.spec.node_name)
        others = [
            each
            for each in self._caches.pods.by_index(ON_NODE, pod.spec.node_name)
            if each.metadata.uid != pod.metadata.uid
        ]
        return {
            Cause.NODE: _room(node, others),
            Cause.QUOTA: _quotas(self._caches.quotas.list(namespace)),
            Cause.LIMIT_RANGE: ",".join(
                sorted(
                    f"{each.metadata.name}:{each.metadata.resource_version}"
                    for each in self._caches.limit_ranges.list(namespace)
                )
            ),
        }


def _room(node: Node | None, others: Iterable[Pod]) -> str:
    if node is None:
        return ""
    cpu, memory = 0, 0
    for pod in others:
        if pod.status.phase in ("Succeeded", "Failed"):
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


def _amounts(amounts: podresize.Quantities) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))


def _vcpus(current: CPUTopology) -> int:
    return max(1, current.sockets) * max(1, current.cores) * max(1, current.threads)


def _with_sockets(spec: VMISpec, sockets: int) -> VMISpec:
    """The spec as it would be with what the guest has now."""
    cpu = msgspec.structs.replace(spec.domain.cpu or CPU(), sockets=sockets)
    return msgspec.structs.replace(spec, domain=msgspec.structs.replace(spec.domain, cpu=cpu))
