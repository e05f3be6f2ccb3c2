"""The node agent: brings each machine of its node to what its VMI asks for, and says in the VMI's status
what is true.

It holds nothing that a machine needs: stopped or killed, the machines go on, and started again it finds
them in their run folders. It acts on events: of the API (VMIs, Pods), of the run folders, of the
hypervisors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from hotvirt.api import names
from hotvirt.api.kubevirt import KubeVirt, VirtualMachineInstance
from hotvirt.api.pods import Pod
from hotvirt.api.resources import KUBEVIRTS, PODS, VMIS
from hotvirt.hypervisor.driver import Driver, DriverError, MachineGone
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer, Key
from hotvirt.node.guest import STARTING_POLL, Guest
from hotvirt.node.handover import HandoverError
from hotvirt.node.inotify import FolderWatch
from hotvirt.node.network import NetworkError
from hotvirt.node.peers import Membership, StrangerError, in_pod_cgroup
from hotvirt.node.turn import Turns
from hotvirt.plan.config import ClusterConfig, cluster_config
from hotvirt.plan.instance import compute_status
from hotvirt.plan.machine import MachineError, machine_for
from hotvirt.plan.pod import machine_in
from hotvirt.plan.runstrategy import FINAL_PHASES

log = logging.getLogger(__name__)

# The longest that one machine may keep a worker, and more workers than a node has Pods: one that answers
# slowly, or never, holds up nobody else.
LONGEST_TURN = 120.0
WORKERS = 256
CREATED_BY = "created-by"


class NodeAgent:
    def __init__(
        self,
        client: Client,
        node_name: str,
        node_root: Path,
        drivers: Mapping[str, Driver],
        recorder: Recorder,
        *,
        belongs: Membership = in_pod_cgroup,
    ) -> None:
        """`belongs` tells which processes are a Pod's own."""
        self._client = client
        self._belongs = belongs
        self._root = node_root
        self._driver = next(iter(drivers.values()))
        self._recorder = recorder
        self._guests: dict[Key, Guest] = {}
        self._watch: FolderWatch | None = None
        self._vmis = Informer(
            client, VMIS, VirtualMachineInstance, label_selector=f"{names.LABEL_NODE_NAME}={node_name}"
        )
        self._turns = Turns(client, self._vmis, recorder)
        self._pods = Informer(
            client,
            PODS,
            Pod,
            field_selector=f"spec.nodeName={node_name}",
            label_selector=f"{names.LABEL_LAUNCHER[0]}={names.LABEL_LAUNCHER[1]}",
            indexes={CREATED_BY: _creator},
        )
        self._settings = Informer(client, KUBEVIRTS, KubeVirt, namespace=names.NAMESPACE)
        self._controller = Controller("node-agent", self._reconcile, workers=WORKERS)
        self._controller.watch(self._vmis, lambda vmi: [vmi.metadata.key])
        self._controller.watch(self._pods, _owner_key)
        self._controller.watch(self._settings, lambda _: self._vmis.keys())

    async def run(self) -> None:
        self._watch = FolderWatch()
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in (self._vmis, self._pods, self._settings):
                    tasks.create_task(informer.run())
                await self._settings.synced()
                tasks.create_task(self._controller.run())
        finally:
            for key in list(self._guests):
                self._release(key)
            self._watch.close()

    async def open_console(
        self, namespace: str, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The serial console. LookupError: no such machine here; ConnectionError: it has no console now."""
        guest = self._guests.get((namespace, name))
        if guest is None:
            raise LookupError(f"{namespace}/{name} does not run on this node")
        return await asyncio.open_unix_connection(sock=await guest.open_console())

    # One VMI

    async def _reconcile(self, key: Key) -> float | None:
        vmi = self._vmis.get(*key)
        pod = self._pod_of(vmi) if vmi is not None else None
        if vmi is None or pod is None or vmi.status.phase in FINAL_PHASES or _has_ended(pod):
            self._release(key)
            return None
        try:
            guest = self._guest(key, vmi, pod)
            if guest is None:
                return None
            if not await guest.bring_up(pod.status.pod_ip, lambda: self._controller.queue.add(key)):
                return guest.next_look_at_start()
            return await self._take_turn(vmi, pod, guest)
        except (HandoverError, StrangerError, NetworkError, MachineError, DriverError) as error:
            self._recorder.event(vmi, "Warning", "SyncFailed", str(error))
            raise
        except MachineGone:
            # The Pod's end tells the rest; if the machine is still there, it is found again.
            return STARTING_POLL

    def _pod_of(self, vmi: VirtualMachineInstance) -> Pod | None:
        pods = [pod for pod in self._pods.by_index(CREATED_BY, vmi.metadata.uid) if _owned(pod, vmi)]
        pods.sort(key=lambda pod: (not _has_ended(pod), pod.metadata.creation_timestamp or ""))
        return pods[-1] if pods else None

    def _guest(self, key: Key, vmi: VirtualMachineInstance, pod: Pod) -> Guest | None:
        guest = self._guests.get(key)
        if guest is not None and guest.pod_uid != pod.metadata.uid:
            self._release(key)
            guest = None
        if guest is None:
            assert self._watch is not None
            try:
                guest = Guest.open(
                    self._root,
                    pod,
                    self._driver,
                    machine_in(pod) or machine_for(vmi),
                    self._watch,
                    lambda: self._controller.queue.add(key),
                    self._belongs,
                )
            except OSError as error:
                log.debug("%s/%s: its run folder is not there yet: %s", *key, error)
                return None  # the Pod's next status tells
            self._guests[key] = guest
        return guest

    def _release(self, key: Key) -> None:
        guest = self._guests.pop(key, None)
        if guest is not None:
            guest.close()

    async def _take_turn(self, vmi: VirtualMachineInstance, pod: Pod, guest: Guest) -> float | None:
        try:
            async with asyncio.timeout(LONGEST_TURN):
                return await self._turns.take(
                    vmi, pod, guest, self._config().gate(names.GATE_IN_PLACE_HOTPLUG)
                )
        except TimeoutError:
            raise DriverError(
                f"the guest was not done within {LONGEST_TURN:g} s; it is tried again"
            ) from None

    def _config(self) -> ClusterConfig:
        return cluster_config(self._settings.get(names.NAMESPACE, names.KUBEVIRT_NAME))


def _creator(pod: Pod) -> Iterable[str]:
    uid = pod.metadata.labels.get(names.LABEL_CREATED_BY)
    return [uid] if uid else []


def _owned(pod: Pod, vmi: VirtualMachineInstance) -> bool:
    """An owner in another namespace is none: anybody could name it there."""
    owner = pod.metadata.controller_of()
    return (
        owner is not None
        and owner.uid == vmi.metadata.uid
        and pod.metadata.namespace == vmi.metadata.namespace
    )


def _owner_key(pod: Pod) -> Iterable[Key]:
    owner = pod.metadata.controller_of()
    if owner is None or owner.kind != VMIS.kind:
        return []
    return [(pod.metadata.namespace, owner.name)]


def _has_ended(pod: Pod) -> bool:
    """The Pod may outlive its machine by what its other container still has to write."""
    compute = compute_status(pod)
    return pod.status.phase in FINAL_PHASES or (compute is not None and compute.state.terminated is not None)
