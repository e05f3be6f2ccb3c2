"""A whole Hotvirt in this process on the driver that answers at once; parts of it can be killed.

Everything is the real thing but the machines: API server with admission, scheduler, garbage collector, a node
whose Pods are no processes, the node agent, the controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hotvirt.admission.lookups import client_lookup
from hotvirt.admission.webhooks import Admission
from hotvirt.api import names
from hotvirt.api.resources import CONTROLLERREVISIONS, VMIS
from hotvirt.controllers.manager import Manager
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.garbage import GarbageCollector
from hotvirt.embedded.images import ImageStore
from hotvirt.embedded.inventory import Inventory
from hotvirt.embedded.node.node import EmbeddedNode
from hotvirt.embedded.scheduler import Scheduler
from hotvirt.hypervisor.instant import InstantDriver
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.node.agent import NodeAgent
from hotvirt.plan.config import ClusterConfig
from tests.inprocess import NODE, Cluster, api

WRITES = ("create", "update", "patch", "delete")


class Killed(BaseException):
    """The process is gone: no handler of ours sees this."""


class Mortal:
    """A client whose process dies right after its n-th write, when that is done and nobody knows it yet."""

    def __init__(self, client: Client, dies_after: int | None) -> None:
        self._client = client
        self._left = dies_after
        self.writes: list[str] = []
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Killed
        found = getattr(self._client, name)
        return self._counted(name, found) if name in WRITES else found

    def _counted(self, verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write(resource: Any, *arguments: Any, **options: Any) -> Any:
            answer = await call(resource, *arguments, **options)
            if self.dead:
                raise Killed
            self.writes.append(f"{verb} {resource.plural}/{options.get('subresource') or ''}")
            if self._left is not None and len(self.writes) >= self._left:
                self.dead = True
                raise Killed
            return answer

        return write


class Victim:
    """A part that is killed once and started again; what it wrote before it died is counted."""

    def __init__(
        self, make_client: Callable[[], Client], run: Callable[[Any], Awaitable[None]], dies_after: int | None
    ) -> None:
        self._make_client = make_client
        self._run = run
        self._dies_after = dies_after
        self.writes: list[str] = []
        self.was_killed = False

    async def live(self) -> None:
        first = Mortal(self._make_client(), self._dies_after)
        self.writes = first.writes
        try:
            await self._run(first)
        except BaseException as ended:
            if not _says_killed(ended):
                raise
            self.was_killed = True
        await self._run(self._make_client())


def _says_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_says_killed(each) for each in error.exceptions)
    return isinstance(error, Killed)


class Machines:
    """The parts beside the controllers and the agent; those are brought to life by a test."""

    def __init__(self, folder: Path, cluster: Cluster, recorder: Recorder) -> None:
        self._folder = folder
        self._cluster = cluster
        self._recorder = recorder

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @asynccontextmanager
    async def alive(self, victim: str = "", dies_after: int | None = None) -> AsyncIterator[Victim | None]:
        """Controllers and agent at work; the victim dies after so many writes and comes back."""
        parts = {
            "controllers": (names.CONTROLLER_USER, self._controllers),
            "agent": (names.NODE_USER, self._agent),
        }
        lives = {
            name: Victim(
                lambda user=user: self._cluster.client(user), run, dies_after if name == victim else None
            )
            for name, (user, run) in parts.items()
        }
        tasks = [asyncio.create_task(life.live(), name=name) for name, life in lives.items()]
        try:
            yield lives.get(victim)
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _controllers(self, client: Any) -> None:
        await Manager(client, self._recorder).run()

    async def _agent(self, client: Any) -> None:
        driver = InstantDriver()
        await NodeAgent(client, NODE, self._folder, {driver.name: driver}, self._recorder).run()


@asynccontextmanager
async def machines(folder: Path) -> AsyncIterator[Machines]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(api(folder, admission=_admission))
        recorder = Recorder(cluster.client(names.CONTROLLER_USER), "test")
        stack.push_async_callback(recorder.close)
        images = ImageStore(folder / "images")
        disk = folder / "disk.img"
        disk.write_bytes(bytes(1 << 20))
        images.import_image("hotvirt/demo-guest:latest", disk)
        root = cluster.client("kubelet", (names.MASTERS_GROUP,))
        node = EmbeddedNode(root, NODE, folder, {"cpu": "64", "memory": "256Gi"}, images, runtime="instant")
        inventory = Inventory(root)
        collector = GarbageCollector(root, inventory)
        tasks = [
            asyncio.create_task(run())
            for run in (node.run, Scheduler(root).run, inventory.run, collector.run)
        ]
        try:
            await node.ready.wait()
            yield Machines(folder, cluster, recorder)
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _admission(cluster: Cluster, server: ApiServer) -> None:
    client = cluster.client(names.API_USER)
    server.set_admission(
        Admission(
            ClusterConfig,
            vmi=client_lookup(client, VMIS),
            revision=client_lookup(client, CONTROLLERREVISIONS),
        )
    )
