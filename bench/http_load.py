"""A small HTTP client for measuring: so light that the server is what is measured."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

Request = Callable[[int], tuple[str, str, bytes]]
"""From the number of a request to its method, path and body."""
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Connection:
    """One kept-alive connection to a unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._head = f"Host: bench\r\nAuthorization: Bearer {token}\r\nAccept: application/json\r\n"

    @classmethod
    async def open(cls, socket: Path, token: str = "") -> Connection:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=1 << 26)
        return cls(reader, writer, token)

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        await self._writer.drain()

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        await self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = LENGTH.search(head)
        if found is None:
            raise RuntimeError(f"an answer without a length: {head[:200]!r}")
        return int(head[9:12]), await self._reader.readexactly(int(found[1]))

    async def lines(self, count: int) -> None:
        """Read so many lines of an answer in chunks; events of a watch are one line each."""
        await self._reader.readuntil(b"\r\n\r\n")
        seen = 0
        while seen < count:
            size = int(await self._reader.readline(), 16)
            seen += (await self._reader.readexactly(size + 2)).count(b"\n") - 1

    def close(self) -> None:
        self._writer.close()


async def hammer(socket: Path, token: str, connections: int, total: int, request: Request) -> float:
    """Requests a second, over so many connections; every answer must be a success."""
    counter = iter(range(total))

    async def one() -> None:
        connection = await Connection.open(socket, token)
        for number in counter:
            status, body = await connection.ask(*request(number))
            if status >= 300:
                raise RuntimeError(f"{request(number)[:2]} answered {status}: {body[:300]!r}")
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return total / (time.perf_counter() - started)
