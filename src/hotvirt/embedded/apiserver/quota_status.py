"""What of each quota is used: counted again when something in its namespace comes, goes or changes size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hotvirt.api.quantity import Quantity

from .bootstrap import SERVER
from .call import Call
from .errors import StatusError
from .internal import InternalRequest
from .log import logger
from .store import MODIFIED, Change

if TYPE_CHECKING:
    from .api import Api

Object = dict[str, Any]
QUOTAS: Final = "resourcequotas"
CLAIMS: Final = "persistentvolumeclaims"
# Kinds whose number a quota may limit by their plain names; all others by `count/NAME`.
COUNTED: Final = frozenset(["configmaps", "secrets", "services", CLAIMS, QUOTAS])
_SIZED: Final = frozenset(["pods", CLAIMS, QUOTAS])


class QuotaStatus:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._changed: set[str] = set()
        self._wake = asyncio.Event()

    def changed(self, change: Change) -> None:
        resource, namespace, _ = change.new.key
        if namespace and (change.type != MODIFIED or resource in _SIZED):
            self._changed.add(namespace)
            self._wake.set()

    async def run(self) -> None:
        self._changed |= {entry.namespace for entry in self._api.store.entries(QUOTAS)}
        while True:
            while self._changed:
                await self._count(self._changed.pop())
            self._wake.clear()
            await self._wake.wait()

    async def _count(self, namespace: str) -> None:
        entries = list(self._api.store.entries(QUOTAS, namespace))
        if not entries:
            return
        for entry in entries:
            quota = msgspec.json.decode(entry.data)
            spec = quota.get("spec") or {}
            hard, used = spec.get("hard") or {}, self._api.quota.used(namespace, spec)
            counted = {
                "hard": hard,
                "used": {key: str(used.get(key) or self._number(namespace, key)) for key in hard},
            }
            if (quota.get("status") or {}) != counted:
                await self._write(namespace, entry.name, counted)

    def _number(self, namespace: str, key: str) -> Quantity:
        """Everything that is no sum over Pods: how many objects, how much storage was asked for."""
        if key == "requests.storage":
            total = Quantity(0)
            for entry in self._api.store.entries(CLAIMS, namespace):
                resources = (msgspec.json.decode(entry.data).get("spec") or {}).get("resources") or {}
                total = total + Quantity(str((resources.get("requests") or {}).get("storage", "0")))
            return total
        resource = key.removeprefix("count/")
        if key.startswith("count/") or key in COUNTED:
            return Quantity(sum(1 for _ in self._api.store.entries(resource, namespace)))
        return Quantity(0)

    async def _write(self, namespace: str, name: str, status: Object) -> None:
        kind = self._api.registry.find("", "v1", QUOTAS)
        assert kind is not None
        call = Call(InternalRequest(), SERVER, kind, namespace, name, "status", "update")
        try:
            await self._api.writer.change(call, lambda old: old | {"status": status})
        except StatusError as error:
            if error.code != 404:
                logger.warning("The quota %s/%s is not counted: %s", namespace, name, error.message)
