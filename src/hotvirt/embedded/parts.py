"""The parts that `hotvirt up` runs beside the API server: who they are to it, and how each is made.

On a cluster these are Hotvirt's workloads, the kubelet, kube-scheduler, kube-controller-manager and CDI. Each
is made anew at each start, so that one that crashed comes back without a memory of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from aiohttp import web

from hotvirt.admission.room import Room
from hotvirt.admission.webhooks import Admission
from hotvirt.api import names
from hotvirt.api.kubevirt import KubeVirt
from hotvirt.api.resources import CONTROLLERREVISIONS, KUBEVIRTS, VMIS
from hotvirt.controllers.manager import Manager
from hotvirt.hypervisor.driver import Driver
from hotvirt.hypervisor.instant import InstantDriver
from hotvirt.hypervisor.qemu.driver import QemuDriver
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer
from hotvirt.node.agent import NodeAgent
from hotvirt.node.peers import in_pod_cgroup, of_our_user
from hotvirt.plan.config import ClusterConfig, cluster_config
from hotvirt.subresources.app import make_app

from .apiserver.store import Store
from .datavolumes import DataVolumeController
from .garbage import GarbageCollector
from .images import ImageStore
from .inventory import Inventory
from .lookups import store_lookup
from .namespaces import NamespaceController
from .node.logs import LogOptions
from .node.node import EmbeddedNode, NoSuchLog
from .scheduler import Scheduler
from .state import StateDir
from .storage import LocalStorage

ClientFor = Callable[[str, str, tuple[str, ...], bool], Client]
Part = Callable[[], Awaitable[None]]


class Parts:
    def __init__(
        self,
        node_name: str,
        state: StateDir,
        allocatable: Mapping[str, str],
        hypervisor: str,
        client_for: ClientFor,
        root_ca: str,
    ) -> None:
        self.node_name = node_name
        self._root_ca = root_ca
        self._state = state
        self._allocatable = allocatable
        self._hypervisor = hypervisor
        self._images = ImageStore(state.images)
        self._api_client = client_for(names.API_USER, "hotvirt-api", (), False)
        self._controller_client = client_for(names.CONTROLLER_USER, "hotvirt-controller", (), False)
        self._agent_client = client_for(names.NODE_USER, "hotvirt-node", (), False)
        self._scheduler_client = client_for("system:kube-scheduler", "kube-scheduler", (), False)
        self._controller_manager_client = client_for(
            "system:kube-controller-manager", "kube-controller-manager", (), True
        )
        self._kubelet_client = client_for(
            f"system:node:{node_name}", "kubelet", ("system:nodes", names.MASTERS_GROUP), False
        )
        self._kubevirts = Informer(self._api_client, KUBEVIRTS, KubeVirt, namespace=names.NAMESPACE)
        self._room = Room(self._api_client)
        self._node: EmbeddedNode | None = None
        self._agent: NodeAgent | None = None
        self._begun = {name: asyncio.Event() for name in self.all()}

    # What the API server needs of the parts

    def admission(self, store: Store) -> Admission:
        return Admission(
            self._config,
            vmi=store_lookup(store, VMIS),
            revision=store_lookup(store, CONTROLLERREVISIONS),
            around=self._room.around,
        )

    def _config(self) -> ClusterConfig:
        """The settings of the KubeVirt object; the defaults until it has been read."""
        return cluster_config(self._kubevirts.get(names.NAMESPACE, names.KUBEVIRT_NAME))

    def subresources(self) -> web.Application:
        return make_app(self._api_client, self)

    async def open_console(
        self, namespace: str, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._agent is None:
            raise LookupError("the node agent is starting; try again in a moment")
        return await self._agent.open_console(namespace, name)

    async def log(self, pod_uid: str, container: str, options: Any) -> AsyncIterator[bytes]:
        """What a container printed; FileNotFoundError while it has not started."""
        if self._node is None:
            raise FileNotFoundError("the node is starting")
        try:
            chunks = self._node.log(pod_uid, container, LogOptions(**dataclasses.asdict(options)))
        except NoSuchLog as missing:
            raise FileNotFoundError(str(missing)) from missing
        async for chunk in chunks:
            yield chunk

    # The parts

    def all(self) -> dict[str, Part]:
        return {
            "settings": self._run_settings,
            "room": self._run_room,
            "controllers": self._run_controllers,
            "scheduler": self._run_scheduler,
            "garbage collector": self._run_garbage_collector,
            "storage": self._run_storage,
            "data volumes": self._run_data_volumes,
            "node": self._run_node,
            "node agent": self._run_agent,
        }

    async def ready(self) -> None:
        """Until every part has begun its work: nothing that is asked for from now on waits for a start."""
        for begun in self._begun.values():
            await begun.wait()

    async def _run(self, name: str, run: Coroutine[object, object, None], begun: Awaitable[object]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run, name=name)
            await begun
            self._begun[name].set()

    async def _run_settings(self) -> None:
        await self._run("settings", self._kubevirts.run(), self._kubevirts.synced())

    async def _run_room(self) -> None:
        """What admission says about room on nodes and in quotas."""
        await self._run("room", self._room.run(), self._room.synced())

    async def _run_scheduler(self) -> None:
        scheduler = Scheduler(self._scheduler_client)
        await self._run("scheduler", scheduler.run(), scheduler.synced())

    async def _run_garbage_collector(self) -> None:
        """And the life cycle of namespaces, which has the same view of all objects."""
        client = self._controller_manager_client
        inventory = Inventory(client)
        namespaces = NamespaceController(client, inventory, self._root_ca)
        collector = GarbageCollector(client, inventory)
        together = (inventory.run(), namespaces.informer.run(), namespaces.run(), collector.run())
        await self._run("garbage collector", all_of(*together), inventory.synced())

    async def _run_storage(self) -> None:
        storage = LocalStorage(self._controller_manager_client, self._state.path, self.node_name)
        await self._run("storage", storage.run(), storage.synced())

    async def _run_data_volumes(self) -> None:
        data_volumes = DataVolumeController(self._controller_manager_client)
        await self._run("data volumes", data_volumes.run(), data_volumes.synced())

    async def _run_controllers(self) -> None:
        recorder = Recorder(self._controller_client, "hotvirt-controller")
        manager = Manager(self._controller_client, recorder)
        try:
            await self._run("controllers", manager.run(), manager.synced())
        finally:
            await recorder.close()

    async def _run_node(self) -> None:
        runtime = "instant" if self._hypervisor == "instant" else "process"
        self._node = EmbeddedNode(
            self._kubelet_client,
            self.node_name,
            self._state.path,
            self._allocatable,
            self._images,
            runtime=runtime,
        )
        await self._run("node", self._node.run(), self._node.ready.wait())

    async def _run_agent(self) -> None:
        driver: Driver = InstantDriver() if self._hypervisor == "instant" else QemuDriver()
        recorder = Recorder(self._agent_client, "hotvirt-node", self.node_name)
        self._agent = NodeAgent(
            self._agent_client,
            self.node_name,
            self._state.path,
            {driver.name: driver},
            recorder,
            belongs=self._belongs,
        )
        try:
            await self._run("node agent", self._agent.run(), self._begun["node"].wait())
        finally:
            await recorder.close()

    def _belongs(self, pid: int, pod_uid: str) -> bool:
        """Whether a process is the Pod's own. Where there are no cgroups, all Pods are this user's."""
        if self._node is not None and self._node.pods_in_cgroups:
            return in_pod_cgroup(pid, pod_uid)
        return of_our_user(pid, pod_uid)


async def all_of(*runs: Coroutine[object, object, None]) -> None:
    """Side by side; when one fails, all end."""
    async with asyncio.TaskGroup() as tasks:
        for run in runs:
            tasks.create_task(run)
