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
from typing import Any

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import KubeVirt, VirtualMachineInstance, VMIStatus
from hotvirt.api.meta import now
from hotvirt.api.pods import Pod
from hotvirt.api.resources import KUBEVIRTS, PODS, VMIS
from hotvirt.hypervisor import sockets
from hotvirt.hypervisor.driver import Driver, DriverError, MachineGone, Observed, RunningMachine, Status
from hotvirt.hypervisor.files import CONSOLE_SOCKET
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer, Key
from hotvirt.kube.patch import merge_diff
from hotvirt.node.guest import Guest
from hotvirt.node.handover import HandoverError
from hotvirt.node.inotify import FolderWatch
from hotvirt.node.network import NetworkError
from hotvirt.node.requests import carry_out
from hotvirt.node.status import Seen, current_topology, vmi_status
from hotvirt.plan.config import ClusterConfig, cluster_config
from hotvirt.plan.instance import compute_status
from hotvirt.plan.machine import MachineError, machine_for
from hotvirt.plan.podresize import actual_size, covers, size_of
from hotvirt.plan.resources import pod_resources
from hotvirt.plan.runstrategy import FINAL_PHASES
from hotvirt.plan.topology import topology

log = logging.getLogger(__name__)

# Between the hand-over and the first connection: that a process listens is announced by no event.
STARTING_POLL = 0.05
# How long a guest may take to use vCPUs that it was given, before the status says what it reached.
ONLINE_TIMEOUT = 30.0
# After that it is looked at again from time to time: a guest may come to its senses without any event.
UNFINISHED_POLL = 30.0
CREATED_BY = "created-by"


class NodeAgent:
    def __init__(
        self,
        client: Client,
        node_name: str,
        node_root: Path,
        drivers: Mapping[str, Driver],
        recorder: Recorder,
    ) -> None:
        self._client = client
        self._root = node_root
        self._driver = next(iter(drivers.values()))
        self._recorder = recorder
        self._guests: dict[Key, Guest] = {}
        self._watch: FolderWatch | None = None
        self._vmis = Informer(
            client, VMIS, VirtualMachineInstance, label_selector=f"{names.LABEL_NODE_NAME}={node_name}"
        )
        self._pods = Informer(
            client,
            PODS,
            Pod,
            field_selector=f"spec.nodeName={node_name}",
            label_selector=f"{names.LABEL_LAUNCHER[0]}={names.LABEL_LAUNCHER[1]}",
            indexes={CREATED_BY: _creator},
        )
        self._settings = Informer(client, KUBEVIRTS, KubeVirt, namespace=names.NAMESPACE)
        self._controller = Controller("node-agent", self._reconcile, workers=8)
        self._controller.watch(self._vmis, lambda vmi: [vmi.metadata.key])
        self._controller.watch(self._pods, _owner_key)

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
        connection = await sockets.connect(guest.folder, CONSOLE_SOCKET)
        return await asyncio.open_unix_connection(sock=connection)

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
                return STARTING_POLL if guest.is_starting else None
            return await self._bring_to_spec(vmi, pod, guest)
        except (HandoverError, NetworkError, MachineError, DriverError) as error:
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
                    machine_for(vmi),
                    self._watch,
                    lambda: self._controller.queue.add(key),
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

    async def _bring_to_spec(self, vmi: VirtualMachineInstance, pod: Pod, guest: Guest) -> float | None:
        running = guest.running
        assert running is not None
        await self._carry_out_requests(vmi, guest, running)
        observed = await running.observe()
        again: float | None = None
        if self._may_grow(vmi, pod, observed):
            observed, again = await self._grow(vmi, running, observed)
        if guest.panicked:
            guest.panicked = False
            self._recorder.event(vmi, "Warning", "GuestPanicked", "The guest's kernel panicked.")
        seen = Seen(
            observed=observed,
            accelerator=guest.accelerator,
            hypervisor=running.version,
            boot_memory=guest.boot_memory,
            pod_address=pod.status.pod_ip,
            machine=guest.machine,
        )
        status = vmi_status(vmi, seen, now())
        if await self._write(vmi, status) and vmi.status.phase != status.phase:
            self._recorder.event(vmi, "Normal", "Started", "VirtualMachineInstance started.")
        return again or guest.next_look_at_agent(observed)

    async def _carry_out_requests(
        self, vmi: VirtualMachineInstance, guest: Guest, running: RunningMachine
    ) -> None:
        """They go from the API with the status that is written next."""
        for request in vmi.status.hotvirt.requests:
            problem = await carry_out(running, guest.folder, request)
            if problem:
                self._recorder.event(vmi, "Warning", "RequestFailed", f"{request.action}: {problem}")

    # vCPUs

    def _may_grow(self, vmi: VirtualMachineInstance, pod: Pod, observed: Observed) -> bool:
        """Whether there is something to add and the Pod already has the size for it: outside-in."""
        wanted = topology(vmi.spec.domain).vcpus
        used = observed.guest.online if observed.guest is not None and observed.guest.vcpus else wanted
        if vmi.metadata.deleting or observed.status is not Status.RUNNING:
            return False
        if min(observed.plugged, used) >= wanted:
            return False
        needed = size_of(pod_resources(vmi.spec, self._config()))
        return covers(actual_size(pod, names.CONTAINER_COMPUTE), needed)

    async def _grow(
        self, vmi: VirtualMachineInstance, running: RunningMachine, before: Observed
    ) -> tuple[Observed, float | None]:
        wanted = topology(vmi.spec.domain).vcpus
        await running.plug_vcpus(wanted)
        if before.agent_connected:
            await running.online_vcpus(wanted, ONLINE_TIMEOUT)
        after = await running.observe()
        if current_topology(vmi, after).sockets < topology(vmi.spec.domain).sockets:
            online = after.guest.online if after.guest else 0
            self._recorder.event(
                vmi,
                "Warning",
                "VCPUsNotOnline",
                f"The guest has {after.plugged} vCPUs plugged and uses {online} of {wanted}.",
            )
            return after, UNFINISHED_POLL
        return after, None

    def _config(self) -> ClusterConfig:
        return cluster_config(self._settings.get(names.NAMESPACE, names.KUBEVIRT_NAME))

    # Status

    async def _write(self, vmi: VirtualMachineInstance, status: VMIStatus) -> bool:
        """Write the difference, if there is one, on top of exactly what was read."""
        difference = merge_diff(codec.builtins(vmi.status), codec.builtins(status))
        if not difference:
            return False
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": vmi.metadata.resource_version},
            "status": difference,
        }
        await self._client.patch(
            VMIS, vmi.metadata.name, patch, vmi.metadata.namespace, kind="merge", subresource="status"
        )
        return True


def _creator(pod: Pod) -> Iterable[str]:
    uid = pod.metadata.labels.get(names.LABEL_CREATED_BY)
    return [uid] if uid else []


def _owned(pod: Pod, vmi: VirtualMachineInstance) -> bool:
    owner = pod.metadata.controller_of()
    return owner is not None and owner.uid == vmi.metadata.uid


def _owner_key(pod: Pod) -> Iterable[Key]:
    owner = pod.metadata.controller_of()
    if owner is None or owner.kind != VMIS.kind:
        return []
    return [(pod.metadata.namespace, owner.name)]


def _has_ended(pod: Pod) -> bool:
    """The Pod may outlive its machine by what its other container still has to write."""
    compute = compute_status(pod)
    return pod.status.phase in FINAL_PHASES or (compute is not None and compute.state.terminated is not None)
