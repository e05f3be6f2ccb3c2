"""A whole Hotvirt in this process, on the driver that answers at once or on QEMU; parts of it can be killed.

Everything is the real thing: API server with admission, scheduler, garbage collector, a node, the node agent,
the controllers. With the driver that answers at once the node's Pods are no processes. Every change of a size
is in one ordered log (`tests/size_log.py`), which is checked whenever controllers and agent are let go.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from hotvirt.admission.lookups import client_lookup
from hotvirt.admission.webhooks import Admission
from hotvirt.api import names
from hotvirt.api.kubevirt import KubeVirt
from hotvirt.api.resources import CONTROLLERREVISIONS, KUBEVIRTS, PODS, VMIS
from hotvirt.controllers.manager import Manager
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.garbage import GarbageCollector
from hotvirt.embedded.images import ImageStore
from hotvirt.embedded.inventory import Inventory
from hotvirt.embedded.node.cgroups import Limits, Write
from hotvirt.embedded.node.instant_runtime import InstantPod, InstantRuntime
from hotvirt.embedded.node.node import EmbeddedNode
from hotvirt.embedded.node.process_runtime import ProcessRuntime
from hotvirt.embedded.node.runtime import Runtime
from hotvirt.embedded.scheduler import Scheduler
from hotvirt.hypervisor.driver import Driver
from hotvirt.hypervisor.instant import InstantDriver, InstantMachine
from hotvirt.hypervisor.qemu.driver import QemuDriver, QemuMachine
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer
from hotvirt.node.agent import NodeAgent
from hotvirt.plan.config import ClusterConfig, cluster_config
from tests.inprocess import NODE, Cluster, api, at_work
from tests.kube import Object
from tests.size_log import SizeLog

WRITES = ("create", "update", "patch", "delete")
LARGE = {"cpu": "64", "memory": "256Gi"}


Deed = tuple[str, int]
"""What is done, and the how manieth of its kind it is."""


def each_of(deeds: list[str]) -> list[Deed]:
    """By their kind: where in the order of all of them one comes differs from run to run."""
    return [(deed, deeds[: place + 1].count(deed)) for place, deed in enumerate(deeds)]


class Killed(BaseException):
    """The process is gone: no handler of ours sees this."""


class Life:
    """What one process does that lasts: writes to the API, commands to its machines. It may end after any."""

    def __init__(self, dies_after: int | Deed | None = None) -> None:
        """After so many, or after that one."""
        self._dies_after = dies_after
        self.deeds: list[str] = []
        self.dead = False
        self.ended = asyncio.Event()

    def goes_on(self) -> None:
        if self.dead:
            raise Killed

    def did(self, deed: str) -> None:
        """It is done, and nobody knows it yet."""
        self.goes_on()
        self.deeds.append(deed)
        if self._was_the_last():
            self.dead = True
            self.ended.set()
            raise Killed

    def _was_the_last(self) -> bool:
        if isinstance(self._dies_after, tuple):
            deed, times = self._dies_after
            return self.deeds.count(deed) >= times
        return self._dies_after is not None and len(self.deeds) >= self._dies_after


class Mortal:
    """The client of a process that may die right after any write."""

    def __init__(self, client: Client, life: Life) -> None:
        self._client = client
        self.life = life

    def __getattr__(self, name: str) -> Any:
        self.life.goes_on()
        found = getattr(self._client, name)
        return self._counted(name, found) if name in WRITES else found

    def _counted(self, verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write(resource: Any, *arguments: Any, **options: Any) -> Any:
            answer = await call(resource, *arguments, **options)
            self.life.did(f"{verb} {resource.plural}/{options.get('subresource') or ''}")
            return answer

        return write


class Victim:
    """A part that is killed once and started again; what it did before it died is counted."""

    def __init__(
        self,
        make_client: Callable[[], Client],
        run: Callable[[Any, Life], Awaitable[None]],
        dies_after: int | Deed | None,
    ) -> None:
        self._make_client = make_client
        self._run = run
        self._first = Life(dies_after)

    @property
    def was_killed(self) -> bool:
        return self._first.dead

    @property
    def writes(self) -> list[str]:
        return self._first.deeds

    async def live(self) -> None:
        await self._live(self._first)
        await self._live(Life())

    async def _live(self, life: Life) -> None:
        """Until it dies: then nothing of it does anything any more."""
        work = asyncio.ensure_future(self._run(Mortal(self._make_client(), life), life))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        end = asyncio.create_task(life.ended.wait())
        try:
            await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
            work.cancel()
            await asyncio.wait([work, end])
            error = None if work.cancelled() else work.exception()
        if error is not None and not _says_killed(error):
            raise error


def _says_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_says_killed(each) for each in error.exceptions)
    return isinstance(error, Killed)


class LoggedMachine(InstantMachine):
    """Each command is in the log, and the last thing that its agent may do."""

    log: SizeLog
    life: Life
    pod_uid: str

    def _change(self, **fields: Any) -> None:
        self.life.goes_on()
        super()._change(**fields)
        self.tell()
        self.life.did(f"command {' '.join(fields)}")

    def tell(self) -> None:
        self.log.hypervisor(
            self.pod_uid, self._state["plugged"], self._state["memory"] + self._state["requested"]
        )


class LoggedDriver(InstantDriver):
    def __init__(self, log: SizeLog, life: Life) -> None:
        self._log = log
        self._life = life

    async def connect(self, run_dir_fd: int) -> LoggedMachine:
        plain = await super().connect(run_dir_fd)
        machine = LoggedMachine(os.dup(run_dir_fd), plain._state)
        plain.close()
        machine.log, machine.life = self._log, self._life
        machine.pod_uid = pod_of(Path(f"/proc/self/fd/{run_dir_fd}").readlink())
        machine.tell()
        return machine


def pod_of(run_folder: Path) -> str:
    """The uid of the Pod whose run folder it is."""
    parts = run_folder.parts
    return parts[parts.index("pods") + 1]


class LoggedPod(InstantPod):
    log: SizeLog
    uid: str

    async def prepare(self, pod: Limits, containers: dict[str, Limits]) -> None:
        self.resize(pod, containers)

    def resize(self, pod: Limits, containers: dict[str, Limits]) -> None:
        self.log.cgroup(self.uid, containers[names.CONTAINER_COMPUTE].memory_limit)


class LoggedRuntime(InstantRuntime):
    def __init__(self, log: SizeLog) -> None:
        self._log = log

    def pod(self, uid: str, folder: Path) -> LoggedPod:
        pod = LoggedPod(uid, folder)
        pod.log, pod.uid = self._log, uid
        return pod


class LoggedQemu(QemuDriver):
    def __init__(self, log: SizeLog, life: Life) -> None:
        self._log = log
        self._life = life

    async def connect(self, run_dir_fd: int) -> QemuMachine:
        machine = await super().connect(run_dir_fd)
        pod_uid = pod_of(Path(f"/proc/self/fd/{run_dir_fd}").readlink())
        watched = _WatchedQemu(machine._do, self._log, self._life, pod_uid)
        machine._vcpus._do = machine._memory._do = watched.do
        return machine


class _WatchedQemu:
    """Each command that changes a size is in the log before QEMU has it, each figure when QEMU tells it."""

    def __init__(self, do: Callable[..., Awaitable[Any]], log: SizeLog, life: Life, pod_uid: str) -> None:
        self._do, self._log, self._life, self._pod_uid = do, log, life, pod_uid
        self._boot = self._requested = self._size = self._vcpus = 0

    async def do(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        self._life.goes_on()
        if name == "qom-set" and arguments:
            self._requested = arguments["value"]
        elif name == "device_add":
            self._vcpus += 1
        self._tell()
        answer = await self._do(name, arguments)
        if name in ("qom-set", "device_add", "device_del"):
            self._life.did(f"command {name}")
        elif name == "query-memory-size-summary":
            self._boot = answer["base-memory"]
        elif name == "query-memory-devices" and answer:
            self._requested, self._size = (answer[0]["data"][key] for key in ("requested-size", "size"))
        elif name == "query-hotpluggable-cpus":
            self._vcpus = sum("qom-path" in slot for slot in answer)
        self._tell()
        return answer

    def _tell(self) -> None:
        if self._boot and self._vcpus:
            most = self._boot + max(self._requested, self._size)
            self._log.hypervisor(self._pod_uid, self._vcpus, most)


class LoggedNode(EmbeddedNode):
    log: SizeLog

    def _make_runtime(self) -> Runtime:
        if self._kind == "instant":
            return LoggedRuntime(self.log)
        runtime = super()._make_runtime()
        assert isinstance(runtime, ProcessRuntime)
        runtime.cgroups.log.append(self._written)
        return runtime

    def _written(self, write: Write) -> None:
        folder = Path(write.cgroup)
        if folder.name == names.CONTAINER_COMPUTE and write.file in ("memory.max", "memory.limit_in_bytes"):
            limit = None if write.value in ("max", "-1") else int(write.value)
            self.log.cgroup(folder.parent.name.removeprefix("pod"), limit)


class Machines:
    """The parts beside the controllers and the agent; those are brought to life by a test."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        recorder: Recorder,
        log: SizeLog,
        audit: list[Object],
        node: EmbeddedNode,
        images: ImageStore,
        make_driver: Callable[[SizeLog, Life], Driver] = LoggedDriver,
    ) -> None:
        self._folder = folder
        self._make_driver = make_driver
        self.node = node
        self.images = images
        self._cluster = cluster
        self._recorder = recorder
        self.log = log
        self.audit = audit
        """Every write to the API, with who made it."""

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @asynccontextmanager
    async def alive(
        self, victim: str = "", dies_after: int | Deed | None = None
    ) -> AsyncIterator[Victim | None]:
        """Controllers and agent at work; the victim dies after so many deeds, or that one, and comes back."""
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
        async with at_work(**{name: life.live() for name, life in lives.items()}):
            yield lives.get(victim)
        self.log.check()

    async def _controllers(self, client: Any, life: Life) -> None:
        await Manager(client, self._recorder).run()

    async def _agent(self, client: Any, life: Life) -> None:
        driver = self._make_driver(self.log, life)
        await NodeAgent(client, NODE, self._folder, {driver.name: driver}, self._recorder).run()


