"""One machine in the test's own process: the embedded API with a node or with controllers beside it.

The launcher is `sh -c`: a Pod of Hotvirt's whose command is `hotvirt-launcher SCRIPT` runs that script as a
real process, in a real cgroup and a real network namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from hotvirt.api import names
from hotvirt.api.resources import EVENTS, PODS, Resource
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.apiserver.store import Store
from hotvirt.embedded.images import ImageStore
from hotvirt.embedded.inside import Inside, InsideTransport
from hotvirt.embedded.node.node import EmbeddedNode
from hotvirt.embedded.pki import Pki
from hotvirt.embedded.state import StateDir
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import NotFound

NODE = "one"
WITHIN = 90.0
Object = dict[str, Any]


class OneMachine:
    def __init__(self, path: Path) -> None:
        self.state = StateDir(path)
        self.images = ImageStore(self.state.images)
        self._pki = Pki.open(self.state.pki)
        self.server = ApiServer(Store(self.state.database), self._pki, socket=self.state.socket)
        self._inside = Inside()
        self._inside.server = self.server
        self._clients: list[Client] = []
        self.client = self.client_as("test")
        self.node: EmbeddedNode | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._node_task: asyncio.Task[None] | None = None

    def client_as(self, user: str, cls: type[Client] = Client) -> Client:
        token = self._pki.token_for(user, (names.MASTERS_GROUP,))
        client = cls(ClientConfig(unix_socket=self.state.socket, token=token))
        self._clients.append(client)
        return client

    def part_as(self, user: str, *, patient: bool = False) -> Client:
        """As one of the parts that `hotvirt up` runs beside the API, in the same process."""
        config = ClientConfig(
            unix_socket=self.state.socket, token=self._pki.token_for(user, (names.MASTERS_GROUP,))
        )
        client = Client(config, transport=InsideTransport(self._inside, config, "part", patient))
        self._clients.append(client)
        return client

    def run(self, part: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(part))  # type: ignore[arg-type]  # all are coroutines

    async def start_node(self, **options: Any) -> EmbeddedNode:
        allocatable = {"cpu": "4", "memory": "4Gi"} | options.pop("allocatable", {})
        self.node = EmbeddedNode(
            self.part_as(f"system:node:{NODE}"),
            NODE,
            self.state.path,
            allocatable,
            self.images,
            launcher=["sh", "-c"],
            egress=False,
            **options,
        )
        self._node_task = asyncio.create_task(self.node.run())
        ready = asyncio.create_task(self.node.ready.wait())
        await asyncio.wait([ready, self._node_task], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self._node_task
        return self.node

    async def stop_node(self) -> None:
        """As `hotvirt down`, or a kill: Pods go on."""
        if self._node_task:
            self._node_task.cancel()
            await asyncio.wait([self._node_task])
            self._node_task = self.node = None

    async def close(self) -> None:
        try:
            if self.node:
                for pod in (await self.client.list(PODS)).items:
                    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                    with suppress(NotFound):  # it may be on its way out already
                        await self.client.delete(PODS, name, namespace, grace=0)
                await self.all_ended()
        finally:
            await self.stop_node()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            for client in self._clients:
                await client.close()
            await self.server.stop()

    async def create(self, resource: Resource, obj: Object, namespace: str | None = "default") -> Object:
        named = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self.client.create(resource, named, namespace if resource.namespaced else None)

    async def until(
        self,
        resource: Resource,
        name: str,
        true: Callable[[Object], Any],
        namespace: str | None = "default",
        since: Object | None = None,
    ) -> Object:
        """Watch until the object is like that; returns it. `since`: it counts from after that version of it,
        however short it was so.
        """
        namespace = namespace if resource.namespaced else None
        last: Object = {}
        try:
            async with asyncio.timeout(WITHIN):
                if since is None:
                    listed = await self.client.list(
                        resource, namespace, field_selector=f"metadata.name={name}"
                    )
                    for last in listed.items:
                        if true(last):
                            return last
                    version = listed.resource_version
                else:
                    version = since["metadata"]["resourceVersion"]
                events = self.client.watch(
                    resource,
                    namespace,
                    resource_version=version,
                    field_selector=f"metadata.name={name}",
                )
                async for event in events:
                    last = event.object
                    if event.type != "BOOKMARK" and true(last):
                        return last
        except TimeoutError:
            raise AssertionError(f"{resource.singular} {name} never became so; last: {last}") from None
        raise AssertionError("the watch ended")

    async def until_gone(self, resource: Resource, name: str, namespace: str | None = "default") -> None:
        namespace = namespace if resource.namespaced else None
        try:
            found = await self.client.get(resource, name, namespace)
        except NotFound:
            return
        version, uid = found["metadata"]["resourceVersion"], found["metadata"]["uid"]
        async with asyncio.timeout(WITHIN):
            async for event in self.client.watch(resource, namespace, resource_version=version):
                if event.type == "DELETED" and event.object["metadata"]["uid"] == uid:
                    return

    async def event(self, reason: str, namespace: str = "default") -> Object:
        """The first event of that reason, once it is there."""
        selector = f"reason={reason}"
        async with asyncio.timeout(WITHIN):
            listed = await self.client.list(EVENTS, namespace, field_selector=selector)
            if listed.items:
                return listed.items[0]
            async for event in self.client.watch(
                EVENTS, namespace, resource_version=listed.resource_version, field_selector=selector
            ):
                if event.type == "ADDED":
                    return event.object
        raise AssertionError("the watch ended")

    async def all_ended(self) -> None:
        """Until the node has let go of every Pod."""
        assert self.node
        async with asyncio.timeout(WITHIN):
            while self.node._workers:
                await asyncio.wait(self.node._tasks)

    async def phase(self, name: str, phase: str) -> Object:
        return await self.until(PODS, name, lambda pod: pod["status"].get("phase") == phase)

    def folder(self, pod: Object) -> Path:
        return self.state.path / "pods" / str(pod["metadata"]["uid"])


@asynccontextmanager
async def one_machine(path: Path) -> AsyncIterator[OneMachine]:
    StateDir(path).prepare()
    machine = OneMachine(path)
    await machine.server.start(0)
    try:
        yield machine
    finally:
        await machine.close()


def pod(name: str, script: str, *, requests: Object | None = None, **more: Any) -> Object:
    """A Pod of Hotvirt's that runs a shell script. `container` and `spec` in `more` are merged in."""
    container: Object = {
        "name": "compute",
        "image": f"{names.LAUNCHER_IMAGE}:test",
        "command": ["hotvirt-launcher", script],
        "resources": {"requests": requests or {"cpu": "100m", "memory": "64Mi"}},
    } | more.pop("container", {})
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "nodeName": NODE,
        "containers": [container],
    } | more.pop("spec", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **more}, "spec": spec}


def condition(obj: Object, type: str) -> Object | None:
    found: list[Object] = [c for c in obj["status"].get("conditions") or [] if c["type"] == type]
    return found[0] if found else None


def state_of(obj: Object, container: str = "compute") -> Object:
    statuses = obj["status"].get("containerStatuses") or []
    found: Object = next((status["state"] for status in statuses if status["name"] == container), {})
    return found
