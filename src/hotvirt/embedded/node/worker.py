"""One Pod of the node, from the moment it is bound to the moment it is gone.

Each wake-up looks at everything anew: what the API asks for, what the runtime shows, what was promised. A
worker of a node that was killed is made again from the Pod's folder and goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotvirt import __version__
from hotvirt.api import codec, meta
from hotvirt.api.pods import Pod
from hotvirt.api.resources import PODS
from hotvirt.embedded.images import ImageStore
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError, Conflict, NotFound
from hotvirt.kube.events import Recorder

from . import launch, resize
from .cgroups import CgroupError
from .logs import last_words
from .resizer import Resizer
from .runtime import ContainerRun, PodRuntime, Runtime, RuntimeFailure
from .sizes import Amounts, Ledger, SizeFile, asked_sizes, most_requests, pod_requests
from .status import Knowledge, Waiting, all_but_status, difference_of, pod_status
from .termination import Termination
from .volumes import VolumeError, Volumes

log = logging.getLogger(__name__)
RETRY_FIRST, RETRY_MOST = 0.5, 10.0
# The kubelet shows ErrImagePull when it tries and ImagePullBackOff while it waits.
PULL_SHOWN = 2.0
# What was done is noted on the disk behind the report of it: whoever forgets it does it once more.
NOTED_WITHIN = 0.05


@dataclass
class NodeContext:
    """What the workers share."""

    client: Client
    name: str
    state_dir: Path
    images: ImageStore
    runtime: Runtime
    recorder: Recorder
    allocatable: Amounts
    address: str
    ledger: Ledger
    room_changed: Callable[[], None]
    sandbox_made: Callable[[], None]
    launcher: Sequence[str] = launch.INSTALLED_LAUNCHER

    def folder(self, uid: str) -> Path:
        return self.state_dir / "pods" / uid


class PodWorker:
    def __init__(self, node: NodeContext, pod: Pod, raw: dict[str, Any]) -> None:
        self.pod = pod
        self._raw = raw
        self._node = node
        self._folder = node.folder(pod.metadata.uid)
        self.wake = asyncio.Event()
        self.gone_from_api = False
        self.waits_for_image = False
        self.ended = asyncio.Event()
        """The Pod's containers have ended, or never will run."""
        self._runtime: PodRuntime | None = None
        self._sizes = SizeFile(self._folder)
        self._known = Knowledge(host_address=node.address, start_time=pod.status.start_time or meta.now())
        self._known.images = {
            c.image: f"{c.image.partition('@')[0]}@hotvirt:{__version__}" for c in pod.spec.containers
        }
        self._resizer = Resizer(self._sizes, self._known, self._event)
        self._termination: Termination | None = None
        self._released = False
        self._last_words: dict[str, str] = {}
        self._failures = 0
        self._pull_since = 0.0
        self._end_listeners: list[Callable[[], None]] = []
        self._finished = False
        self._reporting = False
        """Our own status is on its way: when the watch shows it, that is no news."""

    # What others ask

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def started(self) -> bool:
        return bool(self._runtime and self._runtime.started)

    def update(self, pod: Pod, raw: dict[str, Any]) -> None:
        before = self._raw
        if self._take(pod, raw) and not (self._reporting and all_but_status(raw) == all_but_status(before)):
            self.wake.set()

    def _take(self, pod: Pod, raw: dict[str, Any]) -> bool:
        """Unless it is older than ours: the watch and the answer to our own write overtake each other."""
        newer = int(pod.metadata.resource_version) > int(self.pod.metadata.resource_version)
        if newer:
            self.pod, self._raw = pod, raw
        return newer

    def _book(self) -> None:
        """Note what this Pod takes from the node, from its admission to the end of its containers."""
        sizes = self._sizes
        held = None
        if sizes.allocated and not self.ended.is_set():
            held = most_requests(self.pod.spec, sizes.allocated, sizes.actual or sizes.allocated)
        if self._node.ledger.book(self.uid, held):
            self._node.room_changed()

    def container_started(self, name: str) -> bool:
        return name in self._known.runs

    def container_ended(self, name: str) -> bool:
        run = self._known.runs.get(name)
        return self.ended.is_set() or (run is not None and not run.running)

    @property
    def resize_deferred(self) -> bool:
        return self._resizer.deferred

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._end_listeners.append(listener)
        return lambda: self._end_listeners.remove(listener)

    def _is_finished(self) -> bool:
        return self._finished

    # The loop

    async def run(self) -> None:
        try:
            while True:
                self.wake.clear()
                again = await self._sync_safely()
                if self._is_finished():
                    return
                try:
                    await asyncio.wait_for(self.wake.wait(), again)
                except TimeoutError:
                    continue
        finally:
            self._node.ledger.book(self.uid, None)
            with contextlib.suppress(OSError):
                self._resizer.save()
            if self._termination:
                self._termination.cancel()
            if self._runtime:
                self._runtime.close()

    async def _sync_safely(self) -> float | None:
        try:
            again = await self._sync()
        except Conflict:
            return None  # the newer Pod is on its way to us
        except NotFound:
            return None
        except (ApiError, RuntimeFailure, OSError) as error:
            log.warning("Pod %s/%s: %s", *self.pod.metadata.key, error)
        except Exception:
            log.exception("Pod %s/%s failed and will be tried again", *self.pod.metadata.key)
        else:
            if again is None:
                self._failures = 0
            return again
        self._failures += 1
        return self._backoff()

    def _backoff(self) -> float:
        return float(min(RETRY_FIRST * 2 ** min(self._failures, 10), RETRY_MOST))

    async def _sync(self) -> float | None:
        again: float | None = None
        self._resizer.save()
        if self._runtime is None and self._folder.exists():
            self._attach()
        self._look()
        deleting = self.gone_from_api or self.pod.metadata.deleting
        if self.started and not self.ended.is_set() and not deleting:
            again = await self._resize()
        else:
            if deleting:
                self._terminate()
            elif not self._over_for_good() and not self.started:
                again = await self._bring_up()
            self._look()
        await self._report()
        if self.ended.is_set() and not self._released:
            await self._release()
        if deleting and self.ended.is_set() and self._released:
            await self._remove()
        return again

    def _over_for_good(self) -> bool:
        return self._known.rejected is not None or self.pod.status.phase in ("Succeeded", "Failed")

    def _attach(self) -> None:
        self._runtime = self._node.runtime.pod(self.uid, self._folder)
        self._runtime.on_change(self.wake.set)

    def _look(self) -> None:
        """Take in what the runtime shows."""
        known = self._known
        if self._runtime:
            before = known.runs
            known.runs = {n: self._explained(n, run) for n, run in self._runtime.containers().items()}
            for name in known.runs.keys() - before.keys():
                self._say_started(name)
            known.address = self._runtime.address or known.address
            known.sandbox = known.sandbox or self.started
        known.allocated, known.actual = self._sizes.allocated, self._sizes.actual
        if not self.ended.is_set() and self._has_ended():
            self.ended.set()
        if self.ended.is_set():
            known.sandbox = False
        self._book()
        for listener in list(self._end_listeners):
            listener()

    def _say_started(self, name: str) -> None:
        """Unless the API has it already, from a node that was here before us."""
        status = self._raw.get("status") or {}
        statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        if not any(each["name"] == name and each.get("containerID") for each in statuses):
            self._event("Normal", "Started", f"Started container {name}")

    def _explained(self, name: str, run: ContainerRun) -> ContainerRun:
        """With the end of its log as the message, where the container failed and the Pod asks for that."""
        if not run.exit_code or run.message or not self._wants_last_words(name):
            return run
        if name not in self._last_words:
            self._last_words[name] = last_words(self._folder / "logs" / name)
        return dataclasses.replace(run, message=self._last_words[name])

    def _wants_last_words(self, name: str) -> bool:
        spec = self._raw.get("spec") or {}
        containers = [*spec.get("initContainers", []), *spec.get("containers", [])]
        policies = {c["name"]: c.get("terminationMessagePolicy") for c in containers}
        return policies.get(name) == "FallbackToLogsOnError"

    def _has_ended(self) -> bool:
        if not self.started:
            terminating = self._termination is not None or self.pod.metadata.deleting or self.gone_from_api
            return terminating or self._over_for_good()
        for container in self.pod.spec.init_containers:
            run = self._known.runs.get(container.name)
            if run is not None and run.exit_code not in (None, 0):
                return True
        runs = [self._known.runs.get(container.name) for container in self.pod.spec.containers]
        return all(run is not None and not run.running for run in runs)

    # Starting

    async def _bring_up(self) -> float | None:
        if self._node.runtime.runs_processes and (why := launch.why_not_ours(self.pod)):
            self._reject(
                "NotHotvirt",
                f"This node runs Hotvirt's own Pods only, because a Pod is a process here: {why}.",
            )
            return None
        if not self._admit():
            return None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._save_pod()
        if not self._sizes.allocated:
            self._sizes.allocated = asked_sizes(self.pod)
            self._sizes.generation = self.pod.metadata.generation
            self._sizes.save()
            self._book()
        if self._runtime is None:
            self._attach()
        volumes = Volumes(self._node.client, self._node.images, self._node.state_dir, self.pod, self._folder)
        if missing := volumes.missing_images():
            return self._wait_for_images(missing)
        self._images_are_here()
        await self._report()  # ContainerCreating, while the rest is made
        try:
            await volumes.make()
        except VolumeError as error:
            return self._wait_and_retry("FailedMount", f"MountVolume.SetUp failed: {error}")
        return await self._start()

    async def _start(self) -> float | None:
        assert self._runtime is not None
        pod_limits, container_limits = resize.limits_of(self.pod, self._sizes.allocated)
        try:
            await self._runtime.prepare(pod_limits, container_limits)
            self._known.sandbox = True
            self._known.address = self._runtime.address
            self._node.sandbox_made()
            plan = launch.pod_launch(self.pod, self._folder, self._fields(self.pod))
            if self.pod.metadata.deleting or self.gone_from_api:
                self.wake.set()
                return None
            await self._runtime.start(plan)
        except launch.LaunchError as error:
            self._known.waiting = {
                container.name: Waiting(error.reason, str(error)) for container in self.pod.spec.containers
            }
            return self._wait_and_retry("Failed", f"Error: {error}")
        except (RuntimeFailure, CgroupError) as error:
            return self._wait_and_retry("FailedCreatePodSandBox", str(error))
        self._sizes.actual = dict(self._sizes.allocated)
        self._sizes.save()
        self._known.waiting = {}
        return None

    def _fields(self, pod: Pod) -> launch.Fields:
        address = self._runtime.address if self._runtime else ""
        return launch.Fields(pod, address, self._node.address, self._node.launcher)

    def _admit(self) -> bool:
        """The last word on room: the scheduler may have counted on something else."""
        if self._sizes.allocated:
            return True
        used = self._node.ledger.total(without=self.uid)
        refusal = resize.why_not_now(pod_requests(self.pod.spec), used, self._node.allocatable)
        if refusal is None:
            return True
        self._reject(f"OutOf{refusal.resource}", f"Pod was rejected: {refusal.message}")
        return False

    def _reject(self, reason: str, message: str) -> None:
        self._known.rejected = (reason, message)
        self._event("Warning", reason, message)

    def _wait_for_images(self, missing: dict[str, str]) -> float | None:
        now = asyncio.get_running_loop().time()
        first = not self.waits_for_image
        if first:
            self.waits_for_image = True
            self._pull_since = now
        backing_off = now - self._pull_since >= PULL_SHOWN
        for container in (*self.pod.spec.init_containers, *self.pod.spec.containers):
            mounted = {mount.name for mount in container.volume_mounts}
            reference = next((missing[name] for name in missing if name in mounted), None)
            if reference is None:
                continue
            why = (
                f'image "{reference}" is not in the image store of this machine: '
                f"import it with `hotvirt image import {reference} FILE`"
            )
            if first:
                self._event("Warning", "Failed", f'Failed to pull image "{reference}": {why}')
            if backing_off:
                text = f'Back-off pulling image "{reference}": ErrImagePull: {why}'
                self._known.waiting[container.name] = Waiting("ImagePullBackOff", text)
            else:
                self._known.waiting[container.name] = Waiting("ErrImagePull", why)
        return None if backing_off else PULL_SHOWN

    def _images_are_here(self) -> None:
        if self.waits_for_image:
            self.waits_for_image = False
            self._known.waiting = {}

    async def _resize(self) -> float | None:
        assert self._runtime is not None
        used = self._node.ledger.total(without=self.uid)
        self._resizer.allocate(self.pod, used, self._node.allocatable)
        self._book()
        # Done at once or refused: there is no time between in which it would be said to be in progress.
        if not self._resizer.must_actuate:
            return None
        done = self._resizer.actuate(self.pod, self._runtime)
        self._known.actual = self._sizes.actual
        self._book()
        if done:
            asyncio.get_running_loop().call_later(NOTED_WITHIN, self._resizer.save)
            return None
        self._failures += 1
        return self._backoff()

    def _wait_and_retry(self, reason: str, message: str) -> float:
        self._event("Warning", reason, message)
        self._failures += 1
        return self._backoff()

    # Ending

    def _terminate(self) -> None:
        if self._termination is None and self.started and not self.ended.is_set():
            for container in self.pod.spec.containers:
                self._event("Normal", "Killing", f"Stopping container {container.name}")
            assert self._runtime is not None
            self._termination = Termination(self._runtime, self._folder, self._fields)
        if self._termination:
            self._termination.update(self.pod)

    async def _release(self) -> None:
        if self._runtime:
            await self._runtime.release()
        self._released = True
        # Logs and records stay until the Pod is deleted; disks and sockets of what ended are of no use any
        # more.
        for name in ("volumes", "rootfs"):
            await asyncio.to_thread(shutil.rmtree, self._folder / name, True)

    async def _remove(self) -> None:
        if not self.gone_from_api:
            try:
                await self._node.client.delete(
                    PODS, self.pod.metadata.name, self.pod.metadata.namespace, grace=0, uid=self.uid
                )
            except (NotFound, Conflict):
                log.debug("Pod %s/%s is gone already", *self.pod.metadata.key)
        if self._runtime:
            self._runtime.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)
        self._finished = True

    # Saying so

    async def _report(self) -> None:
        if self.gone_from_api:
            return
        raw_status = self._raw.get("status") or {}
        if self.pod.status.phase in ("Succeeded", "Failed") and not self._known.runs:
            return  # it ended long ago, or was rejected: nothing new can be known of it
        status = pod_status(self.pod, raw_status, self._known)
        difference = difference_of(raw_status, status)
        if not difference:
            return
        patch = {
            "metadata": {"uid": self.uid, "resourceVersion": self.pod.metadata.resource_version},
            "status": difference,
        }
        key = self.pod.metadata.name, patch, self.pod.metadata.namespace
        before = self.pod.metadata.resource_version
        self._reporting = True
        try:
            raw = await self._node.client.patch(PODS, *key, subresource="status")
        except Conflict:
            if self.pod.metadata.resource_version != before:
                self.wake.set()  # the newer Pod has come meanwhile
            raise
        finally:
            self._reporting = False
        written = codec.convert(raw, Pod)
        self._take(written, raw)
        if self.pod.metadata.resource_version != written.metadata.resource_version:
            self.wake.set()  # somebody wrote behind us

    def _event(self, type: str, reason: str, message: str) -> None:
        if not self.gone_from_api:
            self._node.recorder.event(self.pod, type, reason, message)

    def _save_pod(self) -> None:
        """Who this folder belongs to and how it is stopped, for a node that finds it without its Pod."""
        target = self._folder / "pod.json"
        temporary = target.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(self._raw))
        temporary.replace(target)