@asynccontextmanager
async def machines(
    folder: Path, allocatable: dict[str, str] = LARGE, disk: Path | None = None
) -> AsyncIterator[Machines]:
    """Real machines when there is a disk to boot from."""
    log = SizeLog(parks=disk is not None)
    audit: list[Object] = []

    def hooks(cluster: Cluster, server: ApiServer) -> None:
        server.api.on_change.append(log.api)
        cluster.url = server.url
        client = cluster.client(names.API_USER)
        server.api.admit.hooks = Admission(
            settings.config,
            vmi=client_lookup(client, VMIS),
            revision=client_lookup(client, CONTROLLERREVISIONS),
        )

    settings = _Settings()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(api(folder, hooks, audit.append))
        recorder = Recorder(cluster.client(names.CONTROLLER_USER), "test")
        stack.push_async_callback(recorder.close)
        images = ImageStore(folder / "images")
        image = disk or folder / "disk.img"
        if disk is None:
            image.write_bytes(bytes(1 << 20))
        images.import_image("hotvirt/demo-guest:latest", image)
        root = cluster.client("kubelet", (names.MASTERS_GROUP,))
        runtime = "instant" if disk is None else "process"
        node = LoggedNode(root, NODE, folder, allocatable, images, runtime=runtime, egress=False)
        node.log = log
        settings.informer = Informer(root, KUBEVIRTS, KubeVirt, namespace=names.NAMESPACE)
        inventory = Inventory(root)
        collector = GarbageCollector(root, inventory)
        parts = {
            "node": node.run(),
            "scheduler": Scheduler(root).run(),
            "inventory": inventory.run(),
            "collector": collector.run(),
            "settings": settings.informer.run(),
        }
        async with at_work(**parts):
            try:
                await node.ready.wait()
                make_driver = LoggedDriver if disk is None else LoggedQemu
                yield Machines(folder, cluster, recorder, log, audit, node, images, make_driver)
            finally:
                if disk is not None:
                    await _end_all(cluster, node)


class _Settings:
    """The KubeVirt object, as admission sees it."""

    informer: Informer[KubeVirt] | None = None

    def config(self) -> ClusterConfig:
        known = self.informer.get(names.NAMESPACE, names.KUBEVIRT_NAME) if self.informer else None
        return cluster_config(known)


async def _end_all(cluster: Cluster, node: EmbeddedNode) -> None:
    """No process of a machine outlives the test."""
    for pod in (await cluster.admin.list(PODS, cluster.namespace)).items:
        with suppress(NotFound):  # it may be on its way out already
            await cluster.admin.delete(PODS, pod["metadata"]["name"], cluster.namespace, grace=0)
    async with asyncio.timeout(120):
        while node._workers:
            await asyncio.wait(node._tasks)
