"""How reconcilers write: the difference only, tied to the version they decided on. The answer is in the cache
at once, so that the next pass does not start from before it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hotvirt.api import codec
from hotvirt.api.meta import Kind, Struct
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informer
from hotvirt.kube.patch import merge_diff

K = TypeVar("K", bound=Kind)


async def write_status(client: Client, cache: Informer[K], obj: K, old: Struct, new: Struct) -> K:
    """Write what differs between the two statuses; the object as it is then. A Conflict says: look again."""
    if old == new:
        return obj
    difference = merge_diff(codec.builtins(old), codec.builtins(new))
    if difference is None:
        return obj
    written = await client.patch(
        cache.resource,
        obj.metadata.name,
        {"metadata": {"resourceVersion": obj.metadata.resource_version}, "status": difference},
        obj.metadata.namespace,
        subresource="status",
        cls=type(obj),
    )
    cache.learn(written)
    return written


async def write(client: Client, cache: Informer[K], obj: K, change: dict[str, Any]) -> K:
    """Merge `change` into the object, if it is still the one we looked at."""
    metadata = {**change.get("metadata", {}), "resourceVersion": obj.metadata.resource_version}
    written = await client.patch(
        cache.resource,
        obj.metadata.name,
        {**change, "metadata": metadata},
        obj.metadata.namespace,
        cls=type(obj),
    )
    cache.learn(written)
    return written


async def add_finalizer(client: Client, cache: Informer[K], obj: K, finalizer: str) -> K:
    if finalizer in obj.metadata.finalizers:
        return obj
    return await write(
        client, cache, obj, {"metadata": {"finalizers": [*obj.metadata.finalizers, finalizer]}}
    )


async def remove_finalizer(client: Client, cache: Informer[K], obj: K, finalizer: str) -> K:
    if finalizer not in obj.metadata.finalizers:
        return obj
    left = [each for each in obj.metadata.finalizers if each != finalizer]
    return await write(client, cache, obj, {"metadata": {"finalizers": left}})
