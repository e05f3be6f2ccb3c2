"""A monitor in a tenant's Pod that is no QEMU: nothing of it stays with the node agent."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor.driver import DriverError, MachineGone
from hotvirt.hypervisor.qemu import qmp
from hotvirt.hypervisor.qemu.driver import QemuDriver

TRIES = 5
GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 22}}, "capabilities": []}}
Reply = Callable[[dict[str, Any]], bytes]


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def told(value: Any) -> Reply:
    return lambda request: line(**{"return": value, "id": request["id"]})


STRANGERS: dict[str, Reply] = {
    "is silent": lambda request: b"",
    "floods": lambda request: b"x" * (qmp.MAX_LINE + 1),
    "refuses": lambda request: line(error={"class": "GenericError", "desc": "no"}, id=request["id"]),
    "refuses without words": lambda request: line(error=7, id=request["id"]),
    "answers with a number": told(7),
    "answers with nothing": told(None),
    "answers with numbers": told([7]),
    "tells of events in another shape": lambda request: line(event="STOP", data=[1]),
    "answers to a list": lambda request: line(**{"return": [], "id": [1]}),
}


@asynccontextmanager
async def stranger(folder: Path, reply: Reply) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Greets as QEMU does, and goes on in its own way. The connections, each until it ends."""
    connections: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line(**GREETING))
        try:
            while received := await reader.readline():
                request = json.loads(received)
                first = request["execute"] == "qmp_capabilities"
                writer.write(told({})(request) if first else reply(request))
        except ConnectionError:
            pass  # cut off in the middle of a flood
        finally:
            writer.close()

    server = await asyncio.start_unix_server(
        lambda reader, writer: connections.append(asyncio.create_task(serve(reader, writer))),
        folder / "qmp.sock",
    )
    try:
        yield connections
    finally:
        server.close()


@pytest.mark.parametrize("how", STRANGERS)
async def test_nothing_stays_of_a_monitor_that(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "COMMAND_TIMEOUT", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        async with stranger(tmp_path, STRANGERS[how]) as connections:
            for _ in range(TRIES):
                with pytest.raises((MachineGone, DriverError)):
                    await QemuDriver().connect(folder)
            async with asyncio.timeout(30):
                await asyncio.gather(*connections)  # each was closed by us
            assert len(connections) == TRIES
            gc.collect()
            monitors = [each for each in gc.get_objects() if isinstance(each, qmp.Qmp)]
            assert all(each.closed.is_set() for each in monitors)
            assert descriptors_of(tmp_path) == 1, "only our own"
    finally:
        os.close(folder)


def descriptors_of(folder: Path) -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            count += link.readlink() == folder
    return count
