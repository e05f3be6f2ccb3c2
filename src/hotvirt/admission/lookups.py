"""Lookups through a Kubernetes client, for an admission that runs beside an API server."""

from __future__ import annotations

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
