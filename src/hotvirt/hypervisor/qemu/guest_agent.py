"""The agent inside the guest (qemu-guest-agent): the guest's own view of itself.

It is written by the tenant: everything read from it is bounded in size and time, and no call waits for an
agent that is not there. One call at a time: the channel has no ids.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from typing import Any

import msgspec

from hotvirt.hypervisor.driver import DriverError
from hotvirt.hypervisor.sockets import NoSocket, connect

# The longest answer is the list of memory blocks, 60 bytes each, and a large guest has larger blocks. All
# guests of a node may send so much at once.
MAX_REPLY = 1 << 20
SYNC_TIMEOUT = 3.0
CALL_TIMEOUT = 10.0
# What comes of an answer that no agent would give.
NO_AGENT = (ValueError, AttributeError, RecursionError, asyncio.LimitOverrunError)


class AgentError(RuntimeError):
    """The agent refused a command."""


class NoAgent(ConnectionError):
    """No agent answers in this guest."""


class GuestAgent:
    """Connects when first called and again after trouble; `name` is the socket in the run folder."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(
        self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float = CALL_TIMEOUT
    ) -> Any:
        request: dict[str, Any] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        async with self._lock:
            try:
                async with asyncio.timeout(timeout):
                    reader, writer = await self._synced()
                    writer.write(msgspec.json.encode(request) + b"\n")
                    reply = await self._read(reader)
            except TimeoutError:
                self._drop()
                raise NoAgent(f"the guest agent did not answer {command} within {timeout:g} s") from None
            except (OSError, EOFError, *NO_AGENT) as error:
                self._drop()
                raise NoAgent(f"the guest agent is not reachable: {error}") from error
            except BaseException:
                # Cancelled in mid-answer: the next call must not read this one's reply.
                self._drop()
                raise
        if "error" in reply:
            error_text = reply["error"].get("desc") if isinstance(reply["error"], dict) else reply["error"]
            raise AgentError(f"{command}: {str(error_text)[:500]}")
        return reply.get("return")

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _synced(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The channel, in step: an earlier client may have left half a question or an unread answer in it."""
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        self._drop()
        try:
            connection = await connect(self._folder, self._name)
        except NoSocket as error:
            raise NoAgent(str(error)) from error
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_REPLY)
        self._streams = reader, writer
        number = secrets.randbelow(1 << 30)
        sync = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
        async with asyncio.timeout(SYNC_TIMEOUT):
            writer.write(b"\xff" + msgspec.json.encode(sync) + b"\n")
            # The 0xFF makes the agent drop what it had; it may answer that with an error line first. Our
            # answer is the one that begins with 0xFF itself: reading the first line instead would be off by
            # one for ever.
            while True:
                line = await reader.readuntil(b"\n")
                if (
                    line.startswith(b"\xff")
                    and msgspec.json.decode(line.lstrip(b"\xff")).get("return") == number
                ):
                    return self._streams

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise ValueError(f"an answer of more than {MAX_REPLY >> 20} MiB") from None
        reply = msgspec.json.decode(line.lstrip(b"\xff"))
        if not isinstance(reply, dict):
            raise ValueError("an answer that is not an object")
        return reply

    # What the guest says of itself

    async def vcpus(self) -> list[dict[str, Any]]:
        """[{logical-id, online, can-offline}], by logical id."""
        listed = _numbered(await self.call("guest-get-vcpus"), "logical-id")
        return sorted(listed, key=lambda vcpu: int(vcpu["logical-id"]))

    async def set_vcpus(self, online: dict[int, bool]) -> int:
        """How many were set; the agent stops at the first that fails."""
        wanted = [{"logical-id": number, "online": state} for number, state in online.items()]
        done = await self.call("guest-set-vcpus", {"vcpus": wanted}, timeout=30.0)
        return int(done) if isinstance(done, int) else 0

    async def os_info(self) -> dict[str, str]:
        info = await self.call("guest-get-osinfo")
        return {str(k): str(v)[:256] for k, v in info.items()} if isinstance(info, dict) else {}

    async def network_interfaces(self) -> list[dict[str, Any]]:
        return _objects(await self.call("guest-network-get-interfaces"))[:64]

    async def memory_blocks(self) -> list[dict[str, Any]]:
        return _numbered(await self.call("guest-get-memory-blocks"), "phys-index")

    async def set_memory_blocks(self, online: dict[int, bool]) -> list[dict[str, Any]]:
        wanted = [{"phys-index": number, "online": state} for number, state in online.items()]
        return _objects(await self.call("guest-set-memory-blocks", {"mem-blks": wanted}, timeout=60.0))

    async def memory_block_size(self) -> int:
        info = await self.call("guest-get-memory-block-info")
        size = info.get("size") if isinstance(info, dict) else None
        return size if isinstance(size, int) else 0

    async def shutdown(self, mode: str) -> None:
        """`reboot` or `powerdown`. The agent answers nothing when it works: sending it is all there is.

        So it is asked for a sign of life first: without that, silence would pass for success.
        """
        try:
            await self.call("guest-ping")
        except (NoAgent, AgentError) as error:
            raise DriverError(f"the guest agent could not be asked for a {mode}: {error}") from error
        try:
            await self.call("guest-shutdown", {"mode": mode}, timeout=SYNC_TIMEOUT)
        except NoAgent:
            return
        except AgentError as error:
            raise DriverError(f"the guest agent refused a {mode}: {error}") from error

    async def read_file(self, path: str, limit: int = 65536) -> bytes:
        handle = await self.call("guest-file-open", {"path": path, "mode": "r"})
        try:
            answer = await self.call("guest-file-read", {"handle": handle, "count": limit})
            return base64.b64decode(answer["buf-b64"])[:limit]
        except (TypeError, KeyError, ValueError) as error:
            raise AgentError(f"{path}: what came is no content of a file") from error
        finally:
            await self.call("guest-file-close", {"handle": handle})

    async def write_file(self, path: str, data: bytes) -> None:
        handle = await self.call("guest-file-open", {"path": path, "mode": "w"})
        try:
            await self.call(
                "guest-file-write", {"handle": handle, "buf-b64": base64.b64encode(data).decode()}
            )
        finally:
            await self.call("guest-file-close", {"handle": handle})


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _numbered(value: Any, number: str) -> list[dict[str, Any]]:
    return [item for item in _objects(value) if isinstance(item.get(number), int)]


def folder_copy(folder: int) -> int:
    """A descriptor of our own for the run folder: the caller may close theirs."""
    return os.dup(folder)
