"""The invariant of every resize, read from the API alone, so that it can be checked on any cluster.

Every version of a machine's Pod and VMI is collected, put in the order in which the API took them (by
resourceVersion), and given to the log that checks each entry (`tests/size_log.py`). The hypervisor is taken
to have all that the node agent claimed, and the limit in force what the Pod's status says: after each
resize the real cgroup is compared with it (`guests.Guest.becomes`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from hotvirt.api import names
from hotvirt.api.resources import PODS, VMIS, Resource
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError, Gone
from tests.kube import Object
from tests.size_log import SizeLog

from .place import Place

KINDS = (PODS, VMIS)
WITHIN = 60.0
RETRY = 0.2


@contextmanager
def watched_beside(place: Place, *namespaces: str) -> Iterator[None]:
    """For tests that are no coroutines: in a thread of its own. Checks all of it at the end."""
    ready, over = threading.Event(), threading.Event()

    async def watch() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(place.client())
            for namespace in namespaces:
                await stack.enter_async_context(Sizes(client, namespace).watched())
            ready.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(asyncio.run, watch())
        watching.add_done_callback(lambda _: ready.set())
        try:
            assert ready.wait(WITHIN)
            assert not watching.done(), watching.exception()
            yield
        finally:
            over.set()
        watching.result()


class Sizes:
    """All versions of the machines in one namespace from now on."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._versions: dict[int, tuple[Resource, Object]] = {}
        self._listed = {kind: asyncio.Event() for kind in KINDS}
        self._news = asyncio.Event()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Checks all of it at the end."""
        tasks = [asyncio.create_task(self._collect(kind)) for kind in KINDS]
        try:
            for event in self._listed.values():
                await event.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._check()

    async def seen(self, kind: Resource, name: str, holds: Callable[[Object], Any], within: float) -> Object:
        """The first version of the object that was so, however short that was."""
        async with asyncio.timeout(within):
            while True:
                self._news.clear()
                for _, (found, obj) in sorted(self._versions.items()):
                    if found is kind and obj["metadata"]["name"] == name and holds(obj):
                        return obj
                await self._news.wait()

    async def _collect(self, kind: Resource) -> None:
        since = None
        while True:
            try:
                if since is None:
                    listed = await self._client.list(kind, self._namespace)
                    for each in listed.items:
                        self._keep(kind, each)
                    since = listed.resource_version
                    self._listed[kind].set()
                async for event in self._client.watch(kind, self._namespace, resource_version=since):
                    if event.type in ("ADDED", "MODIFIED"):
                        self._keep(kind, event.object)
                    since = event.object["metadata"]["resourceVersion"]
            except Gone:
                since = None
            except (ApiError, OSError):
                await asyncio.sleep(RETRY)  # the server was killed: nothing tells when it is back

    def _keep(self, kind: Resource, obj: Object) -> None:
        self._versions[int(obj["metadata"]["resourceVersion"])] = (kind, obj)
        self._news.set()

    def _check(self) -> None:
        log = SizeLog(from_api=True)
        for _, (kind, obj) in sorted(self._versions.items()):
            if names.LABEL_VM_NAME in obj["metadata"].get("labels", {}) or kind is VMIS:
                log.object(kind.group_resource, obj)
        log.check()
