"""Runs one reconciler: keys of what changed go into a queue, workers take them out one by one.

The reconciler gets a key and nothing else. It reads the caches, computes, and writes the difference; it must
be right whatever happened before and however often it is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from . import metrics
from .errors import ApiError, Conflict
from .informer import Informer, Key
from .rush import Priority, Rush
from .workqueue import ShutDown, WorkQueue

T = TypeVar("T")
Delay = Callable[[T | None, T | None], float]
Urgency = Callable[[T | None, T | None], Priority]
Reconcile = Callable[[Key], Awaitable[float | None]]
log = logging.getLogger(__name__)
LOUD_AFTER = 5
"""Failures of one key before they are warnings: one lost race is not worth a line."""


class Controller:
    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 4,
        resync: float | None = None,
        rush: Rush | None = None,
    ) -> None:
        """`rush`: shared with controllers that work side by side with this one."""
        self.name = name
        self.queue: WorkQueue[Key] = WorkQueue(name, rush=rush)
        self._reconcile = reconcile
        self._workers = workers
        self._resync = resync
        self._sources: list[tuple[Informer[Any], Callable[[Any], Iterable[Key]]]] = []

    def watch(
        self,
        informer: Informer[T],
        keys: Callable[[T], Iterable[Key]],
        delay: Delay[T] | None = None,
        urgency: Urgency[T] | None = None,
    ) -> None:
        """Reconcile `keys(object)` whenever an object of `informer` changes (its old and its new keys).

        `delay(old, new)` says for how many seconds a change may wait for more of them, `urgency(old, new)`
        behind what it goes.
        """
        self._sources.append((informer, keys))

        def changed(old: T | None, new: T | None) -> None:
            # What is there at the start was reconciled before, most likely: it waits behind what happens now.
            priority = urgency(old, new) if urgency is not None else Priority.CHANGE
            if not informer.has_synced:
                priority = Priority.RESYNC
            later = delay(old, new) if delay is not None else 0.0
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add_after(key, later, priority)

        informer.add_handler(changed)

    async def run(self) -> None:
        """Work until cancelled, from when all caches are filled. Whoever made the informers runs them."""
        for informer, _ in self._sources:
            await informer.synced()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"{self.name} worker {number}")
            if self._resync is not None:
                tasks.create_task(self._resync_for_ever(self._resync), name=f"{self.name} resync")

    async def settled(self) -> None:
        """Wait until nothing waits and nobody works: for tests. Keys to be looked at later do not count."""
        for informer, _ in self._sources:
            await informer.synced()
        await self.queue.idle()

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            try:
                await self._reconcile_one(key)
            finally:
                self.queue.done(key)

    async def _reconcile_one(self, key: Key) -> None:
        try:
            again = await self._reconcile(key)
        except Conflict as conflict:
            log.debug("%s: %s/%s changed meanwhile: %s", self.name, *key, conflict)
            self._retry(key, "conflict")
        except ApiError as error:
            if error.namespace_ends:
                log.debug("%s: %s/%s goes with its namespace: %s", self.name, *key, error)
                self.queue.forget(key)  # its own end brings us back
                return
            level = logging.WARNING if self.queue.failures(key) >= LOUD_AFTER else logging.INFO
            log.log(level, "%s: %s/%s will be tried again: %s", self.name, *key, error)
            self._retry(key, "error")
        except Exception:
            log.exception("%s: %s/%s failed and will be tried again", self.name, *key)
            self._retry(key, "error")
        else:
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, again)
            self._count("success" if again is None else "requeue_after")

    def _retry(self, key: Key, result: str) -> None:
        self.queue.add_rate_limited(key)
        self._count(result)

    def _count(self, result: str) -> None:
        metrics.counter(metrics.RECONCILES, self.name, result).inc()

    async def _resync_for_ever(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            for informer, keys in self._sources:
                for obj in informer.list():
                    for key in keys(obj):
                        self.queue.add(key, Priority.RESYNC)
