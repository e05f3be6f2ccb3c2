"""The metadata of every object of the API: what garbage collection and the end of a namespace have to know.

The resources come from discovery, and again whenever a CRD changes. Of each object only who it is, who owns
it and whether it is being deleted is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from hotvirt.api.meta import Kind, ObjectMeta, OwnerReference, Struct
from hotvirt.api.resources import CRDS, Resource
from hotvirt.kube.backoff import Backoff
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError
from hotvirt.kube.informer import Informer, Key, _Entry

log = logging.getLogger(__name__)
NEEDED_VERBS = {"list", "watch", "delete"}
# Nobody owns an Event, and there are many of them; they go with their time.
LEFT_OUT = {("", "events"), ("events.k8s.io", "events")}


class _HeadMeta(Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class _Head(Struct, frozen=True):
    metadata: _HeadMeta = _HeadMeta()


class Item(Struct, frozen=True):
    """One object, as far as it matters here."""

    resource: Resource
    meta: ObjectMeta

    @property
    def namespace(self) -> str | None:
        return self.meta.namespace or None

    def has_finalizer(self, name: str) -> bool:
        return name in self.meta.finalizers


Handler = Callable[[Item | None, Item | None], None]


class MetadataInformer(Informer[Kind]):
    """Keeps the metadata only, however large the objects are."""

    def _parse(self, raw: msgspec.Raw) -> tuple[Key, _Entry[Kind]]:
        small = msgspec.json.encode(msgspec.json.decode(raw, type=_Head))
        return super()._parse(msgspec.Raw(small))


class Inventory:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._crds = MetadataInformer(client, CRDS, Kind)
        self._crd_changed = asyncio.Event()
        self._informers: dict[Resource, MetadataInformer] = {}
        self._running: dict[Resource, asyncio.Task[None]] = {}
        self._handlers: list[Handler] = []
        self._complete = asyncio.Event()
        self.refreshed: list[Callable[[], None]] = []
        """Called when the resources may have become others."""
        self.items: dict[str, Item] = {}
        """By uid."""
        self.dependents: dict[str, set[str]] = {}
        """Uids of what an owner (by uid) has."""

    def add_handler(self, handler: Handler) -> None:
        self._handlers.append(handler)

    async def synced(self) -> None:
        """Until everything that was there at the start is known."""
        await self._complete.wait()

    @property
    def resources(self) -> list[Resource]:
        return list(self._informers)

    def resource_of(self, api_version: str, kind: str) -> Resource | None:
        group, _, version = api_version.rpartition("/")
        found = [r for r in self._informers if r.group == group and r.kind == kind]
        return next((r for r in found if r.version == version), found[0] if found else None)

    def in_namespace(self, namespace: str) -> list[Item]:
        return [item for item in self.items.values() if item.meta.namespace == namespace]

    async def run(self) -> None:
        self._crds.add_handler(lambda _old, _new: self._crd_changed.set())
        backoff = Backoff(initial=0.1, maximum=10.0)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._crds.run(), name="informer crds")
                await self._crds.synced()
                while True:
                    self._crd_changed.clear()
                    try:
                        await self.refresh()
                    except ApiError as error:
                        log.warning("discovery failed, will try again: %s", error)
                        await asyncio.sleep(backoff.next())
                        continue
                    backoff.reset()
                    await self._crd_changed.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            if self._running:
                await asyncio.wait(self._running.values())

    async def refresh(self) -> None:
        """Follow what discovery shows now; returns when all of it is known."""
        found = set(await discover(self._client))
        for resource in [known for known in self._informers if known not in found]:
            self._forget(resource)
        for resource in found - set(self._informers):
            informer = MetadataInformer(self._client, resource, Kind)
            informer.add_handler(self._changes(resource))
            self._informers[resource] = informer
            task = asyncio.create_task(informer.run(), name=f"metadata of {resource.group_resource}")
            self._running[resource] = task
        for resource in found:
            if resource in self._informers:
                await self._informers[resource].synced()
        self._complete.set()
        for listener in self.refreshed:
            listener()

    def _forget(self, resource: Resource) -> None:
        self._running.pop(resource).cancel()
        del self._informers[resource]
        for item in [item for item in self.items.values() if item.resource == resource]:
            self._change(item, None)

    def _changes(self, resource: Resource) -> Callable[[Kind | None, Kind | None], None]:
        def changed(old: Kind | None, new: Kind | None) -> None:
            before = Item(resource=resource, meta=old.metadata) if old else None
            after = Item(resource=resource, meta=new.metadata) if new else None
            if before and after and before.meta.uid != after.meta.uid:
                self._change(before, None)
                before = None
            self._change(before, after)

        return changed

    def _change(self, old: Item | None, new: Item | None) -> None:
        if old:
            self.items.pop(old.meta.uid, None)
            for owner in old.meta.owner_references:
                owned = self.dependents.get(owner.uid, set())
                owned.discard(old.meta.uid)
                if not owned:
                    self.dependents.pop(owner.uid, None)
        if new:
            self.items[new.meta.uid] = new
            for owner in new.meta.owner_references:
                self.dependents.setdefault(owner.uid, set()).add(new.meta.uid)
        for handler in self._handlers:
            handler(old, new)


async def discover(client: Client) -> list[Resource]:
    """Every resource that can be listed, watched and deleted, in its preferred version."""
    found = await _resources(client, "/api/v1", "", "v1")
    groups: dict[str, Any] = await client.request("GET", "/apis")
    for group in groups.get("groups", []):
        version = (group.get("preferredVersion") or group["versions"][0])["version"]
        found += await _resources(client, f"/apis/{group['name']}/{version}", group["name"], version)
    return found


async def _resources(client: Client, path: str, group: str, version: str) -> list[Resource]:
    answer: dict[str, Any] = await client.request("GET", path)
    return [
        Resource(group, version, row["name"], row.get("singularName", ""), row["kind"], row["namespaced"])
        for row in answer.get("resources", [])
        if "/" not in row["name"]
        and set(row["verbs"]) >= NEEDED_VERBS
        and (group, row["name"]) not in LEFT_OUT
    ]
