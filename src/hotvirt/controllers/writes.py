"""How reconcilers write: the difference only, tied to the version they decided on."""

from __future__ import annotations

from typing import Any, TypeVar

from hotvirt.api import codec
from hotvirt.api.meta import Kind, Struct
from hotvirt.api.resources import Resource
from hotvirt.kube.client import Client
from hotvirt.kube.patch import merge_diff

K = TypeVar("K", bound=Kind)


async def write_status(client: Client, resource: Resource, obj: K, old: Struct, new: Struct) -> K:
    """Write what differs between the two statuses; the object as it is then. A Conflict says: look again."""
    difference = merge_diff(codec.builtins(old), codec.builtins(new))
    if difference is None:
        return obj
    return await client.patch(
        resource,
        obj.metadata.name,
        {"metadata": {"resourceVersion": obj.metadata.resource_version}, "status": difference},
        obj.metadata.namespace,
        subresource="status",
        cls=type(obj),
    )


async def write(client: Client, resource: Resource, obj: K, change: dict[str, Any]) -> K:
    """Merge `change` into the object, if it is still the one we looked at."""
    metadata = {**change.get("metadata", {}), "resourceVersion": obj.metadata.resource_version}
    return await client.patch(
        resource,
        obj.metadata.name,
        {**change, "metadata": metadata},
        obj.metadata.namespace,
        cls=type(obj),
    )


async def add_finalizer(client: Client, resource: Resource, obj: K, finalizer: str) -> K:
    if finalizer in obj.metadata.finalizers:
        return obj
    return await write(
        client, resource, obj, {"metadata": {"finalizers": [*obj.metadata.finalizers, finalizer]}}
    )


async def remove_finalizer(client: Client, resource: Resource, obj: K, finalizer: str) -> K:
    if finalizer not in obj.metadata.finalizers:
        return obj
    left = [each for each in obj.metadata.finalizers if each != finalizer]
    return await write(client, resource, obj, {"metadata": {"finalizers": left}})
