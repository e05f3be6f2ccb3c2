"""The embedded node: registers itself, takes the Pods that are bound to it, adopts those that run already."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotvirt.api import codec, meta
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import LEASES, NAMESPACES, NODES, PODS
from hotvirt.embedded.images import ImageStore
from hotvirt.kube.client import Client
from hotvirt.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer

from . import machine
from .inotify import Inotify
from .instant_runtime import InstantRuntime
from .launch import INSTALLED_LAUNCHER
from .logs import LogOptions, LogRequest, read_log
from .process_runtime import ProcessRuntime
from .runtime import Runtime
from .sizes import Amounts, Ledger
from .worker import NodeContext, PodWorker

log = logging.getLogger(__name__)
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
MOST_PODS = {"process": 250, "instant": 100_000}


class NoSuchLog(LookupError):
    """There is no such Pod or container on this node."""


class EmbeddedNode:
    def __init__(
        self,
        client: Client,
        name: str,
        state_dir: Path,
        allocatable: Mapping[str, Quantity | str] | None,
        images: ImageStore,
        *,
        runtime: str = "process",
        egress: bool = True,
        launcher: Sequence[str] = INSTALLED_LAUNCHER,
    ) -> None:
        self.name = name
        self._client = client
        self._state_dir = state_dir
        self._wanted = {key: Quantity(value) for key, value in (allocatable or {}).items()}
        self._images = images
        self._kind = runtime
        self._egress = egress
        self._launcher = launcher
        self._inotify = Inotify()
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._informer: Informer[Pod] | None = None
        self._context: NodeContext | None = None
        self._capacity: Amounts = {}
        self._notes: list[str] = []
        self.ready = asyncio.Event()
        """The node is registered and has adopted what runs."""

    @property
    def runtime(self) -> Runtime:
        assert self._context is not None
        return self._context.runtime

    @property
    def pods_in_cgroups(self) -> bool:
        """Whether each Pod has a cgroup of its own here."""
        runtime = self._context.runtime if self._context is not None else None
        return isinstance(runtime, ProcessRuntime) and runtime.cgroups.usable

    async def run(self) -> None:
        """Until cancelled. Pods go on running."""
        for folder in ("pods", "volumes", "images"):
            (self._state_dir / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        recorder = Recorder(self._client, "kubelet", self.name)
        has = machine.capacity(self._state_dir, MOST_PODS[self._kind])
        context = self._context = NodeContext(
            client=self._client,
            name=self.name,
            state_dir=self._state_dir,
            images=self._images,
            runtime=self._make_runtime(),
            recorder=recorder,
            allocatable=machine.offered(has, self._wanted),
            address=machine.host_address(),
            ledger=Ledger(),
            room_changed=self._room_changed,
            sandbox_made=self._sandbox_made,
            launcher=self._launcher,
        )
        self._capacity = has
        stop_watching = self._inotify.watch(self._images.folder, self._images_changed)
        try:
            await self._register(context)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew_for_ever(), name="node lease")
                await self._take_pods(tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            stop_watching()
            context.runtime.close()
            self._inotify.close()
            await recorder.close()

    def _make_runtime(self) -> Runtime:
        if self._kind == "instant":
            return InstantRuntime()
        return ProcessRuntime(self._state_dir, self._inotify, egress=self._egress)

    # The Node object and its lease

    async def _register(self, context: NodeContext) -> None:
        wanted = machine.node_object(self.name)
        try:
            await self._client.create(NODES, wanted)
        except AlreadyExists:
            labels = {"metadata": {"labels": wanted["metadata"]["labels"]}}
            await self._client.patch(NODES, self.name, labels)
        await self._report(context)

    async def _report(self, context: NodeContext) -> None:
        self._notes = context.runtime.notes
        for note in self._notes:
            log.warning("%s", note)
        status = machine.node_status(
            self.name, context.address, self._capacity, context.allocatable, self._notes
        )
        await self._client.patch(NODES, self.name, {"status": status}, subresource="status")

    def _sandbox_made(self) -> None:
        """What this machine does not allow may show with the first Pod only."""
        if self._context and self._context.runtime.notes != self._notes:
            self._notes = self._context.runtime.notes
            task = asyncio.create_task(self._report(self._context), name="node status")
            self._tasks.add(task)
            task.add_done_callback(self._reported)

    def _reported(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("the status of node %s was not written: %s", self.name, error)

    async def _renew_for_ever(self) -> None:
        while True:
            try:
                await self._renew()
            except ApiError as error:
                log.warning("the lease of node %s was not renewed: %s", self.name, error)
            await asyncio.sleep(RENEW_SECONDS)

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": meta.now_micro(),
        }
        try:
            await self._client.patch(LEASES, self.name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            node = await self._client.get(NODES, self.name)
            owner = meta.owner_reference(node | {"apiVersion": "v1", "kind": "Node"}, controller=False)
            lease = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self.name, "ownerReferences": [owner]},
                "spec": spec,
            }
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
            try:
                await self._client.create(NAMESPACES, namespace)
            except (AlreadyExists, Conflict):
                log.debug("namespace %s is there", LEASE_NAMESPACE)
            await self._client.create(LEASES, lease, LEASE_NAMESPACE)

    # Pods

    async def _take_pods(self, tasks: asyncio.TaskGroup) -> None:
        informer = self._informer = Informer(
            self._client, PODS, Pod, field_selector=f"spec.nodeName={self.name}"
        )
        tasks.create_task(informer.run(), name="informer of the node's Pods")
        await informer.synced()
        self._find_orphans({pod.metadata.uid for pod in informer.list()})
        informer.add_handler(self._pod_changed)
        ours = {folder.name for folder in (self._state_dir / "pods").iterdir()}
        await self.runtime.forget_all_but(ours | set(self._workers))
        self.ready.set()

    def _find_orphans(self, known: set[str]) -> None:
        """Pods that went from the API while we were away: they are ended like any other."""
        for folder in (self._state_dir / "pods").iterdir():
            if folder.name in known:
                continue
            try:
                raw: dict[str, Any] = json.loads((folder / "pod.json").read_text())
            except (OSError, ValueError):
                raw = {
                    "metadata": {"uid": folder.name, "name": folder.name, "resourceVersion": "0"},
                    "spec": {},
                }
                raw["spec"] = {"nodeName": self.name}
            if raw["spec"].get("nodeName") == self.name:
                log.info("Pod %s is gone from the API: ending what is left of it", raw["metadata"]["name"])
                worker = self._start_worker(codec.convert(raw, Pod), raw)
                worker.gone_from_api = True

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old and (new is None or new.metadata.uid != old.metadata.uid):
            self._pod_gone(old)
        if new is None:
            return
        assert self._informer is not None
        raw = self._informer.raw(*new.metadata.key) or {}
        worker = self._workers.get(new.metadata.uid)
        if worker is None:
            self._start_worker(new, raw)
        else:
            worker.update(new, raw)

    def _pod_gone(self, pod: Pod) -> None:
        worker = self._workers.get(pod.metadata.uid)
        if worker:
            worker.pod = pod
            worker.gone_from_api = True
            worker.wake.set()

    def _start_worker(self, pod: Pod, raw: dict[str, Any]) -> PodWorker:
        assert self._context is not None
        worker = self._workers[pod.metadata.uid] = PodWorker(self._context, pod, raw)
        task = asyncio.create_task(self._work(worker), name=f"Pod {pod.metadata.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return worker

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            self._workers.pop(worker.uid, None)
            self._room_changed()

    def _room_changed(self) -> None:
        """Resizes that had to wait are looked at again, the oldest first."""
        for worker in self._workers.values():
            if worker.resize_deferred:
                worker.wake.set()

    def _images_changed(self) -> None:
        for worker in self._workers.values():
            if worker.waits_for_image:
                worker.wake.set()

    # Logs

    def log(self, pod_uid: str, container: str, options: LogRequest | None = None) -> AsyncIterator[bytes]:
        """What a container printed. Raises ValueError for options that make no sense, NoSuchLog for a Pod
        or container that is not here; reading raises FileNotFoundError for a container that has not started
        yet.
        """
        wanted = LogOptions.of(options)
        wanted.check()
        worker = self._workers.get(pod_uid)
        if worker is None:
            raise NoSuchLog(f"Pod {pod_uid} is not on node {self.name}.")
        names = {c.name for c in (*worker.pod.spec.init_containers, *worker.pod.spec.containers)}
        if container not in names:
            raise NoSuchLog(f"container {container!r} is not in Pod {worker.pod.metadata.name}.")
        return self._read_log(worker, container, wanted)

    async def _read_log(self, worker: PodWorker, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        if not worker.container_started(container):
            raise FileNotFoundError(f"container {container!r} is waiting to start")
        folder = self._state_dir / "pods" / worker.uid / "logs" / container

        def ended() -> bool:
            return worker.container_ended(container)

        async for chunk in read_log(folder, options, self._inotify, ended, worker.on_change):
            yield chunk
