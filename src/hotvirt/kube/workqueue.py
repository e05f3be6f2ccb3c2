"""The queue between what changed and the reconciler, in the shape of client-go's.

Invariants: a key waits at most once (`_dirty`); a key is worked on by one worker at a time (`_processing`); a
key added while it is worked on is worked on once more afterwards; nothing added is forgotten.
Which of them comes next is a matter of priority, over all queues that share a `Rush`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from . import metrics
from .rush import LONGEST_BEHIND, Priority, Rush

K = TypeVar("K", bound=Hashable)
FIRST_RETRY = 0.005
LONGEST_RETRY = 1000.0


class ShutDown(Exception):
    """The queue is closed and empty."""


class WorkQueue(Generic[K]):
    def __init__(
        self, name: str = "", *, rush: Rush | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._clock = clock
        self._rush = rush or Rush()
        self._rush.join(self)
        self._waiting: dict[Priority, OrderedDict[K, None]] = {
            priority: OrderedDict() for priority in Priority
        }
        self._overdue: asyncio.TimerHandle | None = None
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
        self._dirty[key] = (priority, known[1] if known else self._clock())
        self._idle.clear()
        if key not in self._processing:
            if known is not None:
                del self._waiting[known[0]][key]
            self._enqueue(key, priority)
        elif known is None:
            self._both += 1

    def _enqueue(self, key: K, priority: Priority) -> None:
        self._waiting[priority][key] = None
        self._depth.set(len(self))
        if priority is not Priority.RESYNC:
            self._rush.grew()
        if self._rush.holds_back(priority):
            self._lift_later(LONGEST_BEHIND)
        else:
            self._wake()

    def waits(self, up_to: Priority) -> bool:
        return any(line for priority, line in self._waiting.items() if priority <= up_to)

    def look_again(self) -> None:
        """Wake as many as there are keys for."""
        for priority, line in self._waiting.items():
            if line and not self._rush.holds_back(priority):
                for _ in range(min(len(line), len(self._getters))):
                    self._wake()

    def _lift_later(self, delay: float) -> None:
        if self._overdue is None and not self._closed:
            self._overdue = asyncio.get_running_loop().call_later(delay, self._lift)

    def _lift(self) -> None:
        """What has waited long enough for more urgent things is urgent itself."""
        self._overdue = None
        left: list[float] = []
        for line in (self._waiting[Priority.REPORT], self._waiting[Priority.MIRROR]):
            while line:
                key = next(iter(line))
                if (due := self._dirty[key][1] + LONGEST_BEHIND - self._clock()) > 0:
                    left.append(due)
                    break
                self.add(key, Priority.CHANGE)
        if left:
            self._lift_later(min(left))

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
            for priority, line in self._waiting.items():
                if line and (self._closed or not self._rush.holds_back(priority)):
                    return self._begin(line)
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

    def _begin(self, line: OrderedDict[K, None]) -> K:
        key, _ = line.popitem(last=False)
        _, added = self._dirty.pop(key)
        if not line:
            self._rush.shrank()
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
        if self._overdue is not None:
            self._overdue.cancel()
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
