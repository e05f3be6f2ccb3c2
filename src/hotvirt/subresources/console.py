"""The serial console over a websocket: bytes both ways, as virtctl and `hotvirt console` speak it."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from aiohttp import WSMsgType, web

from hotvirt.kube.errors import ServerError

from .requests import CLIENT, bad_request, get_vmi, place
from .vmi_verbs import require_running

PROTOCOL: Final = "plain.kubevirt.io"
CHUNK: Final = 32 * 1024
PING_EVERY: Final = 30.0
OPEN_WITHIN: Final = 10.0


class Streams(Protocol):
    """Who can reach the consoles of the machines: the node agents."""

    async def open_console(
        self, namespace: str, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


STREAMS: Final = web.AppKey("streams", Streams)


async def console(request: web.Request) -> web.StreamResponse:
    client, (namespace, name) = request.app[CLIENT], place(request)
    vmi = await get_vmi(client, namespace, name)
    require_running(vmi)
    devices = (vmi["spec"].get("domain") or {}).get("devices") or {}
    if devices.get("autoattachSerialConsole") is False:
        bad_request("No serial consoles are present.")
    socket = web.WebSocketResponse(protocols=(PROTOCOL,), heartbeat=PING_EVERY, compress=False)
    if not socket.can_prepare(request).ok:
        bad_request("The console is a websocket: use `hotvirt console` or `virtctl console`.")
    try:
        async with asyncio.timeout(OPEN_WITHIN):
            reader, writer = await request.app[STREAMS].open_console(namespace, name)
    except (OSError, TimeoutError, LookupError) as error:
        raise ServerError(
            500,
            "InternalError",
            f"The console of {namespace}/{name} cannot be reached: {error or 'no answer'}.",
        ) from error
    try:
        await socket.prepare(request)
        await relay(socket, reader, writer)
    finally:
        writer.close()
    return socket


async def relay(
    socket: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Until one side ends."""
    to_guest = asyncio.create_task(_to_guest(socket, writer))
    to_user = asyncio.create_task(_to_user(socket, reader))
    tasks = {to_guest, to_user}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await socket.close()


async def _to_guest(socket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    async for message in socket:
        if message.type == WSMsgType.BINARY:
            writer.write(message.data)
        elif message.type == WSMsgType.TEXT:
            writer.write(message.data.encode())
        try:
            await writer.drain()
        except ConnectionError:
            return


async def _to_user(socket: web.WebSocketResponse, reader: asyncio.StreamReader) -> None:
    try:
        while data := await reader.read(CHUNK):
            await socket.send_bytes(data)
    except ConnectionError:
        return
