"""The objects: one log table in SQLite, and an image of its newest rows in memory.

Every write is one row of the log; the row number is the revision, which clients see as resourceVersion. A row
names the row that it replaces. Reads never touch the disk: they see the image, which changes only after the
commit.

A durable write is on the disk before anybody sees it. One thread makes these; what is waiting when it comes
round is committed together. The others are safe from the end of any process as soon as they are seen, and
reach the disk a few milliseconds later: a power cut may take the last of them back, all from some revision
on, and the next start never gives these revisions again. Such a write is less work than handing it to the
thread, and is made at once where the thread has nothing to do.

The last rows are kept for a while although they were replaced (the window): watches resume from them, and a
list can be read as it was at an earlier revision.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from .database import Commits, StoreError, Syncer, open_database

__all__ = ["Change", "Entry", "Key", "OutOfSpace", "Store", "StoreError", "WriteFailed"]

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
TYPES: Final = (ADDED, MODIFIED, DELETED)

# Revisions start here, and all below are history that nobody can ask for: as on a cluster, 1 is too old.
FIRST_REVISION: Final = 100
GROUP_LIMIT: Final = 256
# So many writes that wait for nobody are made before others have their turn.
TURN: Final = 8
# Left out at each start: more than can be seen of a store before it is on the disk.
REVISIONS_LEFT_OUT: Final = 1000

Key = tuple[str, str, str]
"""(group resource, namespace or "", name)"""


class OutOfSpace(Exception):
    """The disk is full; nothing was written."""


class WriteFailed(Exception):
    """The disk gives errors; nothing was written."""


class _Labels(msgspec.Struct):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct):
    metadata: _Labels


_labelled = msgspec.json.Decoder(_Labelled)


class Entry:
    """One object at one revision, as JSON."""

    __slots__ = ("_fields", "_labels", "data", "key", "rev")

    def __init__(self, key: Key, rev: int, data: bytes) -> None:
        self.key = key
        self.rev = rev
        self.data = data
        self._labels: dict[str, str] | None = None
        self._fields: dict[tuple[str, ...], Any] | None = None

    @property
    def namespace(self) -> str:
        return self.key[1]

    @property
    def name(self) -> str:
        return self.key[2]

    @property
    def labels(self) -> dict[str, str]:
        if self._labels is None:
            self._labels = _labelled.decode(self.data).metadata.labels
        return self._labels

    def field(self, path: tuple[str, ...]) -> Any:
        """What stands at a path, or None: remembered, for each change is held against several selectors."""
        if self._fields is None:
            self._fields = {}
        if path not in self._fields:
            found = msgspec.json.decode(self.data)
            for name in path:
                found = found.get(name) if isinstance(found, dict) else None
            self._fields[path] = found
        return self._fields[path]


class Change:
    """One committed write. `new` of a deletion is the last state, at the revision of the deletion."""

    __slots__ = ("new", "old", "rendered", "time", "type")

    def __init__(self, type_: str, old: Entry | None, new: Entry, when: float) -> None:
        self.type = type_
        self.old = old
        self.new = new
        self.time = when
        self.rendered: dict[object, bytes] = {}
        """Each form of this event is serialised once, for all watches."""


class _Write:
    __slots__ = ("change", "done", "durable")

    def __init__(self, change: Change, done: asyncio.Future[None], durable: bool) -> None:
        self.change = change
        self.done = done
        self.durable = durable


class _Collection:
    """The objects of one resource, in the order of their names."""

    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Entry] = {}
        self.order: list[tuple[str, str]] = []

    def put(self, entry: Entry) -> None:
        at = entry.key[1:]
        if at not in self.entries:
            bisect.insort(self.order, at)
        self.entries[at] = entry

    def remove(self, at: tuple[str, str]) -> None:
        if self.entries.pop(at, None) is not None:
            del self.order[bisect.bisect_left(self.order, at)]


class Store:
    """Open with `Store(path)`, then `start()` on the running loop."""

    def __init__(
        self,
        path: Path,
        *,
        window_events: int = 10_000,
        window_seconds: float = 600,
        group_limit: int = GROUP_LIMIT,
    ) -> None:
        self.path = path
        self._window_events = window_events
        self._window_seconds = window_seconds
        self._group_limit = group_limit
        self._collections: dict[str, _Collection] = {}
        self.window: deque[Change] = deque()
        self.on_change: Callable[[Change], None] = lambda change: None
        self._ready: list[_Write] = []
        self._queue: queue.SimpleQueue[list[_Write] | Callable[[], None] | None] = queue.SimpleQueue()
        self._handed = 0
        """What the thread has been given and has not done yet."""
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._thread: threading.Thread | None = None
        self._syncer: Syncer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.commits = 0
        self._at_once = 0
        self._db = open_database(path, FIRST_REVISION)
        self._commits = Commits(self._db)
        try:
            self._load()
        except BaseException:
            self._db.close()
            raise

    # Opening ---------------------------------------------------------------------------------------------

    def _load(self) -> None:
        (self.compacted,) = self._db.execute("SELECT compacted FROM meta").fetchone()
        self._rows_gone_up_to = self.compacted
        self.revision: int = self.compacted
        rows = self._db.execute(
            "SELECT rev, type, resource, namespace, name, time, data FROM log ORDER BY rev"
        )
        for rev, type_, resource, namespace, name, when, data in rows:
            entry = Entry((resource, namespace, name), rev, data)
            self._show(Change(TYPES[type_], self.get(entry.key), entry, when))
        left_out = REVISIONS_LEFT_OUT if self.revision > FIRST_REVISION else 0
        self.lost = range(self.revision + 1, self.revision + 1 + left_out)
        """Revisions that somebody may have seen before a power cut, and that will never be."""
        self._next = self.lost.stop

    # Reading ---------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Entry | None:
        collection = self._collections.get(key[0])
        return collection.entries.get(key[1:]) if collection else None

    def entries(self, resource: str, namespace: str = "") -> Iterator[Entry]:
        """All entries of a resource, ordered by namespace and name; of one namespace if it is given."""
        collection = self._collections.get(resource)
        if collection is None:
            return iter(())
        order = collection.order
        if namespace:
            order = order[
                bisect.bisect_left(order, (namespace, "")) : bisect.bisect_left(order, (namespace + "\0", ""))
            ]
        return map(collection.entries.__getitem__, order)

    def list_at(self, resource: str, namespace: str, revision: int) -> list[Entry]:
        """The entries as they were at an earlier revision, which must lie in the window."""
        if revision >= self.revision:
            return list(self.entries(resource, namespace))
        state = {entry.key: entry for entry in self.entries(resource, namespace)}
        for change in reversed(self.window):
            if change.new.rev <= revision:
                break
            key = change.new.key
            if key[0] != resource or (namespace and key[1] != namespace):
                continue
            if change.old is None:
                state.pop(key, None)
            else:
                state[key] = change.old
        return [state[key] for key in sorted(state)]

    def count(self, resource: str) -> int:
        collection = self._collections.get(resource)
        return len(collection.order) if collection else 0

    def resources(self) -> Iterable[str]:
        return self._collections

    def since(self, revision: int) -> Iterator[Change]:
        """The changes of the window after a revision."""
        newer: list[Change] = []
        for change in reversed(self.window):
            if change.new.rev <= revision:
                break
            newer.append(change)
        return reversed(newer)

    # Writing ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._syncer = Syncer(self.path)
        self._thread = threading.Thread(target=self._write_groups, name="api-store", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Write what is waiting and close the file."""
        if self._thread is not None:
            self._hand_over_ready()
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None
        if self._syncer is not None:
            self._syncer.close()
        self._db.close()

    @contextlib.asynccontextmanager
    async def lock(self, key: Key) -> AsyncIterator[None]:
        """Whoever reads an object to write it back holds this, so that no write to it comes between."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    async def write(
        self, key: Key, make: Callable[[int], bytes], *, delete: bool = False, durable: bool = True
    ) -> Entry:
        """Write `make(revision)`. The caller holds the lock of the key."""
        old = self.get(key)
        type_ = DELETED if delete else MODIFIED if old else ADDED
        rev = self._next
        entry = Entry(key, rev, make(rev))
        self._next += 1
        assert self._loop is not None, "start() the store first"
        done: asyncio.Future[None] = self._loop.create_future()
        self._hand_over(_Write(Change(type_, old, entry, time.time()), done, durable))
        if done.done():
            self._at_once += 1
            if self._at_once % TURN == 0:
                await asyncio.sleep(0)  # whoever writes a lot lets others have their turn
        # The write happens even if the client goes away meanwhile: the lock must be held until then.
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done():
                await asyncio.wait([done])
            raise
        return entry

    def _hand_over(self, write: _Write) -> None:
        """To the thread, together with all that the loop has ready now: each commit costs a sync."""
        if not (write.durable or self._ready or self._handed):
            self._finish([write], self._insert([write]))
            return
        self._ready.append(write)
        if len(self._ready) == 1:
            assert self._loop is not None
            self._loop.call_soon(self._hand_over_ready)

    def _hand_over_ready(self) -> None:
        if self._ready:
            self._give(self._ready)
            self._ready = []

    def _give(self, work: list[_Write] | Callable[[], None]) -> None:
        self._handed += 1
        self._queue.put(work)

    def _took(self, count: int) -> None:
        self._handed -= count

    def _write_groups(self) -> None:
        ended = False
        while not ended:
            group: list[_Write] = []
            others: list[Callable[[], None]] = []
            item, taken = self._queue.get(), 0
            while True:
                taken += item is not None
                if item is None:
                    ended = True
                elif callable(item):
                    others.append(item)
                else:
                    group += item
                if len(group) >= self._group_limit:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if group:
                self._commit(group)
            for other in others:
                other()
            self._call_loop(self._took, taken)

    def _commit(self, group: list[_Write]) -> None:
        error = self._insert(group)
        if error is not None and len(group) > 1:
            # One too large for what is left of the disk must not take the others with it.
            for write in group:
                self._answer([write], self._insert([write]))
        else:
            self._answer(group, error)

    def _insert(self, group: list[_Write]) -> BaseException | None:
        rows = [
            (
                write.change.new.rev,
                write.change.old.rev if write.change.old else 0,
                TYPES.index(write.change.type),
                *write.change.new.key,
                write.change.time,
                write.change.new.data,
            )
            for write in group
        ]
        durable = any(write.durable for write in group)
        try:
            self._commits.sync_each(durable)
            if len(rows) > 1:
                self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if len(rows) > 1:
                self._db.execute("COMMIT")
        except Exception as error:  # whatever it is, whoever waits for the write gets it
            with contextlib.suppress(sqlite3.Error):  # a failed COMMIT may have rolled back already
                self._db.execute("ROLLBACK")
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            return OutOfSpace(str(error)) if full else WriteFailed(str(error))
        self.commits += 1
        if not durable and self._syncer is not None:
            self._syncer.sync_soon()
        return None

    def _answer(self, group: list[_Write], error: BaseException | None) -> None:
        self._call_loop(self._finish, group, error)

    def _call_loop(self, call: Callable[..., None], *given: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for the answer any more
            self._loop.call_soon_threadsafe(call, *given)

    def _finish(self, group: list[_Write], error: BaseException | None) -> None:
        for write in group:
            if error is not None:
                if not write.done.done():
                    write.done.set_exception(error)
                continue
            self._show(write.change)
            self.on_change(write.change)
            if not write.done.done():
                write.done.set_result(None)
        if len(self.window) > self._window_events:
            self.compact()
        if self._commits.checkpoint_due(sum(len(write.change.new.data) for write in group)):
            self._give(self._commits.checkpoint)

    def _show(self, change: Change) -> None:
        entry = change.new
        collection = self._collections.get(entry.key[0])
        if collection is None:
            collection = self._collections[entry.key[0]] = _Collection()
        if change.type == DELETED:
            collection.remove(entry.key[1:])
        else:
            collection.put(entry)
        self.revision = max(self.revision, entry.rev)  # the rows of the newest may be gone already
        if entry.rev > self.compacted:
            self.window.append(change)

    # Forgetting ------------------------------------------------------------------------------------------

    def compact(self, *, everything: bool = False) -> None:
        """Forget the changes that are too old or too many."""
        oldest = time.time() - self._window_seconds
        while self.window and (
            everything or len(self.window) > self._window_events or self.window[0].time < oldest
        ):
            self.compacted = self.window.popleft().new.rev
        if self.compacted > self._rows_gone_up_to + 1000 or (everything or not self.window):
            self._give(functools.partial(self._forget_rows, self.compacted))

    def _forget_rows(self, up_to: int) -> None:
        gone = (self._rows_gone_up_to, up_to)
        if up_to <= self._rows_gone_up_to:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                "DELETE FROM log WHERE rev IN (SELECT replaces FROM log WHERE rev > ? AND rev <= ?)", gone
            )
            self._db.execute("DELETE FROM log WHERE rev > ? AND rev <= ? AND type = 2", gone)
            self._db.execute("UPDATE meta SET compacted = ?", (up_to,))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            # Forgetting can wait: the next round covers the same rows.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            return
        self._rows_gone_up_to = up_to
