"""The Kubernetes client: get, list, create, update, patch, delete, watch, by `Resource`.

Typed views are decoded straight from the wire (`cls=`); whoever writes an object back sends a patch, so that
nothing a user wrote is lost. What to know about `watch`: it ends (servers close it every few minutes),
and raises `Gone` when the resourceVersion is too old. `informer.py` does all that is needed about it.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Literal, Self, TypeVar, overload

import aiohttp
import msgspec

from hotvirt import __version__
from hotvirt.api import codec
from hotvirt.api.resources import Resource

from .config import ClientConfig
from .errors import Gone, Unreachable, error_for
from .transport import Later, Transport
from .wire import decode_as, decode_line, decode_page, item_as, selectors

T = TypeVar("T")
PatchKind = Literal["merge", "json", "strategic"]
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
WATCH_SECONDS = (300, 600)
INACTIVITY = 120.0
"""A live server sends a bookmark about every minute: silence for longer means a half-open connection."""


class ObjectList(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    resource_version: str


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK (its object has a resourceVersion and little else)."""
    object: T


class Client:
    def __init__(
        self,
        config: ClientConfig,
        user_agent: str = f"hotvirt/{__version__}",
        *,
        qps: float = 1000,
        burst: int = 2000,
        timeout: float = 60.0,
        transport: Transport | None = None,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self.transport = transport or Transport(config, user_agent, qps=qps, burst=burst, timeout=timeout)
        self._rng = rng

    @property
    def on_warning(self) -> Callable[[str], None]:
        """Called with the text of every admission warning."""
        return self.transport.on_warning

    @on_warning.setter
    def on_warning(self, callback: Callable[[str], None]) -> None:
        self.transport.on_warning = callback

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    @overload
    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> dict[str, Any]: ...
    @overload
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        cls: type[T],
        subresource: str | None = None,
    ) -> T: ...
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        cls: type[Any] = dict,
        subresource: str | None = None,
    ) -> Any:
        return decode_as(
            await self.transport.request("GET", resource.path(namespace, name, subresource)), cls
        )

    @overload
    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> ObjectList[dict[str, Any]]: ...
    @overload
    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        cls: type[T],
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> ObjectList[T]: ...
    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        cls: type[Any] = dict,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> Any:
        """All objects, fetched in pages of `limit` (0: in one). All pages show the same moment."""
        items: builtins.list[Any] = []
        version = ""
        async for page_version, raw_items in self.pages(
            resource, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit
        ):
            if raw_items is None:
                items.clear()
                continue
            version = page_version
            items.extend(item_as(raw, cls, resource) for raw in raw_items)
        return ObjectList(items, version)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> AsyncIterator[tuple[str, builtins.list[msgspec.Raw] | None]]:
        """The pages of a list, undecoded. A page of None: forget those before, the list begins anew."""
        params = selectors(label_selector, field_selector)
        if limit:
            params["limit"] = str(limit)
        path = resource.path(namespace)
        while True:
            try:
                page = decode_page(await self.transport.request("GET", path, params=params))
            except Gone:
                if "continue" not in params:
                    raise
                # As client-go: the rest of this list is gone, so take the whole of a newer one in one piece.
                params = selectors(label_selector, field_selector)
                yield "", None
                continue
            yield page.metadata.resource_version, page.items or []
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    @overload
    async def create(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]: ...
    @overload
    async def create(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        cls: type[T],
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T: ...
    async def create(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        cls: type[Any] = dict,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Any:
        """POST; `name` and `subresource` are for subresources that are created (`binding`, `eviction`)."""
        answer = await self._send("POST", resource.path(namespace, name, subresource), obj, dry_run)
        return decode_as(answer, cls)

    @overload
    async def update(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]: ...
    @overload
    async def update(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        cls: type[T],
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T: ...
    async def update(
        self,
        resource: Resource,
        obj: Any,
        namespace: str | None = None,
        *,
        cls: type[Any] = dict,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Any:
        """PUT of a whole object; the name comes from its metadata unless given."""
        if name is None:
            name = obj["metadata"]["name"] if isinstance(obj, dict) else obj.metadata.name
        answer = await self._send("PUT", resource.path(namespace, name, subresource), obj, dry_run)
        return decode_as(answer, cls)

    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]: ...
    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        cls: type[T],
        dry_run: bool = False,
    ) -> T: ...
    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        cls: type[Any] = dict,
        dry_run: bool = False,
    ) -> Any:
        path = resource.path(namespace, name, subresource)
        return decode_as(await self._send("PATCH", path, patch, dry_run, PATCH_TYPES[kind]), cls)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation is not None:
            options["propagationPolicy"] = propagation
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        answer = await self._send("DELETE", resource.path(namespace, name), options, dry_run)
        decoded: dict[str, Any] = decode_as(answer, dict)
        return decoded

    async def _send(
        self, method: str, path: str, obj: Any, dry_run: bool, content_type: str = "application/json"
    ) -> bytes:
        body = obj if isinstance(obj, bytes) else codec.encode(obj)
        params = {"dryRun": "All"} if dry_run else None
        return await self.transport.request(
            method, path, params=params, body=body, headers={"Content-Type": content_type}
        )

    @overload
    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
        inactivity: float = INACTIVITY,
    ) -> AsyncGenerator[WatchEvent[dict[str, Any]], None]: ...
    @overload
    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        cls: type[T],
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
        inactivity: float = INACTIVITY,
        at_once: Callable[[WatchEvent[T]], None] | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]: ...
    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        cls: type[Any] = dict,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
        inactivity: float = INACTIVITY,
        at_once: Callable[[WatchEvent[Any]], None] | None = None,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        """Changes after `resource_version`, until the server ends it. Raises Gone when that is too old.

        A server in this process may hand a change to `at_once` when it happens, instead of yielding it.
        """

        def event_of(line: bytes) -> WatchEvent[Any]:
            event = decode_line(line)
            if event.type == "ERROR":
                raise error_for(500, msgspec.json.decode(event.object))
            return WatchEvent(event.type, item_as(event.object, cls, resource))

        if timeout_seconds is None:
            shortest, longest = WATCH_SECONDS
            timeout_seconds = int(shortest + (longest - shortest) * self._rng())
        params = selectors(label_selector, field_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        path = resource.path(namespace)
        hear = None if at_once is None else lambda line: at_once(event_of(line))
        lines = self.lines("GET", path, params=params, inactivity=inactivity, at_once=hear)
        async with aclosing(lines):
            async for line in lines:
                yield event_of(line)

    async def lines(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        inactivity: float | None = None,
        at_once: Callable[[bytes], None] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The answer line by line, as it comes (watches, logs with follow)."""
        rest = b""
        try:
            async with self.transport.chunks(
                method, path, params=params, inactivity=inactivity, at_once=at_once
            ) as chunks:
                async for chunk in chunks:
                    whole, newline, tail = chunk.rpartition(b"\n")
                    if not newline:
                        rest += chunk
                        continue
                    for line in (rest + whole).split(b"\n"):
                        if line:
                            yield line
                    rest = tail
        except Later as later:
            raise later.error from None
        if rest:
            # A watch cut off in the middle of an event is broken; a log may end without a newline.
            if params and "watch" in params:
                raise Unreachable(f"The watch on {path} was cut off in the middle of an event.")
            yield rest

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        cls: type[Any] = dict,
        timeout: float | None = None,
    ) -> Any:
        """Anything else: the aggregated API's subresources, `/version`. `cls=bytes`: the answer as it is."""
        data = None if body is None else body if isinstance(body, bytes) else codec.encode(body)
        headers = None if data is None else {"Content-Type": content_type}
        answer = await self.transport.request(
            method, path, params=params, body=data, headers=headers, timeout=timeout
        )
        return decode_as(answer, cls)

    async def connect_ws(
        self, path: str, protocols: tuple[str, ...] = (), *, params: Mapping[str, str] | None = None
    ) -> aiohttp.ClientWebSocketResponse:
        return await self.transport.connect_ws(path, protocols, params=params)
