"""Lookups for an admission that runs inside the API server: straight from its store, as they are now."""

from __future__ import annotations

from typing import Any

import msgspec

from hotvirt.admission.webhooks import Lookup
from hotvirt.api.resources import Resource
from hotvirt.embedded.apiserver.store import Store


def store_lookup(store: Store, resource: Resource) -> Lookup:
    """Finds objects of one resource by namespace and name."""

    async def find(namespace: str, name: str) -> dict[str, Any] | None:
        entry = store.get((resource.group_resource, namespace, name))
        if entry is None:
            return None
        found: dict[str, Any] = msgspec.json.decode(entry.data)
        return found

    return find
