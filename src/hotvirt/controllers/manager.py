"""All controllers over one client: what watches what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from hotvirt.api.cdi import DataVolume
from hotvirt.api.core import LimitRange, Node, PersistentVolumeClaim, Pod, ResourceQuota
from hotvirt.api.kubevirt import KubeVirt, VirtualMachineInstance
from hotvirt.api.meta import Kind
from hotvirt.api.resources import VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Key
from hotvirt.kube.rush import Rush
from hotvirt.plan.platform import EMBEDDED, Platform

from .agents import Agents
from .caches import ON_NODE, Caches
from .kubevirt import KEY, KubeVirtReconciler
from .order import news_of_pod, news_of_vm, news_of_vmi, news_of_vmi_for_vm
from .vm import VmReconciler, mirror_delay
from .vmi import VmiReconciler


class Manager:
    def __init__(
        self, client: Client, recorder: Recorder, *, platform: Platform = EMBEDDED, workers: int = 32
    ) -> None:
        self.caches = Caches(client, agent_leases=platform.agent_leases)
        caches = self.caches
        self._agents = Agents(caches.leases, self._agent_changed) if caches.leases is not None else None
        self._vmi_reconciler = VmiReconciler(client, caches, recorder, platform, self._agents)
        vm_reconciler = VmReconciler(client, caches, recorder)
        rush = Rush()
        recorder.go_behind(rush)

        self.vm = Controller("vm", vm_reconciler.reconcile, workers=workers, rush=rush)
        self.vm.watch(caches.vms, _own_key, urgency=news_of_vm)
        self.vm.watch(caches.vmis, _own_key, mirror_delay, news_of_vmi_for_vm)
        self.vm.watch(caches.data_volumes, self._users)
        self.vm.watch(caches.claims, self._users)
        self.vm.watch(caches.kubevirts, self._all_vms)

        self.vmi = Controller("vmi", self._vmi_reconciler.reconcile, workers=workers, rush=rush)
        self.vmi.watch(caches.vmis, _own_key, urgency=news_of_vmi)
        self.vmi.watch(caches.pods, self._vmis_of_pod, urgency=news_of_pod)
        self.vmi.watch(caches.data_volumes, self._users)
        self.vmi.watch(caches.claims, self._users)
        self.vmi.watch(caches.nodes, self._refused_on_node)
        self.vmi.watch(caches.quotas, self._refused_in_namespace)
        self.vmi.watch(caches.limit_ranges, self._refused_in_namespace)
        self.vmi.watch(caches.kubevirts, lambda _: caches.vmis.keys())

        kubevirt_reconciler = KubeVirtReconciler(client, caches, self._agents)
        self.kubevirt = Controller("kubevirt", kubevirt_reconciler.reconcile, workers=1)
        self.kubevirt.watch(caches.kubevirts, _own_key)
        self.kubevirt.watch(caches.vmis, self._without_agent)
        self.controllers: tuple[Controller, ...] = (self.vm, self.vmi, self.kubevirt)

        if self._agents is not None and caches.leases is not None:
            following = Controller("agents", self._agents.reconcile, workers=1)
            following.watch(caches.leases, _own_key)
            # Only to wait for: before the Leases are known, every agent would seem to be missing.
            self.vmi.watch(caches.leases, lambda _: ())
            self.kubevirt.watch(caches.leases, lambda _: ())
            self.controllers += (following,)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.caches.run(), name="caches")
            for controller in self.controllers:
                tasks.create_task(controller.run(), name=f"controller {controller.name}")

    async def synced(self) -> None:
        await self.caches.synced()

    def _agent_changed(self, node: str) -> None:
        self.kubevirt.queue.add(KEY)
        for vmi in self.caches.vmis.by_index(ON_NODE, node):
            self.vmi.queue.add(vmi.metadata.key)

    def _without_agent(self, vmi: VirtualMachineInstance) -> Iterable[Key]:
        """The KubeVirt object, which says so, when a machine comes to a node without an agent, or leaves."""
        node = vmi.status.node_name
        return [KEY] if node and self._agents is not None and self._agents.problem(node) else ()

    def _users(self, obj: DataVolume | PersistentVolumeClaim) -> Iterable[Key]:
        return self.caches.users_of_claim(*obj.metadata.key)

    def _all_vms(self, _kubevirt: KubeVirt) -> Iterable[Key]:
        return self.caches.vms.keys()

    def _vmis_of_pod(self, pod: Pod) -> Iterable[Key]:
        """The Pod's VMI, and those on the same node that wait for room."""
        owner = pod.metadata.controller_of()
        if owner is not None and owner.kind == VMIS.kind:
            yield pod.metadata.namespace, owner.name
        yield from self._vmi_reconciler.resizer.waiting_for_node(pod.spec.node_name)

    def _refused_on_node(self, node: Node) -> Iterable[Key]:
        return self._vmi_reconciler.resizer.waiting_for_node(node.metadata.name)

    def _refused_in_namespace(self, obj: ResourceQuota | LimitRange) -> Iterable[Key]:
        return self._vmi_reconciler.resizer.waiting_in(obj.metadata.namespace)


def _own_key(obj: Kind | VirtualMachineInstance | Any) -> Iterable[Key]:
    return [obj.metadata.key]
