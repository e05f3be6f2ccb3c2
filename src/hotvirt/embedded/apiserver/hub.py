"""Watches: who wants to hear of which changes, and what is waiting for each of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from .log import logger
from .store import ADDED, DELETED, MODIFIED, Change, Entry

BACKLOG: Final = 10_000
"""A watch that is so many events behind is closed: its client resumes or lists again."""

PATIENCE: Final = 0.05
"""Seconds for which those who tidy up let the others go first."""

Render = Callable[[str, Entry], bytes]
Match = Callable[[Entry], bool]


class Alarm:
    """Rings for those who let others go first: for all of them together.

    What each has then is a past that all of them share: nobody hears that an owner is gone before somebody
    else in the same part hears that it was let go.
    """

    def __init__(self, after: float = PATIENCE) -> None:
        self._after = after
        self._held: dict[Watch, None] = {}

    def hold(self, watch: Watch) -> None:
        if not self._held:
            asyncio.get_running_loop().call_later(self._after, self._ring)
        self._held[watch] = None

    def _ring(self) -> None:
        held, self._held = self._held, {}
        for watch in held:
            watch.release()


class Watch:
    """One client's view of the changes of one resource."""

    def __init__(
        self,
        resource: str,
        namespace: str,
        match: Match | None,
        form: object,
        render: Render,
        backlog: int = BACKLOG,
        alarm: Alarm | None = None,
    ) -> None:
        """`alarm`: changes wait until it rings."""
        self.resource = resource
        self.namespace = namespace
        self.closed = False
        self.abort: Callable[[], None] = lambda: None
        self.revision = 0
        self._match = match
        self._form = form
        self._render = render
        self._backlog = backlog
        self._alarm = alarm
        self._held: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._listener: Callable[[bytes], None] | None = None

    def hears(self) -> bool:
        return self._listener is not None

    def hear(self, listener: Callable[[bytes], None] | None) -> None:
        """Who is called with each change when it happens, as soon as nothing waits before it."""
        self._listener = listener

    def offer(self, change: Change) -> None:
        """Take the change if it concerns this watch; an object that leaves the selection is deleted to it."""
        entry = change.new
        if self.namespace and entry.key[1] != self.namespace:
            return
        type_ = change.type
        match = self._match
        if match is not None:
            was = change.old is not None and match(change.old)
            if type_ == DELETED:
                if not was:
                    return
            elif match(entry):
                type_ = MODIFIED if was else ADDED
            elif was and change.old is not None:
                self._put(self._render(DELETED, with_revision(change.old, entry.rev)), entry.rev)
                return
            else:
                return
        known = (self._form, type_)
        rendered = change.rendered.get(known)
        if rendered is None:
            rendered = change.rendered[known] = self._render(type_, entry)
        self._put(rendered, entry.rev)

    def _put(self, event: bytes, revision: int) -> None:
        if len(self._waiting) + len(self._held) >= self._backlog:
            self.close()
            # Its client does not read: the writing would wait for ever, so the connection is cut.
            self.abort()
            return
        self.revision = revision
        if self._listener is not None and not self._waiting:
            self._listener(event)
            return
        if self._alarm is not None:
            self._held.append(event)
            self._alarm.hold(self)
            return
        self._waiting.append(event)
        self._notify()

    def release(self) -> None:
        """What was held back may go; what comes from now on is held again."""
        self._waiting.extend(self._held)
        self._held.clear()
        self._notify()

    @property
    def behind(self) -> bool:
        """Whether something still waits to be sent."""
        return bool(self._waiting or self._held)

    def push(self, event: bytes) -> None:
        """An event that is no change: a bookmark, an object of the initial state."""
        self._waiting.append(event)
        self._notify()

    def close(self) -> None:
        self.closed = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def take(self, timeout: float) -> bytes:
        """All that is waiting, joined; empty after `timeout` or when the watch is closed."""
        if not self._waiting and not self.closed:
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = loop.call_later(timeout, self._notify)
            try:
                await self._wake
            finally:
                timer.cancel()
                self._wake = None
        joined = b"".join(self._waiting)
        self._waiting.clear()
        return joined


def with_revision(entry: Entry, revision: int) -> Entry:
    """The same object, as its watchers see it leave at a later revision."""
    old = f'"resourceVersion":"{entry.rev}"'.encode()
    return Entry(entry.key, revision, entry.data.replace(old, f'"resourceVersion":"{revision}"'.encode(), 1))


class Hub:
    """Hands every change to the watches of its resource."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[Watch, None]] = {}
        """In the order in which they came."""
        self.closing = False
        self.alarm = Alarm()

    def publish(self, change: Change) -> None:
        """Who is outside is woken first, and has it on its way before our own parts begin to act on it."""
        watches = self._watches.get(change.new.key[0], ())
        for watch in sorted(watches, key=Watch.hears):
            if watch.closed:
                continue
            try:
                watch.offer(change)
            except Exception:
                # The write is done, and the others want to hear of it: this client has to come again.
                logger.exception("a watch of %s cannot show %s", watch.resource, change.new.key)
                watch.close()
        # The change stays in the window for those who resume; what was sent to all need not.
        change.rendered = {}

    def add(self, watch: Watch) -> None:
        self._watches.setdefault(watch.resource, {})[watch] = None
        if self.closing:
            watch.close()

    def remove(self, watch: Watch) -> None:
        watches = self._watches.get(watch.resource)
        if watches is not None:
            watches.pop(watch, None)

    def count(self) -> int:
        return sum(len(watches) for watches in self._watches.values())

    def counts(self) -> dict[str, int]:
        return {resource: len(watches) for resource, watches in self._watches.items() if watches}

    def close_resource(self, resource: str) -> None:
        for watch in self._watches.get(resource, ()):
            watch.close()

    def close(self) -> None:
        """End every watch, now and for those who still come."""
        self.closing = True
        for watches in self._watches.values():
            for watch in watches:
                watch.close()
