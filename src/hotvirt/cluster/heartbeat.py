"""The Lease of a node's agent: that it lives, and where its consoles are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from hotvirt.api import meta, names
from hotvirt.api.resources import LEASES, PODS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError, NotFound

log = logging.getLogger(__name__)
EVERY: Final = 10.0
DURATION: Final = 40


class Heartbeat:
    def __init__(
        self,
        client: Client,
        node: str,
        annotations: Callable[[], dict[str, str]],
        pod: tuple[str, str] | None = None,
    ) -> None:
        """With the agent's Pod (name and uid) the Lease goes when Hotvirt is removed from the node."""
        self._client = client
        self._owners = (
            [{"apiVersion": PODS.api_version, "kind": PODS.kind, "name": pod[0], "uid": pod[1]}]
            if pod
            else []
        )
        self._node = node
        self._annotations = annotations
        self._name = names.NODE_LEASE.format(node=node)
        self._now = asyncio.Event()
        self.problem: str | None = "it has not been written yet"

    def beat_now(self) -> None:
        """What the Lease says has changed."""
        self._now.set()

    async def run(self) -> None:
        """Renew until cancelled. A Lease that cannot be written is tried again at the next beat."""
        while True:
            self._now.clear()
            try:
                async with asyncio.timeout(EVERY):
                    await self._beat()
                self.problem = None
            except (ApiError, TimeoutError) as error:
                self.problem = f"the Lease {self._name} cannot be written: {error or 'no answer'}"
                log.warning("%s", self.problem)
            try:
                await asyncio.wait_for(self._now.wait(), EVERY)
            except TimeoutError:
                continue

    async def _beat(self) -> None:
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": DURATION,
            "renewTime": meta.now_micro(),
        }
        metadata: dict[str, Any] = {
            "name": self._name,
            "annotations": self._annotations(),
            "ownerReferences": self._owners,
        }
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": spec,
        }
        try:
            await self._client.patch(LEASES, self._name, lease, names.NAMESPACE)
        except NotFound:
            await self._client.create(LEASES, lease, names.NAMESPACE)
