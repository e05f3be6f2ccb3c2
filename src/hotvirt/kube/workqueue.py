"""The queue between what changed and the reconciler, in the shape of client-go's.

Invariants: a key waits at most once (`_dirty`); a key is worked on by one worker at a time (`_processing`); a
key added while it is worked on is worked on once more afterwards; nothing added is forgotten.
Two priorities: what a user did goes before what is looked at again for safety's sake (start, resync).
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from . import metrics

K = TypeVar("K", bound=Hashable)
FIRST_RETRY = 0.005
LONGEST_RETRY = 1000.0


class Priority(enum.IntEnum):
    CHANGE = 0
    RESYNC = 1


class ShutDown(Exception):
    """The queue is closed and empty."""


class WorkQueue(Generic[K]):
    def __init__(self, name: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._waiting: dict[Priority, deque[K]] = {priority: deque() for priority in Priority}
        self._dirty: dict[K, tuple[Priority, float]] = {}
        """Keys to be worked on, with their priority and when they were added."""
        self._processing: dict[K, float] = {}
        self._both = 0
        """How many keys are in `_dirty` and in `_processing`."""
        self._delayed: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._depth = metrics.QUEUE_DEPTH.labels(name)
        self._adds = metrics.QUEUE_ADDS.labels(name)
        self._latency = metrics.QUEUE_LATENCY.labels(name)
        self._work = metrics.QUEUE_WORK.labels(name)
        self._retries = metrics.QUEUE_RETRIES.labels(name)
        metrics.QUEUE_UNFINISHED.labels(name).set_function(self._unfinished_seconds)
        metrics.QUEUE_LONGEST.labels(name).set_function(self._longest_seconds)

    def __len__(self) -> int:
        """Keys that wait to be worked on now."""
        return len(self._dirty) - self._both

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        if self._closed:
            return
        known = self._dirty.get(key)
        if known is not None and known[0] <= priority:
            return
        if known is None:
            self._adds.inc()
        # A key that waits with RESYNC and gets CHANGE stands in both lines; get() skips the stale place.
        self._dirty[key] = (priority, known[1] if known else self._clock())
        self._idle.clear()
        if key not in self._processing:
            self._enqueue(key, priority)
        elif known is None:
            self._both += 1

    def _enqueue(self, key: K, priority: Priority) -> None:
        self._waiting[priority].append(key)
        self._depth.set(len(self))
        self._wake()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def add_after(self, key: K, delay: float, priority: Priority = Priority.CHANGE) -> None:
        """Add when `delay` seconds have passed. A key that already waits for an earlier time keeps that."""
        if self._closed:
            return
        if delay <= 0:
            self.add(key, priority)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if (known := self._delayed.get(key)) is not None:
            if known[0] <= due:
                return
            known[1].cancel()
        self._delayed[key] = (due, loop.call_at(due, self._due, key, priority))

    def _due(self, key: K, priority: Priority) -> None:
        del self._delayed[key]
        self.add(key, priority)

    def add_rate_limited(self, key: K) -> float:
        """Add after this key's own backoff, which doubles with each failure; the delay is returned."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(FIRST_RETRY * 2.0 ** min(failures, 60), LONGEST_RETRY)
        self._retries.inc()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts from the shortest delay."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; the caller calls done() with it. Raises ShutDown when closed and empty."""
        while True:
            for priority in Priority:
                line = self._waiting[priority]
                while line:
                    key = line.popleft()
                    entry = self._dirty.get(key)
                    if entry is None or entry[0] != priority or key in self._processing:
                        continue
                    return self._begin(key, entry[1])
            if self._closed:
                raise ShutDown
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    self._wake()
                raise

    def _begin(self, key: K, added: float) -> K:
        del self._dirty[key]
        now = self._clock()
        self._processing[key] = now
        self._latency.observe(max(0.0, now - added))
        self._depth.set(len(self))
        return key

    def done(self, key: K) -> None:
        """The work on this key ended, well or not."""
        started = self._processing.pop(key)
        self._work.observe(max(0.0, self._clock() - started))
        if (entry := self._dirty.get(key)) is not None:
            self._both -= 1
            self._enqueue(key, entry[0])
        elif not self._dirty and not self._processing:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing is waiting and nobody works. Delayed keys do not count."""
        await self._idle.wait()

    def shut_down(self) -> None:
        """No more adds; what waits is still handed out, then get() raises ShutDown."""
        self._closed = True
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)
        self._getters.clear()

    def _unfinished_seconds(self) -> float:
        now = self._clock()
        return sum(now - started for started in self._processing.values())

    def _longest_seconds(self) -> float:
        return self._clock() - min(self._processing.values(), default=self._clock())
