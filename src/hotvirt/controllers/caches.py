"""The local copies of the API's objects that all reconcilers share, and the cluster's settings."""

from __future__ import annotations

from collections.abc import Iterable

from hotvirt.api import names
from hotvirt.api.cdi import DataVolume
from hotvirt.api.core import Lease, LimitRange, Node, PersistentVolumeClaim, Pod, ResourceQuota
from hotvirt.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance, VMISpec
from hotvirt.api.resources import (
    DATAVOLUMES,
    KUBEVIRTS,
    LEASES,
    LIMITRANGES,
    NODES,
    PODS,
    PVCS,
    RESOURCEQUOTAS,
    VMIS,
    VMS,
)
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informer, Informers, Key
from hotvirt.plan.config import ClusterConfig, cluster_config

OF_VMI = "vmi"
ON_NODE = "node"
USES_CLAIM = "claim"
SELECTOR = "=".join(names.LABEL_LAUNCHER)


class Caches:
    def __init__(self, client: Client, *, agent_leases: bool = False) -> None:
        self._informers = Informers(client)
        of = self._informers.of
        self.vms: Informer[VirtualMachine] = of(
            VMS,
            VirtualMachine,
            indexes={USES_CLAIM: lambda vm: claims_of(vm.metadata.namespace, vm.spec.template.spec)},
        )
        self.vmis: Informer[VirtualMachineInstance] = of(
            VMIS,
            VirtualMachineInstance,
            indexes={
                USES_CLAIM: lambda vmi: claims_of(vmi.metadata.namespace, vmi.spec),
                ON_NODE: lambda vmi: [vmi.status.node_name] if vmi.status.node_name else (),
            },
        )
        self.pods: Informer[Pod] = of(
            PODS,
            Pod,
            label_selector=SELECTOR,
            indexes={
                OF_VMI: lambda pod: [pod.metadata.labels.get(names.LABEL_CREATED_BY, "")],
                ON_NODE: lambda pod: [pod.spec.node_name] if pod.spec.node_name else (),
            },
        )
        self.nodes: Informer[Node] = of(NODES, Node)
        self.claims: Informer[PersistentVolumeClaim] = of(PVCS, PersistentVolumeClaim)
        # On a cluster they are CDI's: without it there are none, and claims do.
        self.data_volumes: Informer[DataVolume] = of(DATAVOLUMES, DataVolume, optional=True)
        self.quotas: Informer[ResourceQuota] = of(RESOURCEQUOTAS, ResourceQuota)
        self.limit_ranges: Informer[LimitRange] = of(LIMITRANGES, LimitRange)
        self.kubevirts: Informer[KubeVirt] = of(KUBEVIRTS, KubeVirt)
        self.leases: Informer[Lease] | None = (
            of(LEASES, Lease, namespace=names.NAMESPACE) if agent_leases else None
        )
        self._config: ClusterConfig | None = None
        self.kubevirts.add_handler(self._forget_config)

    def _forget_config(self, _old: KubeVirt | None, _new: KubeVirt | None) -> None:
        self._config = None

    @property
    def config(self) -> ClusterConfig:
        """The settings of the KubeVirt object as they are now."""
        if self._config is None:
            self._config = cluster_config(self.kubevirts.get(names.NAMESPACE, names.KUBEVIRT_NAME))
        return self._config

    def pod_of(self, vmi: VirtualMachineInstance) -> Pod | None:
        """That which it owns, before one that only has the label, which anybody who makes Pods can write."""
        pods = self.pods.by_index(OF_VMI, vmi.metadata.uid)
        here = [pod for pod in pods if pod.metadata.namespace == vmi.metadata.namespace]
        return next((pod for pod in here if owns(vmi, pod)), here[0] if here else None)

    def users_of_claim(self, namespace: str, name: str) -> Iterable[Key]:
        """VMIs (and, as they have the same names, VMs) that use this claim or DataVolume."""
        value = f"{namespace}/{name}"
        yield from (vmi.metadata.key for vmi in self.vmis.by_index(USES_CLAIM, value))
        yield from (vm.metadata.key for vm in self.vms.by_index(USES_CLAIM, value))

    async def run(self) -> None:
        await self._informers.run()

    async def synced(self) -> None:
        await self._informers.synced()


def owns(vmi: VirtualMachineInstance, pod: Pod) -> bool:
    owner = pod.metadata.controller_of()
    return owner is not None and owner.uid == vmi.metadata.uid


def claims_of(namespace: str, spec: VMISpec) -> list[str]:
    return [f"{namespace}/{volume.claim_name}" for volume in spec.volumes if volume.claim_name]
