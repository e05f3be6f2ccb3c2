"""One leader among several copies of a program, by a Lease object, as client-go's leader election.

Whether a holder is still there is judged by our own clock: by how long ago we saw the Lease change, never by
the times written in it. On exit the Lease is given back, so that the next one need not wait for it to expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hotvirt.api import meta
from hotvirt.api.resources import LEASES

from .client import Client
from .errors import AlreadyExists, ApiError, Conflict, NotFound

log = logging.getLogger(__name__)


class Election:
    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = 15.0,
        renew_within: float = 10.0,
        retry: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.is_leader = False
        self._client = client
        self._namespace = namespace
        self._name = name
        self._duration = duration
        self._renew_within = renew_within
        self._retry = retry
        self._clock = clock
        self._seen: tuple[str, float] = ("", 0.0)
        """The Lease's last resourceVersion, and when we first saw it."""
        self._renewed = 0.0
        """When we began our last successful write: others count from no earlier than that."""

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to lead, then do `work` until it returns. When the lead is lost, stop it and wait again."""
        while True:
            await self._acquire()
            log.info("%s leads %s/%s", self.identity, self._namespace, self._name)
            job = asyncio.ensure_future(work())
            renewal = asyncio.create_task(self._renew_for_ever(), name=f"lease {self._name}")
            try:
                await asyncio.wait([job, renewal], return_when=asyncio.FIRST_COMPLETED)
                if job.done():
                    await job
                    return
                log.error("%s lost the lead of %s/%s", self.identity, self._namespace, self._name)
            finally:
                for task in (job, renewal):
                    task.cancel()
                await asyncio.wait([job, renewal])
                await self._release()

    async def _acquire(self) -> None:
        while True:
            if await self._attempt():
                return
            await asyncio.sleep(self._retry)  # a holder that goes away silently is told by time alone

    async def _renew_for_ever(self) -> None:
        """Returns when somebody else has the Lease, or may have it: it could not be renewed in time."""
        while (left := self._left()) > 0:
            await asyncio.sleep(min(self._retry, left))
            if not await self._attempt(self._left()) and not self.is_leader:
                return  # even if it would soon be ours again: somebody else has begun to work
        self.is_leader = False

    def _left(self) -> float:
        """Seconds until the lead must be given up; no try to renew it may last longer."""
        return self._renewed + self._renew_within - self._clock()

    async def _attempt(self, within: float | None = None) -> bool:
        """Take or renew the Lease if that is ours to do."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._renew_within if within is None else within):
                if not await self._take_or_renew():
                    return False
            self._renewed = began
            return True
        except (Conflict, AlreadyExists):
            return False
        except (ApiError, TimeoutError) as error:
            log.warning("the lease %s/%s could not be updated: %s", self._namespace, self._name, error)
            return False

    async def _take_or_renew(self) -> bool:
        stamp = meta.now_micro()
        mine = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": stamp,
        }
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            created = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": mine | {"acquireTime": stamp, "leaseTransitions": 0},
            }
            await self._client.create(LEASES, created, self._namespace)
            self.is_leader = True
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder != self.identity:
            if holder and not self._expired(lease):
                self.is_leader = False
                return False
            mine |= {"acquireTime": stamp, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
        version = lease["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": mine}
        await self._client.patch(LEASES, self._name, patch, self._namespace)
        self.is_leader = True
        return True

    def _expired(self, lease: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock())
            return False
        duration = (lease.get("spec") or {}).get("leaseDurationSeconds") or self._duration
        return self._clock() - self._seen[1] > duration

    async def _release(self) -> None:
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            async with asyncio.timeout(self._renew_within):
                await self._give_back()
        except (ApiError, TimeoutError) as error:
            log.info("the lease %s/%s was not given back: %s", self._namespace, self._name, error)

    async def _give_back(self) -> None:
        lease = await self._client.get(LEASES, self._name, self._namespace)
        if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
            return
        version = lease["metadata"]["resourceVersion"]
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": meta.now_micro()}
        patch = {"metadata": {"resourceVersion": version}, "spec": spec}
        await self._client.patch(LEASES, self._name, patch, self._namespace)
