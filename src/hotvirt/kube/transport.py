"""HTTP to one API server: connections, identity, rate limit, retries that the server asks for, metrics.

Everything above (`client.py`) speaks of objects; everything here of requests and bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from .config import ClientConfig
from .errors import Unreachable, error_for
from .metrics import RATE_LIMITER_DURATION, REQUEST_DURATION, REQUESTS, counter, histogram

MAX_SOCKET_PATH = 107
MAX_RETRIES = 10
LONGEST_RETRY_AFTER = 60.0
WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class RateLimit:
    """A token bucket: `qps` requests a second, after a burst. Far above need; it only stops a hot loop."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def reserve(self) -> float:
        """Take one token; the seconds until it is there."""
        self._refill()
        self._tokens -= 1
        return 0.0 if self._tokens >= 0 else -self._tokens / self._qps

    def allow(self) -> bool:
        """Take one token if there is one."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
        self._at = now


class Transport:
    def __init__(
        self,
        config: ClientConfig,
        user_agent: str,
        *,
        qps: float = 1000,
        burst: int = 2000,
        timeout: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self.on_warning: Callable[[str], None] = lambda text: None
        self._user_agent = user_agent
        self._timeout = timeout
        self._limit = RateLimit(qps, burst)
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._socket_folder: int | None = None
        self._host = "unix" if config.unix_socket else config.server.split("//", 1)[-1]
        self._base = "http://localhost" if config.unix_socket else config.server

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                auto_decompress=True,
                headers={"User-Agent": self._user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        if self.config.unix_socket is not None:
            return aiohttp.UnixConnector(path=self._short_socket_path(self.config.unix_socket), limit=0)
        return aiohttp.TCPConnector(ssl=self.config.ssl_context() or True, limit=0)

    def _short_socket_path(self, path: Path) -> str:
        """The kernel takes 107 bytes of a socket's path: a longer one goes through a descriptor."""
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return str(path)
        if self._socket_folder is None:
            self._socket_folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._socket_folder}/{path.name}"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._socket_folder is not None:
            os.close(self._socket_folder)
            self._socket_folder = None

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        merged = {"Accept": "application/json"}
        if token := self.config.bearer_token():
            merged["Authorization"] = f"Bearer {token}"
        merged.update(headers or {})
        return merged

    async def _wait_for_limit(self, verb: str) -> None:
        delay = self._limit.reserve()
        if delay > 0:
            await self._sleep(delay)
        histogram(RATE_LIMITER_DURATION, verb, self._host).observe(delay)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        inactivity: float | None = None,
        total: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One exchange whose answer the caller reads; refusals are raised, network trouble is Unreachable."""
        await self._wait_for_limit(method)
        started = time.monotonic()
        code = "<error>"
        try:
            async with self._open().request(
                method,
                self._base + path,
                params=params,
                data=body,
                headers=self._headers(headers),
                timeout=aiohttp.ClientTimeout(total=total, sock_read=inactivity, sock_connect=10),
                server_hostname=self.config.tls_server_name,
                allow_redirects=False,
            ) as answer:
                code = str(answer.status)
                histogram(REQUEST_DURATION, method, self._host).observe(time.monotonic() - started)
                for warning in answer.headers.getall("Warning", ()):
                    self._warn(warning)
                if answer.status >= 300:
                    raise refusal_of(answer.status, await answer.read(), answer.headers, answer.reason)
                yield answer
        except TimeoutError as error:
            raise Unreachable(f"No answer from {self._host} in time ({method} {path}).") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._host} cannot be reached ({method} {path}): {error}") from error
        finally:
            counter(REQUESTS, code, method, self._host).inc()

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
        """An answer without an end: what there is of it, as it comes. Nothing of HTTP's comes `at_once`."""
        async with self.stream(method, path, params=params, inactivity=inactivity) as answer:
            yield answer.content.iter_any()

    def _warn(self, header: str) -> None:
        for text in WARNING.findall(header):
            self.on_warning(text.replace('\\"', '"').replace("\\\\", "\\"))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """One exchange. When the server says Retry-After, it is asked again after that time."""
        for attempt in range(MAX_RETRIES + 1):
            try:
                return await self._exchange(
                    method, path, params=params, body=body, headers=headers, timeout=timeout or self._timeout
                )
            except Later as later:
                if attempt == MAX_RETRIES:
                    raise later.error from None
                await self._sleep(min(later.seconds, LONGEST_RETRY_AFTER))
        raise AssertionError("unreachable")

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
        async with self.stream(
            method, path, params=params, body=body, headers=headers, total=timeout
        ) as answer:
            return await answer.read()

    async def connect_ws(
        self,
        path: str,
        protocols: tuple[str, ...] = (),
        *,
        params: Mapping[str, str] | None = None,
        heartbeat: float | None = 30.0,
    ) -> aiohttp.ClientWebSocketResponse:
        try:
            return await self._open().ws_connect(
                self._base + path,
                protocols=protocols,
                headers=self._headers(None),
                params=params,
                heartbeat=heartbeat,
                server_hostname=self.config.tls_server_name,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_for(error.status, error.message) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._host} cannot be reached (websocket {path}): {error}") from error


class Later(Exception):
    """The server is busy and says when to come back."""

    def __init__(self, seconds: float, error: Exception) -> None:
        super().__init__(str(error))
        self.seconds = seconds
        self.error = error


def refusal_of(code: int, body: bytes, headers: Mapping[str, str], reason: str | None) -> Exception:
    """What an answer means that is no success."""
    status: Any
    try:
        status = msgspec.json.decode(body)
    except msgspec.DecodeError:
        status = body.decode(errors="replace").strip() or reason
    error = error_for(code, status)
    retry_after = headers.get("Retry-After", "")
    if retry_after.isdigit() and (code == 429 or code >= 500):
        return Later(float(retry_after), error)
    return error
