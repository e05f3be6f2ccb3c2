"""A Kubernetes API in this process, for tests of what runs against it; and a node that is moved by hand.

The API is the real embedded server. The node and its agent are played by the test, through the API as by the
real ones: so a test can say exactly what a node answers, and when.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest_asyncio

from hotvirt.api import meta, names
from hotvirt.api.resources import NAMESPACES, NODES, PODS, VMIS
from hotvirt.controllers.manager import Manager
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.apiserver.store import Store
from hotvirt.embedded.pki import Pki
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import AlreadyExists, Conflict, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.plan.platform import EMBEDDED, Platform
from tests.kube import WITHIN, Kube, Object, in_phase

NODE = "node-1"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """In memory where that is possible: what reaches the disk is not asked by the tests that use it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class Cluster(Kube):
    """The API, and clients of it."""

    def __init__(self, folder: Path, pki: Pki, stack: AsyncExitStack) -> None:
        self._socket = folder / "api.sock"
        self._pki = pki
        self._stack = stack
        super().__init__(self.client("tester", (names.MASTERS_GROUP,)))
        self.url = ""

    def kubeconfig(self, path: Path) -> Path:
        """For kubectl, where the server's address is known."""
        assert self.url
        self._pki.write_kubeconfig(path, self.url)
        return path

    def client(self, user: str, groups: tuple[str, ...] = ()) -> Client:
        config = ClientConfig(unix_socket=self._socket, token=self._pki.token_for(user, groups))
        client = Client(config)
        self._stack.push_async_callback(client.close)
        return client


@asynccontextmanager
async def api(
    folder: Path,
    admission: Callable[[Cluster, ApiServer], None] | None = None,
    on_audit: Callable[[Object], None] | None = None,
) -> AsyncIterator[Cluster]:
    """The API server, with nobody behind it; `admission` may set its hooks, `on_audit` sees each write."""
    async with AsyncExitStack() as stack:
        pki = Pki.open(folder / "pki")
        server = ApiServer(Store(folder / "api.db"), pki, socket=folder / "api.sock", on_audit=on_audit)
        stack.push_async_callback(server.stop)
        await server.start(0)
        cluster = Cluster(folder, pki, stack)
        try:
            await cluster.create(NAMESPACES, {"metadata": {"name": names.NAMESPACE}})
        except AlreadyExists:
            pass  # the server makes it itself
        if admission is not None:
            admission(cluster, server)
        yield cluster


