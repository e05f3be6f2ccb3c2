"""A local copy of a collection, kept current: list, then watch for ever.

Each object is kept as the bytes that came and as one immutable typed view of them, made when first asked for.
A watch that ends is resumed from the last resourceVersion seen (bookmarks move it on); one that is too old
(410) is listed anew; one that is silent for too long is dropped; trouble is retried with a jittered backoff.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import msgspec

from hotvirt.api import codec
from hotvirt.api.resources import Resource

from .backoff import Backoff
from .client import INACTIVITY, Client, WatchEvent
from .errors import ApiError, Gone, NotFound

T = TypeVar("T")
Key = tuple[str, str]
Handler = Callable[[T | None, T | None], None]
IndexFunction = Callable[[T], Iterable[str]]
log = logging.getLogger(__name__)
STEADY = 1.0
"""A watch that ends sooner than this counts as trouble, so that a confused server is not hammered."""


class _HeadMeta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct, gc=False):
    metadata: _HeadMeta = msgspec.field(default_factory=_HeadMeta)


_head = msgspec.json.Decoder(_Head).decode


class _Entry(Generic[T]):
    __slots__ = ("raw", "resource_version", "uid", "view")

    def __init__(self, raw: bytes, uid: str, resource_version: str) -> None:
        self.raw = raw
        self.uid = uid
        self.resource_version = resource_version
        self.view: T | None = None


class Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        resource: Resource,
        cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        optional: bool = False,
        page_size: int = 500,
        inactivity: float = INACTIVITY,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        """`optional`: the cluster may not serve this resource, now or ever: then it has no objects."""
        self.resource = resource
        self.namespace = namespace
        self._optional = optional
        self._client = client
        self._cls = cls
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._index_functions = dict(indexes or {})
        self._index: dict[str, dict[str, set[Key]]] = {name: {} for name in self._index_functions}
        self._entries: dict[Key, _Entry[T]] = {}
        self._learnt: dict[Key, Any] = {}
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._version: str | None = None
        self._page_size = page_size
        self._inactivity = inactivity
        self._backoff = backoff or Backoff(rng=rng)
        self._sleep = sleep

    # Reading

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until the first list is in."""
        await self._synced.wait()

    def get(self, namespace: str | None, name: str) -> T | None:
        key = (namespace or "", name)
        entry = self._entries.get(key)
        return None if entry is None else self._newest(key, entry)

    def _newest(self, key: Key, entry: _Entry[T]) -> T:
        learnt: T | None = self._learnt.get(key)
        return self._view(entry) if learnt is None else learnt

    def learn(self, obj: Any) -> None:
        """What a write was answered with (a typed object): it counts until the watch has it too.

        So whoever acts on its own writes is not in conflict with itself.
        """
        meta = obj.metadata
        entry, learnt = self._entries.get(meta.key), self._learnt.get(meta.key)
        if entry is None or entry.uid != meta.uid:
            return
        known = [entry.resource_version, *([learnt.metadata.resource_version] if learnt else [])]
        if all(_is_newer(meta.resource_version, each) for each in known):
            self._learnt[meta.key] = obj

    def list(self, namespace: str | None = None) -> builtins.list[T]:
        return [
            self._newest(key, entry)
            for key, entry in self._entries.items()
            if namespace is None or key[0] == namespace
        ]

    def keys(self) -> builtins.list[Key]:
        return list(self._entries)

    def by_index(self, index: str, value: str) -> builtins.list[T]:
        return [self._newest(key, self._entries[key]) for key in self._index[index].get(value, ())]

    def values(self, index: str) -> builtins.list[str]:
        """What there are objects for in this index."""
        return sorted(self._index[index])

    def raw(self, namespace: str | None, name: str) -> dict[str, Any] | None:
        """The whole object, with what no typed view knows; decoded anew, so the caller may change it."""
        entry = self._entries.get((namespace or "", name))
        if entry is None:
            return None
        obj: dict[str, Any] = msgspec.json.decode(entry.raw)
        obj.setdefault("apiVersion", self.resource.api_version)
        obj.setdefault("kind", self.resource.kind)
        return obj

    def add_indexes(self, indexes: Mapping[str, IndexFunction[T]]) -> None:
        for name, function in indexes.items():
            if name in self._index_functions:
                continue
            self._index_functions[name] = function
            self._index[name] = {}
            for key, entry in self._entries.items():
                for value in function(self._view(entry)):
                    self._index[name].setdefault(value, set()).add(key)

    def add_handler(self, handler: Handler[T]) -> Callable[[], None]:
        """Call `handler(old, new)` for every change, and now for what is already there. Must not block.

        The answer ends it: for whoever lives shorter than the informer.
        """
        self._handlers.append(handler)
        for entry in list(self._entries.values()):
            self._call(handler, None, self._view(entry))
        return lambda: self._handlers.remove(handler) if handler in self._handlers else None

    def _view(self, entry: _Entry[T]) -> T:
        if entry.view is None:
            entry.view = self._decode(entry.raw)
        return entry.view

    def _decode(self, raw: bytes) -> T:
        return codec.decode(raw, self._cls)

    # Keeping current

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            started = time.monotonic()
            try:
                if self._version is None:
                    await self._relist()
                await self._follow()
                if time.monotonic() - started > STEADY:
                    self._backoff.reset()
                    continue
            except Gone:
                log.debug("%s: the resourceVersion is too old, listing again", self.resource.group_resource)
                self._version = None
            except NotFound as error:
                self._version = None
                if self._optional:
                    log.debug("%s is not served here: %s", self.resource.group_resource, error)
                    self._replace({})
                    self._synced.set()
                else:
                    log.warning("%s is not served here yet: %s", self.resource.group_resource, error)
            except ApiError as error:
                # Where nothing ever changed there are no bookmarks either: then silence is no trouble.
                level = logging.DEBUG if time.monotonic() - started >= self._inactivity else logging.WARNING
                log.log(level, "%s: watching failed, will try again: %s", self.resource.group_resource, error)
            except Exception:
                log.exception("%s: watching failed, will list again", self.resource.group_resource)
                self._version = None
            if time.monotonic() - started > STEADY:
                self._backoff.reset()
            await self._sleep(self._backoff.next())

    async def _relist(self) -> None:
        fresh: dict[Key, _Entry[T]] = {}
        version = ""
        async for page_version, items in self._client.pages(
            self.resource,
            self.namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=self._page_size,
        ):
            if items is None:
                fresh.clear()
                continue
            version = page_version
            for item in items:
                key, entry = self._parse(item)
                fresh[key] = entry
            await asyncio.sleep(0)  # a page of 500 takes milliseconds: let others run in between
        self._replace(fresh)
        self._version = version
        self._synced.set()

    def _replace(self, fresh: dict[Key, _Entry[T]]) -> None:
        for key in [key for key in self._entries if key not in fresh]:
            self._remove(key)
        for key, entry in fresh.items():
            known = self._entries.get(key)
            if known is None or known.resource_version != entry.resource_version or known.uid != entry.uid:
                self._put(key, entry)

    async def _follow(self) -> None:
        assert self._version is not None
        events = self._client.watch(
            self.resource,
            self.namespace,
            resource_version=self._version,
            cls=msgspec.Raw,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            inactivity=self._inactivity,
            at_once=self._take,
        )
        async with aclosing(events):
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent[msgspec.Raw]) -> None:
        key, entry = self._parse(event.object)
        self._backoff.reset()
        if event.type != "BOOKMARK" and not self._is_stale(key, entry):
            if event.type == "DELETED":
                self._remove(key, entry)
            else:
                self._put(key, entry)
        self._version = entry.resource_version or self._version

    def _parse(self, raw: msgspec.Raw) -> tuple[Key, _Entry[T]]:
        own = bytes(raw)  # a copy: the buffer it lies in is a whole page
        meta = _head(own).metadata
        return (meta.namespace, meta.name), _Entry(own, meta.uid, meta.resource_version)

    def _is_stale(self, key: Key, entry: _Entry[T]) -> bool:
        """Delivered twice, or older than what we have (a second API server that lags behind)."""
        known = self._entries.get(key)
        if known is None:
            return False
        return not _is_newer(entry.resource_version, known.resource_version, otherwise=True)

    def _put(self, key: Key, entry: _Entry[T]) -> None:
        old = self._entries.get(key)
        if self._handlers or self._index_functions:
            try:
                view = self._view(entry)
            except (msgspec.MsgspecError, ValueError) as error:
                log.error("%s %s/%s is left out, it is not readable: %s", self.resource.kind, *key, error)
                return
            if old is not None and self._index_functions:
                self._unindex(key, self._view(old))
            for name, function in self._index_functions.items():
                for value in function(view):
                    self._index[name].setdefault(value, set()).add(key)
        self._entries[key] = entry
        learnt = self._learnt.get(key)
        if learnt is not None and not _is_newer(learnt.metadata.resource_version, entry.resource_version):
            del self._learnt[key]
        self._notify(old, entry)

    def _remove(self, key: Key, last: _Entry[T] | None = None) -> None:
        old = self._entries.pop(key, None)
        self._learnt.pop(key, None)
        if old is None:
            return
        if self._index_functions:
            self._unindex(key, self._view(old))
        self._notify(last or old, None)

    def _unindex(self, key: Key, view: T) -> None:
        for name, function in self._index_functions.items():
            for value in function(view):
                keys = self._index[name].get(value)
                if keys is not None:
                    keys.discard(key)
                    if not keys:
                        del self._index[name][value]

    def _notify(self, old: _Entry[T] | None, new: _Entry[T] | None) -> None:
        if not self._handlers:
            return
        old_view = None if old is None else self._view(old)
        new_view = None if new is None else self._view(new)
        for handler in list(self._handlers):
            self._call(handler, old_view, new_view)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:
            log.exception("a handler of %s failed", self.resource.group_resource)


def _is_newer(one: str, other: str, *, otherwise: bool = False) -> bool:
    """Of two resourceVersions; `otherwise` where they are no numbers."""
    try:
        return int(one) > int(other)
    except ValueError:
        return otherwise


class Informers:
    """One informer for each thing watched, shared by all who ask: there is one copy of the Pods."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._informers: dict[tuple[Any, ...], Informer[Any]] = {}

    def of(
        self,
        resource: Resource,
        cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        optional: bool = False,
    ) -> Informer[T]:
        """The shared informer; asked for again with more indexes, it gets them too (before it runs)."""
        identity = (resource, cls, namespace, label_selector, field_selector)
        if identity not in self._informers:
            self._informers[identity] = Informer(
                self.client,
                resource,
                cls,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                optional=optional,
            )
        informer: Informer[T] = self._informers[identity]
        informer.add_indexes(indexes or {})
        return informer

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run(), name=f"informer {informer.resource.group_resource}")

    async def synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced()
