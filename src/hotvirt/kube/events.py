"""Kubernetes Events: what happened, for people. Never blocks, never fails its caller, never floods the API.

As client-go: the same event again raises `count` of the one that exists; many similar ones about one object
become one; an object that produces too many is cut off for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hotvirt.api import meta
from hotvirt.api.resources import EVENTS

from .backoff import Backoff
from .client import Client
from .errors import ApiError, NotFound, ServerError, TooManyRequests, Unreachable
from .rush import LONGEST_BEHIND, Rush
from .transport import RateLimit

log = logging.getLogger(__name__)
V = TypeVar("V")
REMEMBERED = 4096
QUEUE_SIZE = 20_000
"""Two for each of 10,000 VMs that are made at once."""
SIMILAR = 10
SIMILAR_WITHIN = 600.0
BURST_PER_OBJECT = 25
EVENTS_PER_SECOND = 1 / 300
CLOSE_WITHIN = 5.0
BEHIND = 0.1
"""Seconds that an event waits for others: what it tells of goes first, and needs the API itself."""
RETRIES = 6


class _Memory(OrderedDict[Any, V], Generic[V]):
    """The most recently used things only."""

    def remember(self, key: Any, make: Callable[[], V]) -> V:
        if key not in self:
            self[key] = make()
            if len(self) > REMEMBERED:
                self.popitem(last=False)
        self.move_to_end(key)
        return self[key]


@dataclass
class _Similar:
    messages: set[str]
    since: float


@dataclass
class _Known:
    name: str = ""
    namespace: str = ""
    count: int = 0


class Recorder:
    def __init__(
        self,
        client: Client,
        component: str,
        host: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._client = client
        self._component = component
        self._host = host
        self._clock = clock
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(QUEUE_SIZE)
        self._lost = 0
        self._rush: Rush | None = None
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._limits: _Memory[RateLimit] = _Memory()
        self._similar: _Memory[_Similar] = _Memory()
        self._known: _Memory[_Known] = _Memory()

    def go_behind(self, rush: Rush) -> None:
        """Send only while nothing waits to be done there, or what was to be told gets old."""
        self._rush = rush

    def event(self, obj: Any, type: str, reason: str, message: str) -> None:
        """Say that `reason` happened to `obj` (a typed object or a dict). `type` is Normal or Warning."""
        reference = object_reference(obj)
        about = (reference["kind"], reference.get("namespace"), reference["name"], reference.get("uid"))
        limit = self._limits.remember(
            about, lambda: RateLimit(EVENTS_PER_SECOND, BURST_PER_OBJECT, self._clock)
        )
        if not limit.allow():
            log.debug("too many events about %s, this one is left out: %s", about, message)
            return
        message, key = self._aggregate((about, type, reason), message)
        event = {
            "key": key,
            "about": reference,
            "type": type,
            "reason": reason,
            "message": message[:1024],
            "time": meta.now(),
            "queued": self._clock(),
        }
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            if not self._lost:
                log.warning("the API takes no events: %d wait, what comes now is left out", QUEUE_SIZE)
            self._lost += 1
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="events")

    def _aggregate(self, group: tuple[Any, ...], message: str) -> tuple[str, tuple[Any, ...]]:
        """The message to use and what the event is counted under."""
        similar = self._similar.remember(group, lambda: _Similar(set(), self._clock()))
        if self._clock() - similar.since > SIMILAR_WITHIN:
            similar.messages, similar.since = set(), self._clock()
        if message not in similar.messages and len(similar.messages) >= SIMILAR:
            return f"(combined from similar events): {message}", (*group, None)
        similar.messages.add(message)
        return message, (*group, message)

    async def _send_all(self) -> None:
        while True:
            if self._queue.empty():
                event = await self._queue.get()
                await self._let_others_go_first()
            else:
                event = self._queue.get_nowait()
            await self._let_the_rush_pass(event)
            if self._lost:
                log.warning("the API takes events again; %d were left out", self._lost)
                self._lost = 0
            try:
                await self._send_with_patience(event)
            except ApiError as error:
                log.log(
                    logging.DEBUG if error.namespace_ends else logging.WARNING,
                    "an event could not be written: %s %s: %s",
                    event["reason"],
                    event["message"],
                    error,
                )
            finally:
                self._queue.task_done()

    async def _let_others_go_first(self) -> None:
        try:
            async with asyncio.timeout(BEHIND):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _let_the_rush_pass(self, event: dict[str, Any]) -> None:
        patience = event["queued"] + LONGEST_BEHIND - self._clock()
        if self._rush is None or not self._rush.is_on or patience <= 0 or self._hurry.is_set():
            return
        waits = [asyncio.create_task(self._rush.over()), asyncio.create_task(self._hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _send_with_patience(self, event: dict[str, Any]) -> None:
        """An API that is away for a moment comes back; one that refuses does not change its mind."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        for _ in range(RETRIES):
            try:
                return await self._send(event)
            except (Unreachable, ServerError, TooManyRequests) as error:
                log.debug("an event waits for the API: %s", error)
                await self._sleep(backoff.next())
        return await self._send(event)

    async def _send(self, event: dict[str, Any]) -> None:
        known = self._known.remember(event["key"], _Known)
        if known.name:
            change = {
                "count": known.count + 1,
                "lastTimestamp": event["time"],
                "message": event["message"],
            }
            try:
                await self._client.patch(EVENTS, known.name, change, known.namespace, cls=bytes)
            except NotFound:
                known.name = ""  # it expired, or its namespace went: write it anew
            else:
                known.count += 1
                return
        created = self._new(event)
        await self._client.create(EVENTS, created, created["metadata"]["namespace"], cls=bytes)
        known.name = created["metadata"]["name"]
        known.namespace = created["metadata"]["namespace"]
        known.count = 1

    def _new(self, event: dict[str, Any]) -> dict[str, Any]:
        about = event["about"]
        stamp = event["time"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{about['name'][:236]}.{time.time_ns():016x}",
                "namespace": about.get("namespace") or "default",
            },
            "involvedObject": about,
            "type": event["type"],
            "reason": event["reason"],
            "message": event["message"],
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }

    async def flush(self) -> None:
        """Wait until all events so far are written."""
        self._hurry.set()
        await self._queue.join()
        self._hurry.clear()

    async def close(self) -> None:
        """Write what is left, for a few seconds at most, and stop."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self.flush()
        except TimeoutError:
            log.warning("%d events were not written before the end", self._queue.qsize())
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None


def object_reference(obj: Any) -> dict[str, Any]:
    if isinstance(obj, dict):
        metadata = obj.get("metadata") or {}
        found = {
            "apiVersion": obj.get("apiVersion"),
            "kind": obj.get("kind"),
            "name": metadata.get("name"),
            "namespace": metadata.get("namespace"),
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
    else:
        found = {
            "apiVersion": obj.api_version,
            "kind": obj.kind,
            "name": obj.metadata.name,
            "namespace": obj.metadata.namespace,
            "uid": obj.metadata.uid,
            "resourceVersion": obj.metadata.resource_version,
        }
    return {key: value for key, value in found.items() if value}
