"""A real HTTP server that speaks enough of the Kubernetes API to test a client, with switches for trouble."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from hotvirt.kube.config import ClientConfig
from hotvirt.kube.patch import apply_merge_patch

PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?$"
)
Interference = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class TinyApi:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0
        """Watches and continue tokens from before this resourceVersion are answered with 410."""
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.changed = asyncio.Condition()
        self.requests: list[web.Request] = []
        self.requested = asyncio.Event()
        self.interfere: Interference | None = None
        self.close_watches = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def running(self, socket: Path | None = None) -> AsyncIterator[ClientConfig]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site: web.BaseSite
        if socket is not None:
            site = web.UnixSite(runner, str(socket))
        else:
            site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            if socket is None:
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield ClientConfig(server=self.url)
        finally:
            await runner.cleanup()

    async def put(self, plural: str, obj: dict[str, Any], kind: str = "") -> dict[str, Any]:
        """Create or change an object as somebody else would."""
        meta = obj.setdefault("metadata", {})
        key = (plural, meta.get("namespace", ""), meta["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        meta.setdefault("uid", f"uid-{meta['name']}")
        self.objects[key] = obj
        await self._record(event, plural, obj)
        return obj

    async def remove(self, plural: str, namespace: str, name: str) -> None:
        obj = self.objects.pop((plural, namespace, name))
        self.version += 1
        gone = json.loads(json.dumps(obj))
        gone["metadata"]["resourceVersion"] = str(self.version)
        await self._record("DELETED", plural, gone)

    async def send(self, event: str, plural: str, obj: dict[str, Any]) -> None:
        """An event as it is, to all watchers: duplicates, stale ones, bookmarks."""
        await self._record(event, plural, obj)

    async def _record(self, event: str, plural: str, obj: dict[str, Any]) -> None:
        async with self.changed:
            self.history.append((self.version, event, plural, json.loads(json.dumps(obj))))
            self.changed.notify_all()

    def forget_history(self) -> None:
        self.version += 1
        self.oldest = self.version

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until the requests so far make `true` true."""
        async with asyncio.timeout(60):
            while not true():
                self.requested.clear()
                await self.requested.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.requested.set()
        if self.interfere is not None and (answer := await self.interfere(request)) is not None:
            return answer
        match = PATH.match(request.path)
        if not match:
            return status(404, "NotFound", f"no path {request.path}")
        namespace, plural, name = match["namespace"] or "", match["plural"], match["name"]
        if name is None and request.method == "GET":
            if request.query.get("watch"):
                return await self.watch(request, plural, namespace)
            return self.list(request, plural, namespace)
        if request.method == "POST":
            obj = await request.json()
            obj["metadata"].setdefault("namespace", namespace)
            if (plural, namespace, obj["metadata"]["name"]) in self.objects:
                return status(409, "AlreadyExists", f"{obj['metadata']['name']} exists")
            return web.json_response(await self.put(plural, obj), status=201)
        found = self.objects.get((plural, namespace, name or ""))
        if found is None:
            return status(404, "NotFound", f'{plural} "{name}" not found')
        if request.method == "PATCH":
            patch = await request.json()
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted and wanted != found["metadata"]["resourceVersion"]:
                return status(409, "Conflict", "the object has been modified")
            return web.json_response(await self.put(plural, apply_merge_patch(found, patch)))
        if request.method == "DELETE":
            await self.remove(plural, namespace, name or "")
        return web.json_response(found)

    def list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        items = sorted(
            (obj for (kind, ns, _), obj in self.objects.items() if kind == plural and namespace in ("", ns)),
            key=lambda obj: str(obj["metadata"]["name"]),
        )
        version, start = self.version, 0
        if token := request.query.get("continue"):
            version, start = (int(part) for part in token.split("-"))
            if version < self.oldest:
                return status(410, "Expired", "the continue token is too old")
        limit = int(request.query.get("limit", "0")) or len(items)
        rest = start + limit
        meta = {"resourceVersion": str(version)}
        if rest < len(items):
            meta["continue"] = f"{version}-{rest}"
        return web.json_response({"kind": "List", "metadata": meta, "items": items[start:rest]})

    async def watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.oldest:
            error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
            return response
        at = next(
            (i for i, entry in enumerate(self.history) if entry[0] > since),
            len(self.history),
        )
        closing = self.close_watches
        while not closing.is_set() or len(self.history) > at:
            async with self.changed:
                while len(self.history) <= at and not closing.is_set():
                    await self.changed.wait()
                fresh, at = self.history[at:], len(self.history)
            for _, event, kind, obj in fresh:
                if kind == plural and namespace in ("", obj["metadata"].get("namespace", "")):
                    await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
        return response

    async def end_watches(self) -> None:
        """End every watch that runs now, as a server does every few minutes."""
        self.close_watches.set()
        async with self.changed:
            self.changed.notify_all()
        self.close_watches = asyncio.Event()

    def count(self, method: str, **query: str) -> int:
        return sum(
            1
            for request in self.requests
            if request.method == method and all(request.query.get(k) == v for k, v in query.items())
        )


def status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


def config_map(name: str, namespace: str = "default", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}
