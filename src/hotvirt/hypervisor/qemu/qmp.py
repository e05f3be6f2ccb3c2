"""QEMU's monitor: one persistent connection, commands in flight side by side, events to whoever listens.

The other end belongs to a tenant's Pod: lines are bounded, every command has a time limit.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

# The longest answer is the list of 255 vCPU slots, some 60 KiB.
MAX_LINE = 1 << 20
COMMAND_TIMEOUT = 30.0
Event = dict[str, Any]
Listener = Callable[[Event], None]


class QmpError(RuntimeError):
    """QEMU refused a command. `kind` is QEMU's error class."""

    def __init__(self, command: str, kind: str, message: str) -> None:
        super().__init__(f"{command}: {message}")
        self.kind = kind
        self.message = message


class QmpClosed(ConnectionError):
    """The connection to the monitor is gone: the machine has ended, or is not what it should be."""


class Qmp(asyncio.Protocol):
    """Made by `open_qmp`."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.greeting: dict[str, Any] = {}
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._listeners: list[Listener] = []
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reason = "the machine has ended"

    async def execute(
        self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Send a command and wait for its answer; several may be under way."""
        timeout = timeout or COMMAND_TIMEOUT
        if self._transport is None or self.closed.is_set():
            raise QmpClosed(self._reason)
        number = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        request: dict[str, Any] = {"execute": command, "id": number}
        if arguments:
            request["arguments"] = arguments
        self._transport.write(msgspec.json.encode(request) + b"\n")
        try:
            async with asyncio.timeout(timeout):
                reply = await answer
        except TimeoutError:
            raise QmpError(command, "Timeout", f"no answer from QEMU within {timeout:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            error = reply["error"] if isinstance(reply["error"], dict) else {"desc": reply["error"]}
            raise QmpError(command, str(error.get("class", ""))[:100], str(error.get("desc", ""))[:1000])
        return reply.get("return")

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(event)` for every event; the answer stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def greeted(self) -> None:
        await self._ready

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass of it

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if line.strip():
                self._line(line)
        if len(self._buffer) > MAX_LINE:
            self._fail(f"a line of more than {MAX_LINE >> 20} MiB came from the monitor")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        for future in (self._ready, *self._waiting.values()):
            if not future.done():
                future.set_exception(QmpClosed(self._reason))
                future.exception()  # nobody may be waiting for this one
        for listener in list(self._listeners):
            listener({"event": "CLOSED", "data": {}})

    def _fail(self, reason: str) -> None:
        self._reason = reason
        self.close()

    def _line(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            self._fail("what came from the monitor is not JSON")
            return
        if not isinstance(message, dict):
            self._fail("what came from the monitor is not a JSON object")
        elif not isinstance(message.get("data", {}), dict) or not isinstance(message.get("id", 0), int):
            self._fail("what came from the monitor is not what QEMU sends")
        elif "event" in message:
            for listener in list(self._listeners):
                listener(message)
        elif "QMP" in message:
            self.greeting = message["QMP"] if isinstance(message["QMP"], dict) else {}
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            answer = self._waiting.get(message.get("id", 0))
            if answer is not None and not answer.done():
                answer.set_result(message)


async def open_qmp(connection: socket.socket, *, timeout: float = 10.0) -> Qmp:
    """A monitor on a connected socket, greeted and ready for commands."""
    loop = asyncio.get_running_loop()
    _, monitor = await loop.create_unix_connection(Qmp, sock=connection)
    try:
        async with asyncio.timeout(timeout):
            await monitor.greeted()
            await monitor.execute("qmp_capabilities", timeout=timeout)
    except TimeoutError:
        monitor.close()
        raise QmpClosed(f"the monitor did not greet within {timeout:g} s: is another client on it?") from None
    except BaseException:
        monitor.close()
        raise
    return monitor
