"""Garbage collection by ownerReferences, as kube-controller-manager does it.

An object goes when none of its owners exists any more. An owner deleted in the foreground waits (by a
finalizer) for those dependents that block it; one deleted with orphans lets go of its dependents first. An
owner counts as absent only when the API itself says so, by uid: a cache may be behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotvirt.api import codec
from hotvirt.api.meta import Kind, OwnerReference
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import NotFound
from hotvirt.kube.informer import Key

from .inventory import Inventory, Item

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass
class Owners:
    """What has become of an object's owners."""

    solid: list[OwnerReference]
    dangling: list[OwnerReference]
    waiting: list[OwnerReference]
    """Being deleted in the foreground: they wait for this object."""


class GarbageCollector:
    def __init__(self, client: Client, inventory: Inventory, *, workers: int = 8) -> None:
        self._client = client
        self._inventory = inventory
        self._controller = Controller("garbage", self._reconcile, workers=workers)
        self._puzzling: set[str] = set()
        """Uids of objects with an owner of a kind that nobody knows (yet)."""
        inventory.add_handler(self._changed)
        inventory.refreshed.append(lambda: self._enqueue(*self._puzzling))

    async def run(self) -> None:
        await self._inventory.synced()
        await self._controller.run()

    async def settled(self) -> None:
        await self._controller.settled()

    def _changed(self, old: Item | None, new: Item | None) -> None:
        if new is None:
            assert old is not None
            self._enqueue(*self._inventory.dependents.get(old.meta.uid, ()))
            # An owner that waits for this one in the foreground may go now.
            self._enqueue(*(owner.uid for owner in old.meta.owner_references))
            return
        if new.meta.owner_references or new.meta.deleting:
            self._enqueue(new.meta.uid)
        if new.meta.deleting and new.has_finalizer(FOREGROUND):
            self._enqueue(*self._inventory.dependents.get(new.meta.uid, ()))
        if old and old.meta.owner_references != new.meta.owner_references:
            self._enqueue(*(owner.uid for owner in old.meta.owner_references))

    def _enqueue(self, *uids: str) -> None:
        for uid in uids:
            self._controller.queue.add(("", uid))

    async def _reconcile(self, key: Key) -> float | None:
        item = self._inventory.items.get(key[1])
        self._puzzling.discard(key[1])
        if item is None:
            return None
        if item.meta.deleting and item.has_finalizer(ORPHAN):
            await self._orphan(item)
        elif item.meta.deleting and item.has_finalizer(FOREGROUND):
            await self._delete_dependents_first(item)
        elif not item.meta.deleting and item.meta.owner_references:
            await self._attempt_to_delete(item)
        return None

    # The owner's side

    async def _orphan(self, owner: Item) -> None:
        for dependent in self._dependents(owner):
            await self._let_go(dependent, {owner.meta.uid})
        await self._remove_finalizer(owner, ORPHAN)

    async def _delete_dependents_first(self, owner: Item) -> None:
        dependents = self._dependents(owner)
        for dependent in dependents:
            if not dependent.meta.deleting:
                self._enqueue(dependent.meta.uid)
        if not any(_blocks(dependent, owner) for dependent in dependents):
            await self._remove_finalizer(owner, FOREGROUND)
        elif owner.meta.owner_references:
            await self._break_circle(owner)

    async def _break_circle(self, item: Item) -> None:
        """Objects that own each other would wait for ever: what its own dependent owns blocks it no more."""
        for dependent in self._dependents(item):
            if dependent.meta.deleting and any(
                o.uid == dependent.meta.uid for o in item.meta.owner_references
            ):
                references = [codec.builtins(o) for o in dependent.meta.owner_references]
                for reference in references:
                    if reference.get("uid") == item.meta.uid:
                        reference["blockOwnerDeletion"] = False
                await self._patch(dependent, {"ownerReferences": references})

    def _dependents(self, owner: Item) -> list[Item]:
        uids = self._inventory.dependents.get(owner.meta.uid, set())
        return [item for uid in uids if (item := self._inventory.items.get(uid))]

    # The dependent's side

    async def _attempt_to_delete(self, item: Item) -> None:
        owners = await self._judge_owners(item)
        if owners.solid:
            gone = {reference.uid for reference in (*owners.dangling, *owners.waiting)}
            if gone:
                await self._let_go(item, gone)
            return
        if owners.waiting and self._dependents(item):
            policy = "Foreground"
        elif item.has_finalizer(ORPHAN):
            policy = "Orphan"
        elif item.has_finalizer(FOREGROUND):
            policy = "Foreground"
        else:
            policy = "Background"
        try:
            await self._client.delete(
                item.resource,
                item.meta.name,
                item.namespace,
                propagation=policy,
                uid=item.meta.uid,
                # Let go meanwhile, it has no owner that could be gone.
                resource_version=item.meta.resource_version,
            )
        except NotFound:
            return

    async def _judge_owners(self, item: Item) -> Owners:
        owners = Owners([], [], [])
        for reference in item.meta.owner_references:
            owner = self._inventory.items.get(reference.uid)
            if owner is None and not await self._exists(item, reference):
                owners.dangling.append(reference)
            elif owner and owner.meta.deleting and owner.has_finalizer(FOREGROUND):
                owners.waiting.append(reference)
            else:
                owners.solid.append(reference)
        return owners

    async def _exists(self, item: Item, reference: OwnerReference) -> bool:
        """Ask the API. Of an owner of an unknown kind nothing can be said until its CRD is there."""
        resource = self._inventory.resource_of(reference.api_version, reference.kind)
        if resource is None:
            self._puzzling.add(item.meta.uid)
            return True
        namespace = item.namespace if resource.namespaced else None
        if resource.namespaced and namespace is None:
            return False  # an object of the cluster cannot belong to one of a namespace
        try:
            found = await self._client.get(resource, reference.name, namespace, cls=Kind)
        except NotFound:
            return False
        return found.metadata.uid == reference.uid

    async def _let_go(self, item: Item, owners: set[str]) -> None:
        kept = [codec.builtins(o) for o in item.meta.owner_references if o.uid not in owners]
        await self._patch(item, {"ownerReferences": kept or None})

    async def _remove_finalizer(self, item: Item, name: str) -> None:
        kept = [finalizer for finalizer in item.meta.finalizers if finalizer != name]
        await self._patch(item, {"finalizers": kept or None})

    async def _patch(self, item: Item, metadata: dict[str, Any]) -> None:
        guard = {"uid": item.meta.uid, "resourceVersion": item.meta.resource_version}
        try:
            await self._client.patch(
                item.resource, item.meta.name, {"metadata": metadata | guard}, item.namespace
            )
        except NotFound:
            return


def _blocks(dependent: Item, owner: Item) -> bool:
    return any(o.uid == owner.meta.uid and o.block_owner_deletion for o in dependent.meta.owner_references)
