"""The life of namespaces: each gets what Kubernetes puts into it, and one that is deleted is emptied
first.
"""

from __future__ import annotations

from typing import Any

from hotvirt.api import codec
from hotvirt.api.conditions import Condition, set_condition
from hotvirt.api.core import Namespace
from hotvirt.api.meta import Kind
from hotvirt.api.resources import CONFIGMAPS, NAMESPACES, SERVICEACCOUNTS, Resource
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from hotvirt.kube.informer import Informer, Key

from .inventory import Inventory, Item

FINALIZER = "kubernetes"
ROOT_CA = "kube-root-ca.crt"
SERVICE_ACCOUNT = "default"
LOOK_AGAIN = 0.2
# What could not be deleted or listed now may be in a moment; nothing tells when.
RETRY = 1.0


class NamespaceController:
    def __init__(self, client: Client, inventory: Inventory, root_ca: str = "") -> None:
        self._client = client
        self._inventory = inventory
        self._root_ca = root_ca
        self._namespaces = Informer(client, NAMESPACES, Namespace)
        self._controller = Controller("namespaces", self._reconcile, workers=4)
        self._controller.watch(self._namespaces, lambda namespace: [("", namespace.metadata.name)])
        inventory.add_handler(self._object_changed)

    @property
    def informer(self) -> Informer[Namespace]:
        return self._namespaces

    async def run(self) -> None:
        await self._inventory.synced()
        await self._controller.run()

    def _object_changed(self, old: Item | None, new: Item | None) -> None:
        """What leaves a namespace may be what its end waits for; what is given to each is given again."""
        if new is None and old is not None and old.meta.namespace:
            given = old.resource.plural in (SERVICEACCOUNTS.plural, CONFIGMAPS.plural)
            namespace = self._namespaces.get(None, old.meta.namespace)
            if namespace and (namespace.metadata.deleting or given):
                self._controller.queue.add(("", old.meta.namespace))

    async def _reconcile(self, key: Key) -> float | None:
        namespace = self._namespaces.get(None, key[1])
        if namespace is None:
            return None
        if not namespace.metadata.deleting:
            await self._furnish(namespace.metadata.name)
        elif FINALIZER in namespace.spec.finalizers:
            return await self._empty(namespace)
        return None

    async def _furnish(self, namespace: str) -> None:
        wanted: list[tuple[Resource, dict[str, Any]]] = [
            (SERVICEACCOUNTS, {"metadata": {"name": SERVICE_ACCOUNT}}),
        ]
        if self._root_ca:
            wanted.append((CONFIGMAPS, {"metadata": {"name": ROOT_CA}, "data": {"ca.crt": self._root_ca}}))
        present = {(item.resource.plural, item.meta.name) for item in self._inventory.in_namespace(namespace)}
        for resource, content in wanted:
            if (resource.plural, content["metadata"]["name"]) in present:
                continue
            named = {"apiVersion": resource.api_version, "kind": resource.kind, **content}
            try:
                await self._client.create(resource, named, namespace)
            except (AlreadyExists, NotFound, Forbidden):
                continue  # there already, or the namespace is on its way out

    async def _empty(self, namespace: Namespace) -> float | None:
        name = namespace.metadata.name
        failures: list[str] = []
        for resource in self._inventory.resources:
            if not resource.namespaced:
                continue
            try:
                await self._delete_all(resource, name)
            except ApiError as error:
                failures.append(f"{resource.group_resource}: {error}")
        remaining = await self._remaining(name, failures)
        if remaining or failures:
            await self._explain(namespace, remaining, failures)
            if failures:
                return RETRY
            # What was made after we deleted all is not in the inventory yet: have another look soon.
            return LOOK_AGAIN if any(not item.meta.deleting for item in remaining) else None
        raw = await self._client.get(NAMESPACES, name)
        raw["spec"]["finalizers"] = [f for f in raw["spec"].get("finalizers", []) if f != FINALIZER]
        try:
            await self._client.update(NAMESPACES, raw, name=name, subresource="finalize")
        except NotFound:
            return None
        return None

    async def _delete_all(self, resource: Resource, namespace: str) -> None:
        """Only where there is something: an empty namespace has thirty kinds of nothing."""
        items = [i for i in self._inventory.in_namespace(namespace) if i.resource == resource]
        for item in items:
            if item.meta.deleting:
                continue
            try:
                await self._client.delete(
                    resource, item.meta.name, namespace, propagation="Background", uid=item.meta.uid
                )
            except (NotFound, Conflict):
                continue

    async def _remaining(self, namespace: str, failures: list[str]) -> list[Item]:
        """By the API's own word: the inventory may not have heard of the latest yet."""
        remaining = []
        for resource in self._inventory.resources:
            if not resource.namespaced:
                continue
            try:
                found = await self._client.list(resource, namespace, cls=Kind)
            except NotFound:
                continue  # the kind itself has gone meanwhile, and all of it
            except ApiError as error:
                failures.append(f"{resource.group_resource}: {error}")
                continue
            remaining += [Item(resource=resource, meta=obj.metadata) for obj in found.items]
        return remaining

    async def _explain(self, namespace: Namespace, remaining: list[Item], failures: list[str]) -> None:
        counts: dict[str, int] = {}
        finalizers: dict[str, int] = {}
        for item in remaining:
            counts[item.resource.group_resource] = counts.get(item.resource.group_resource, 0) + 1
            for finalizer in item.meta.finalizers:
                finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
        content = ", ".join(
            f"{kind} has {count} resource instances" for kind, count in sorted(counts.items())
        )
        waits = ", ".join(
            f"{name} in {count} resource instances" for name, count in sorted(finalizers.items())
        )
        rows = [
            (
                "NamespaceDeletionContentFailure",
                bool(failures),
                "ContentDeletionFailed" if failures else "ContentDeleted",
                f"Failed to delete all resource types, {len(failures)} remaining: {'; '.join(failures)}"
                if failures
                else "All content successfully deleted, may be waiting on finalization",
            ),
            (
                "NamespaceContentRemaining",
                bool(remaining),
                "SomeResourcesRemain" if remaining else "ContentRemoved",
                f"Some resources are remaining: {content}"
                if remaining
                else "All content successfully removed",
            ),
            (
                "NamespaceFinalizersRemaining",
                bool(finalizers),
                "SomeFinalizersRemain" if finalizers else "ContentHasNoFinalizers",
                f"Some content in the namespace has finalizers remaining: {waits}"
                if finalizers
                else "All content-preserving finalizers finished",
            ),
        ]
        old = conditions = list(namespace.status.conditions)
        for type, true, reason, message in rows:
            status = "True" if true else "False"
            new = Condition(type=type, status=status, reason=reason, message=message)
            conditions = set_condition(conditions, new)
        if conditions != old:
            patch = {"status": {"conditions": [codec.builtins(condition) for condition in conditions]}}
            try:
                await self._client.patch(NAMESPACES, namespace.metadata.name, patch, subresource="status")
            except NotFound:
                return
