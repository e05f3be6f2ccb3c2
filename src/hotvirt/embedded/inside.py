"""Requests of Hotvirt's own parts to the API server in the same process: the same checks, without HTTP.

A part has its token as everybody else, and is authenticated, audited and answered as everybody else; only the
way there is a call, and a watch is handed on without a connection. Logs, the aggregated API, and whatever
comes before the server is there go over its socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web
from multidict import CIMultiDict, MultiDict

from hotvirt.embedded.apiserver.read import STREAM, InsideStream
from hotvirt.embedded.apiserver.server import AGGREGATED, ApiServer
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import Unreachable
from hotvirt.kube.metrics import REQUEST_DURATION, REQUESTS, counter, histogram
from hotvirt.kube.transport import Transport, refusal_of

HOST = "inside"


class Inside:
    """The server, once it is there."""

    server: ApiServer | None = None


class InsideRequest(dict[Any, Any]):
    """What the server reads of a request; as aiohttp's, it carries what is found out about it on the way."""

    transport = None

    def __init__(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> None:
        super().__init__()
        self.method = method
        self.path = path
        self.query = MultiDict(query)
        self.headers = CIMultiDict(headers)
        self._body = body

    async def read(self) -> bytes:
        return self._body


def _is_plain(path: str) -> bool:
    """An object or a list of them: nothing that HTTP would have to take apart, and no endless answer."""
    return not (path.startswith(AGGREGATED) or path.endswith("/log") or "?" in path or "%" in path)


class InsideTransport(Transport):
    def __init__(self, inside: Inside, config: ClientConfig, user_agent: str, patient: bool = False) -> None:
        """`patient`: what its watches have to tell may wait for a moment, while others go first."""
        super().__init__(config, user_agent)
        self._inside = inside
        self._patient = patient

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout: float,
    ) -> bytes:
        server = self._inside.server
        if server is None or not _is_plain(path):
            return await super()._exchange(
                method, path, params=params, body=body, headers=headers, timeout=timeout
            )
        await self._wait_for_limit(method)
        request = InsideRequest(method, path, params or {}, self._headers(headers), body or b"")
        started, code = time.monotonic(), "<error>"
        try:
            async with asyncio.timeout(timeout):
                answer = await server.answer(request)
            code = str(answer.status)
            if method != "GET":
                await asyncio.sleep(0)  # whoever acts on what was written goes before whoever wrote it
        except TimeoutError as error:
            raise Unreachable(f"No answer from the API in time ({method} {path}).") from error
        finally:
            counter(REQUESTS, code, method, HOST).inc()
            histogram(REQUEST_DURATION, method, HOST).observe(time.monotonic() - started)
        return self._read(answer)

    @asynccontextmanager
    async def chunks(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        inactivity: float | None = None,
        at_once: Callable[[bytes], None] | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        server = self._inside.server
        if server is None or not _is_plain(path) or "watch" not in (params or {}):
            async with super().chunks(method, path, params=params, inactivity=inactivity) as chunks:
                yield chunks
            return
        await self._wait_for_limit(method)
        request = InsideRequest(method, path, params or {}, self._headers(None), b"")
        stream = request[STREAM] = InsideStream(self._patient)
        started, code = time.monotonic(), "<error>"
        try:
            answer = await server.answer(request)
            code = str(answer.status)
            histogram(REQUEST_DURATION, method, HOST).observe(time.monotonic() - started)
            self._read(answer)
            stream.hear(None if self._patient else at_once)
            async with aclosing(stream.chunks):
                yield stream.chunks
        finally:
            stream.end()
            counter(REQUESTS, code, method, HOST).inc()

    def _read(self, answer: web.StreamResponse) -> bytes:
        for warning in answer.headers.getall("Warning", ()):
            self._warn(warning)
        sent = answer.body if isinstance(answer, web.Response) else None
        assert sent is None or isinstance(sent, bytes)
        if answer.status >= 300:
            raise refusal_of(answer.status, sent or b"", answer.headers, answer.reason)
        return sent or b""
