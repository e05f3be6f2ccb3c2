"""Lookups through a Kubernetes client, for an admission that runs beside an API server."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hotvirt.admission.webhooks import Lookup
from hotvirt.api.resources import Resource
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound


def client_lookup(client: Client, resource: Resource) -> Lookup:
    """Finds objects of one resource by namespace and name."""

    async def find(namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return await client.get(resource, name, namespace)
        except NotFound:
            return None

    return find


def remembered(lookup: Lookup, most: int = 1024) -> Lookup:
    """For what never changes under its name: found once, it is not asked for again."""
    known: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    async def find(namespace: str, name: str) -> dict[str, Any] | None:
        key = namespace, name
        if key in known:
            known.move_to_end(key)
            return known[key]
        found = await lookup(namespace, name)
        if found is not None:
            known[key] = found
            if len(known) > most:
                known.popitem(last=False)
        return found

    return find
