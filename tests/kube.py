"""Reading, writing and waiting for objects of a Kubernetes API, whichever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from hotvirt.api import names
from hotvirt.api.resources import EVENTS, KUBEVIRTS, NAMESPACES, Resource
from hotvirt.kube.client import Client
from hotvirt.kube.errors import Gone

WITHIN = 60.0
SILENT = 3600.0
"""Seconds: whoever waits says for how long, and not how long nothing may happen meanwhile."""
Object = dict[str, Any]


class Kube:
    """What an administrator does in one namespace."""

    def __init__(self, admin: Client, namespace: str = "default") -> None:
        self.admin = admin
        self.namespace = namespace

    async def fresh_namespace(self) -> None:
        """From here on all is in a namespace of its own: for tests that share an API."""
        made = await self.admin.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
        )
        self.namespace = str(made["metadata"]["name"])

    async def get(self, resource: Resource, name: str) -> Object:
        return await self.admin.get(resource, name, self._place(resource))

    async def create(self, resource: Resource, obj: Object) -> Object:
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self.admin.create(resource, obj, self._place(resource))

    async def patch(
        self, resource: Resource, name: str, change: Any, *, status: bool = False, kind: str = "merge"
    ) -> Object:
        return await self.admin.patch(
            resource,
            name,
            change,
            self._place(resource),
            kind=kind,  # type: ignore[arg-type]  # one of the three, as every caller says
            subresource="status" if status else None,
        )

    async def until(
        self, resource: Resource, name: str, holds: Callable[[Object], Any], within: float = WITHIN
    ) -> Object:
        """Wait until the object is so; fails with the object as it was last."""
        last: Object | None = None
        try:
            async with asyncio.timeout(within):
                async for last in self._versions(resource, name):
                    if last is not None and holds(last):
                        return last
        except TimeoutError:
            raise AssertionError(f"{resource.kind} {name} did not get there; it is {last}") from None
        raise AssertionError("versions go on for ever")

    async def gone(self, resource: Resource, name: str, within: float = WITHIN) -> None:
        last: Object | None = None
        try:
            async with asyncio.timeout(within):
                async for last in self._versions(resource, name):
                    if last is None:
                        return
        except TimeoutError:
            raise AssertionError(f"{resource.kind} {name} did not go; it is {last}") from None
        raise AssertionError("versions go on for ever")

    async def _versions(self, resource: Resource, name: str) -> AsyncIterator[Object | None]:
        """For ever: servers end a watch after some minutes, and then it begins anew."""
        selector = f"metadata.name={name}"
        place = self._place(resource)
        while True:
            listed = await self.admin.list(resource, place, field_selector=selector)
            yield listed.items[0] if listed.items else None
            version = listed.resource_version
            try:
                async for event in self.admin.watch(
                    resource, place, resource_version=version, field_selector=selector, inactivity=SILENT
                ):
                    if event.type != "BOOKMARK":
                        yield None if event.type == "DELETED" else event.object
            except Gone:
                continue

    async def event(self, about: Object, reason: str) -> str:
        """The message of the first event of that reason about the object, once it is there."""
        selector = f"involvedObject.uid={about['metadata']['uid']},reason={reason}"
        async with asyncio.timeout(WITHIN):
            listed = await self.admin.list(EVENTS, self.namespace, field_selector=selector)
            if listed.items:
                return str(listed.items[0]["message"])
            async for event in self.admin.watch(
                EVENTS, self.namespace, resource_version=listed.resource_version, field_selector=selector
            ):
                if event.type == "ADDED":
                    return str(event.object["message"])
        raise AssertionError("the watch ended")

    def _place(self, resource: Resource) -> str | None:
        if resource is KUBEVIRTS:
            return names.NAMESPACE
        return self.namespace if resource.namespaced else None


def in_phase(phase: str) -> Callable[[Object], bool]:
    return lambda obj: bool(obj.get("status", {}).get("phase") == phase)


def shows(word: str) -> Callable[[Object], bool]:
    return lambda vm: bool(vm.get("status", {}).get("printableStatus") == word)


def condition(obj: Object, type: str) -> Object | None:
    conditions = obj.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == type), None)
