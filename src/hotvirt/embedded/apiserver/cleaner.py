"""When a CRD is deleted its objects go first, then the definition."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from .bootstrap import SERVER
from .call import Call
from .crds import CLEANUP
from .crds import RESOURCE as CRD_RESOURCE
from .errors import StatusError
from .internal import InternalRequest
from .log import logger
from .store import Change

if TYPE_CHECKING:
    from .api import Api


class CrdCleaner:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._wake = asyncio.Event()

    def changed(self, change: Change) -> None:
        """A CRD that is being deleted, or an object of one that has gone: look again."""
        if change.new.key[0] == CRD_RESOURCE or change.new.key[0] in self._emptying:
            self._wake.set()

    _emptying: frozenset[str] = frozenset()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._clean()
            except StatusError as error:
                logger.warning("Objects of a deleted CRD could not be deleted: %s", error.message)
            await self._wake.wait()

    async def _clean(self) -> None:
        deleted: list[tuple[str, dict[str, Any]]] = []
        for entry in self._api.store.entries(CRD_RESOURCE):
            crd = msgspec.json.decode(entry.data)
            if crd["metadata"].get("deletionTimestamp") and CLEANUP in (
                crd["metadata"].get("finalizers") or []
            ):
                spec = crd["spec"]
                deleted.append((f"{spec['names']['plural']}.{spec['group']}", crd))
        self._emptying = frozenset(resource for resource, _ in deleted)
        for resource, crd in deleted:
            await self._delete_objects(crd["metadata"]["name"], resource)
            if self._api.store.count(resource) == 0:
                await self._finish(crd["metadata"]["name"])

    async def _delete_objects(self, name: str, resource: str) -> None:
        kinds = self._api.crds.kinds_of(name)
        for entry in list(self._api.store.entries(resource)):
            if not kinds or b'"deletionTimestamp"' in entry.data:
                continue
            call = Call(InternalRequest(), SERVER, kinds[0], entry.namespace, entry.name, "", "delete")
            await self._api.deleter.delete_one(call, {})

    async def _finish(self, name: str) -> None:
        kind = self._api.registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert kind is not None
        call = Call(InternalRequest(), SERVER, kind, "", name, "", "update")

        def without(old: dict[str, Any]) -> dict[str, Any]:
            old["metadata"]["finalizers"] = [one for one in old["metadata"]["finalizers"] if one != CLEANUP]
            return old

        await self._api.writer.change(call, without)
