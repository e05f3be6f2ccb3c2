"""A client that hides nothing: every answer with its code, headers and body, every event of a watch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.targets.target import Target

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

EVENT_WITHIN = 60.0
WATCHED_FOR = 280
"""Seconds: longer than anything in it is waited for."""


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    raw: bytes
    warnings: list[str]

    @property
    def type(self) -> str:
        return self.headers.get("Content-Type", "")

    @property
    def text(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    def ok(self, status: int = 200) -> Any:
        """The body, after checking that the server did as asked."""
        assert self.status == status, f"expected {status}, got {self.status}: {self.text[:2000]}"
        return self.json

    def refused(self, code: int, reason: str | None, message: str | None = None) -> dict[str, Any]:
        """The Status of a refusal, with its code, reason and, where given, whole message."""
        assert self.status == code, f"expected {code} {reason}, got {self.status}: {self.text[:2000]}"
        status: dict[str, Any] = self.json
        assert (status["kind"], status["apiVersion"]) == ("Status", "v1")
        assert status["metadata"] == {}
        assert status["status"] == "Failure"
        assert status["code"] == code
        assert status.get("reason") == reason, status
        if message is not None:
            assert status["message"] == message
        return status


class Watch:
    """The events of one watch, in the order in which they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.headers = response.headers

    async def next(self, within: float = EVENT_WITHIN) -> dict[str, Any]:
        line = await asyncio.wait_for(self._line(), within)
        assert line, "the watch ended while an event was expected"
        event: dict[str, Any] = json.loads(line)
        return event

    async def _line(self) -> bytes:
        parts = []
        while True:  # readline() refuses lines over its buffer; an object may be larger
            try:
                part = await self._response.content.readuntil(b"\n")
            except ValueError:
                part = await self._response.content.readany()
            parts.append(part)
            if not part or part.endswith(b"\n"):
                return b"".join(parts)

    async def expect(self, kind: str, name: str) -> dict[str, Any]:
        """The next event must be this one; returns its object."""
        event = await self.next()
        found = (event["type"], event["object"].get("metadata", {}).get("name"))
        assert found == (kind, name), event
        found_object: dict[str, Any] = event["object"]
        return found_object

    async def ended(self, within: float = EVENT_WITHIN) -> None:
        line = await asyncio.wait_for(self._line(), within)
        assert not line, f"the watch should have ended, but sent {line!r}"


class Api:
    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self.target = target
        self._session = session

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = JSON,
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        anonymous: bool = False,
        **params: str | int | bool,
    ) -> Answer:
        send = {"Accept": accept}
        if not anonymous and (bearer := token or self.target.token):
            send["Authorization"] = f"Bearer {bearer}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            if content_type:
                send["Content-Type"] = content_type
        send.update(headers or {})
        async with self._session.request(
            method,
            self.target.url + path,
            params=query(params),
            data=data,
            headers=send,
            skip_auto_headers=["Content-Type"],
            ssl=self.target.tls_without_user if anonymous or token else self.target.tls,
        ) as response:
            raw = await response.read()
            return Answer(response.status, response.headers, raw, response.headers.getall("Warning", []))

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("POST", path, body, **options)

    async def put(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("PUT", path, body, **options)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **options: Any) -> Answer:
        return await self.request("PATCH", path, body, content_type=content_type, **options)

    async def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.request("DELETE", path, body, **options)

    async def create(self, path: str, body: Any, **options: Any) -> dict[str, Any]:
        created: dict[str, Any] = (await self.post(path, body, **options)).ok(201)
        return created

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, *, accept: str = JSON, **params: str | int | bool
    ) -> AsyncIterator[Watch]:
        headers = {"Accept": accept}
        if self.target.token:
            headers["Authorization"] = f"Bearer {self.target.token}"
        everything: dict[str, str | int | bool] = {"watch": True, "timeoutSeconds": WATCHED_FOR, **params}
        async with self._session.get(
            self.target.url + path, params=query(everything), headers=headers, ssl=self.target.tls
        ) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)


async def soon(
    ask: Callable[[], Awaitable[Answer]], so: Callable[[Answer], bool], within: float = EVENT_WITHIN
) -> Answer:
    """The first answer that is so. A real API server goes by copies of what it has stored, and nothing tells
    when they have caught up.
    """
    deadline = time.monotonic() + within
    while not so(answer := await ask()):
        assert time.monotonic() < deadline, f"it still is {answer.status}: {answer.text[:2000]}"
        await asyncio.sleep(0.05)
    return answer


def query(params: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Query parameters as Kubernetes writes them: true and false in lower case."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()
    }


def causes(status: dict[str, Any]) -> set[tuple[str, str]]:
    """The (reason, field) pairs of a refusal."""
    return {(cause["reason"], cause["field"]) for cause in status["details"]["causes"]}
