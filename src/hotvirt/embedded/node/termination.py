"""Ending a Pod: preStop, SIGTERM, and SIGKILL when its grace period is over."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hotvirt.api import meta
from hotvirt.api.pods import Container, Pod

from . import launch
from .runtime import PodRuntime

log = logging.getLogger(__name__)
DEFAULT_GRACE = 30


class Termination:
    """Runs from the first sign of deletion to the last SIGKILL. The deadline may come closer on the way."""

    def __init__(self, runtime: PodRuntime, folder: Path, fields: Callable[[Pod], launch.Fields]) -> None:
        self._runtime = runtime
        self._folder = folder
        self._fields = fields
        self._deadline = float("inf")
        self._nearer = asyncio.Event()
        self._begun = time.time()
        self._task: asyncio.Task[None] | None = None

    def update(self, pod: Pod) -> None:
        """Begin, or take over a shorter grace period."""
        deadline = self._deadline_of(pod)
        if deadline < self._deadline:
            self._deadline = deadline
            self._nearer.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(pod), name=f"end of {pod.metadata.name}")

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()

    def _deadline_of(self, pod: Pod) -> float:
        """deletionTimestamp already has the grace period in it; without one (an orphan) it begins now."""
        grace = pod.metadata.deletion_grace_period_seconds
        if grace == 0:
            return 0.0
        if pod.metadata.deletion_timestamp:
            return meta.parse_time(pod.metadata.deletion_timestamp)
        if pod.spec.termination_grace_period_seconds is not None:
            return self._begun + pod.spec.termination_grace_period_seconds
        return self._begun + DEFAULT_GRACE

    async def _run(self, pod: Pod) -> None:
        polite = asyncio.create_task(self._end_politely(pod))
        try:
            while not polite.done() and (left := self._deadline - time.time()) > 0:
                self._nearer.clear()
                nearer = asyncio.ensure_future(self._nearer.wait())
                await asyncio.wait([polite, nearer], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                nearer.cancel()
            for name, run in self._runtime.containers().items():
                if run.running:
                    self._runtime.signal(name, signal.SIGKILL)
        finally:
            polite.cancel()
            await asyncio.wait([polite])

    async def _end_politely(self, pod: Pod) -> None:
        await asyncio.gather(*(self._end_container(pod, container) for container in pod.spec.containers))

    async def _end_container(self, pod: Pod, container: Container) -> None:
        run = self._runtime.containers().get(container.name)
        if run is None or not run.running:
            return
        try:
            await self._pre_stop(pod, container)
        except (OSError, launch.LaunchError) as error:
            log.warning("preStop of %s/%s failed: %s", pod.metadata.name, container.name, error)
        if self._runtime.signal(container.name, signal.SIGTERM):
            await self._until_ended(container.name)

    async def _pre_stop(self, pod: Pod, container: Container) -> None:
        command = launch.pre_stop(container, self._folder, self._fields(pod))
        left = self._deadline - time.time()
        if command is None or left <= 0:
            return
        result = await self._runtime.execute(command, left)
        if result.exit_code:
            log.warning("preStop of %s/%s failed: %s", pod.metadata.name, container.name, result.output)

    async def _until_ended(self, name: str) -> None:
        ended = asyncio.Event()

        def look() -> None:
            if not self._runtime.containers()[name].running:
                ended.set()

        stop = self._runtime.on_change(look)
        try:
            look()
            await ended.wait()
        finally:
            stop()