@asynccontextmanager
async def at_work(**parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Parts that run for ever; none of them has ended when what is done with them is done."""
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[Manager]:
    """The controllers at work."""
    async with at_work(controllers=manager.run()):
        await manager.synced()
        yield manager


@asynccontextmanager
async def controlled(folder: Path, platform: Platform = EMBEDDED) -> AsyncIterator[tuple[Cluster, HandNode]]:
    """The API with Hotvirt's controllers, and a node to be moved by hand."""
    async with api(folder) as cluster:
        client = cluster.client(names.CONTROLLER_USER)
        recorder = Recorder(client, "hotvirt-controller")
        node = HandNode(cluster)
        await node.register()
        async with running(Manager(client, recorder, platform=platform)):
            yield cluster, node
        await recorder.close()


def controlled_by_module(platform: Platform = EMBEDDED) -> Any:
    """A fixture: `controlled` once for all tests of a module, which give it a name there."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def shared() -> AsyncIterator[tuple[Cluster, HandNode]]:
        with quick_folder() as folder:
            async with controlled(folder, platform) as world:
                yield world

    return shared


class HandNode:
    """Plays the scheduler, the kubelet and the node agent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def register(self, cpu: str = "8", memory: str = "16Gi") -> None:
        await self._cluster.create(NODES, {"metadata": {"name": NODE}})
        size = {"cpu": cpu, "memory": memory}
        await self._cluster.patch(
            NODES, NODE, {"status": {"capacity": size, "allocatable": size}}, status=True
        )

    async def pod_of(self, vmi: str) -> Object:
        """The launcher Pod of a VMI, once it is there."""
        selector = f"{names.LABEL_VM_NAME}={vmi}"
        admin, namespace = self._cluster.admin, self._cluster.namespace
        async with asyncio.timeout(WITHIN):
            listed = await admin.list(PODS, namespace, label_selector=selector)
            if listed.items:
                return listed.items[0]
            async for event in admin.watch(
                PODS, namespace, resource_version=listed.resource_version, label_selector=selector
            ):
                if event.type in ("ADDED", "MODIFIED"):
                    return event.object
        raise AssertionError("the watch ended")

    async def bind(self, pod: Object) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        await self._cluster.admin.create(
            PODS, binding, self._cluster.namespace, name=pod["metadata"]["name"], subresource="binding"
        )

    async def say(self, pod: Object, status: Object) -> None:
        """Write what the kubelet would say of the Pod."""
        await self._cluster.patch(PODS, pod["metadata"]["name"], {"status": status}, status=True)

    async def run_containers(self, pod: Object, **more: Any) -> None:
        spec = {each["name"]: each for each in pod["spec"]["containers"]}
        statuses = [
            {
                "name": name,
                "ready": True,
                "restartCount": 0,
                "image": each["image"],
                "imageID": "",
                "state": {"running": {"startedAt": meta.now()}},
                "resources": each["resources"],
            }
            for name, each in spec.items()
        ]
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": meta.now()}
        await self.say(
            pod,
            {
                "phase": "Running",
                "qosClass": "Burstable",
                "containerStatuses": statuses,
                "conditions": [ready],
                **more,
            },
        )

    async def boot(self, name: str, sockets: int = 1) -> Object:
        """Everything from the Pod to a guest that runs; the VMI."""
        pod = await self.pod_of(name)
        await self.bind(pod)
        await self.run_containers(pod)
        vmi = await self._cluster.until(VMIS, name, in_phase("Scheduled"))
        return await self.guest(vmi, sockets=sockets)

    async def guest(self, vmi: Object, *, sockets: int = 1, paused: bool = False) -> Object:
        """What the node agent says of a machine that runs."""
        name = vmi["metadata"]["name"]
        while True:
            try:
                return await self._say_guest(vmi, sockets, paused)
            except Conflict:
                vmi = await self._cluster.get(VMIS, name)

    async def _say_guest(self, vmi: Object, sockets: int, paused: bool) -> Object:
        status = vmi["status"]
        conditions = [each for each in status["conditions"] if each["type"] != "Paused"]
        if paused:
            conditions.append({"type": "Paused", "status": "True", "lastTransitionTime": meta.now()})
        times = status.get("phaseTransitionTimestamps", [])
        if status["phase"] != "Running":
            times = [*times, {"phase": "Running", "phaseTransitionTimestamp": meta.now()}]
        change = {
            "phase": "Running",
            "phaseTransitionTimestamps": times,
            "conditions": conditions,
            "currentCPUTopology": {"sockets": sockets, "cores": 1, "threads": 1},
        }
        version = {"resourceVersion": vmi["metadata"]["resourceVersion"]}
        name = vmi["metadata"]["name"]
        return await self._cluster.patch(VMIS, name, {"metadata": version, "status": change}, status=True)

    async def end(self, vmi: str, exit_code: int = 0) -> None:
        """The machine ends."""
        pod = await self.pod_of(vmi)
        terminated = {"exitCode": exit_code, "finishedAt": meta.now(), "startedAt": meta.now()}
        statuses = [
            {
                "name": each["name"],
                "ready": False,
                "restartCount": 0,
                "image": each["image"],
                "imageID": "",
                "state": {"terminated": terminated},
            }
            for each in pod["spec"]["containers"]
        ]
        phase = "Failed" if exit_code else "Succeeded"
        await self.say(pod, {"phase": phase, "containerStatuses": statuses})

    async def finish_deletion(self, vmi: str) -> None:
        """The kubelet lets go of a Pod that is being deleted."""
        pod = await self.pod_of(vmi)
        name = pod["metadata"]["name"]
        await self._cluster.until(PODS, name, lambda each: each["metadata"].get("deletionTimestamp"))
        try:
            await self._cluster.admin.delete(PODS, name, self._cluster.namespace, grace=0)
        except NotFound:
            return


def vm_manifest(name: str, strategy: str = "Always", **spec: Any) -> Object:
    """A small VM, defaulted as admission would."""
    template = {
        "domain": {
            "cpu": {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 4},
            "memory": {"guest": "256Mi"},
            "devices": {
                "disks": [{"name": "system", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "system", "containerDisk": {"image": "hotvirt/demo-guest:latest"}}],
        **spec.pop("template", {}),
    }
    return {
        "metadata": {"name": name},
        "spec": {"runStrategy": strategy, "template": {"spec": template}, **spec},
    }
