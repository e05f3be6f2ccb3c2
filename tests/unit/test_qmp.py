"""The monitor client against a server on a real unix socket: as QEMU speaks, and as it should not."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hotvirt.hypervisor import sockets
from hotvirt.hypervisor.qemu import qmp
from hotvirt.hypervisor.qemu.qmp import Qmp, QmpClosed, QmpError, open_qmp

GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 22}}, "capabilities": []}}
Speak = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


class Monitor:
    """A monitor that answers by `speak`; `qmp_capabilities` is answered for it."""

    def __init__(self, folder: Path, speak: Speak, greeting: bytes | None = None) -> None:
        self.folder = folder
        self._speak = speak
        self._greeting = greeting or json.dumps(GREETING).encode() + b"\n"
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Qmp:
        self._server = await asyncio.start_unix_server(self._serve, self.folder / "qmp.sock")
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection = await sockets.connect(descriptor, "qmp.sock")
        finally:
            os.close(descriptor)
        self.client = await open_qmp(connection, timeout=30)
        return self.client

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "client"):
            self.client.close()
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._greeting)
        while line := await reader.readline():
            request = json.loads(line)
            if request["execute"] == "qmp_capabilities":
                answer(writer, request, {})
            else:
                await self._speak(request, writer)
        writer.close()


def answer(writer: asyncio.StreamWriter, request: dict[str, Any], value: Any) -> None:
    writer.write(json.dumps({"return": value, "id": request["id"]}).encode() + b"\r\n")


async def echo(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    answer(writer, request, request["execute"])


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path


async def test_commands_in_flight_get_their_own_answers_whatever_the_order(folder: Path) -> None:
    held: list[dict[str, Any]] = []

    async def backwards(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        held.append(request)
        if len(held) == 3:
            for each in reversed(held):
                answer(writer, each, each["execute"])

    async with Monitor(folder, backwards) as monitor:
        assert await asyncio.gather(*(monitor.execute(name) for name in "abc")) == ["a", "b", "c"]


async def test_events_between_a_command_and_its_answer_reach_every_listener(folder: Path) -> None:
    async def eventful(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"event": "STOP", "timestamp": {}}\n')
        answer(writer, request, "done")

    async with Monitor(folder, eventful) as monitor:
        heard: list[str] = []
        monitor.add_listener(lambda event: heard.append("one " + event["event"]))
        stop = monitor.add_listener(lambda event: heard.append("two " + event["event"]))
        assert await monitor.execute("stop") == "done"
        stop()
        await monitor.execute("stop")
    assert heard == ["one STOP", "two STOP", "one STOP"]


async def test_a_refusal_carries_the_class_and_the_sentence(folder: Path) -> None:
    async def refuse(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        error = {"class": "GenericError", "desc": "CPU[3] with APIC ID 3 exists"}
        writer.write(json.dumps({"error": error, "id": request["id"]}).encode() + b"\n")

    async with Monitor(folder, refuse) as monitor:
        with pytest.raises(QmpError, match="device_add: CPU") as caught:
            await monitor.execute("device_add", {"id": "x"})
    assert caught.value.kind == "GenericError"


async def test_silence_ends_in_a_time_out_and_the_connection_stays_usable(folder: Path) -> None:
    async def mute(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if request["execute"] != "mute":
            await echo(request, writer)

    async with Monitor(folder, mute) as monitor:
        with pytest.raises(QmpError, match=r"within 0\.05 s"):
            await monitor.execute("mute", timeout=0.05)
        assert await monitor.execute("query-status") == "query-status"


async def test_the_end_of_qemu_ends_what_waits_and_is_told(folder: Path) -> None:
    async def die(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with Monitor(folder, die) as monitor:
        heard: list[str] = []
        monitor.add_listener(lambda event: heard.append(event["event"]))
        with pytest.raises(QmpClosed):
            await monitor.execute("quit")
        assert monitor.closed.is_set() and heard == ["CLOSED"]
        with pytest.raises(QmpClosed):
            await monitor.execute("query-status")


@pytest.mark.parametrize("nonsense", [b"this is not JSON\n", b"[1, 2]\n", b"x" * 4096])
async def test_nonsense_closes_the_connection(
    folder: Path, nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "MAX_LINE", 1024)

    async def talk(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(nonsense)

    async with Monitor(folder, talk) as monitor:
        with pytest.raises(QmpClosed):
            await monitor.execute("query-status", timeout=30)


async def test_a_monitor_that_another_client_holds_does_not_hang_us(tmp_path: Path) -> None:
    silent = await asyncio.start_unix_server(lambda _reader, _writer: None, tmp_path / "qmp.sock")
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection = await sockets.connect(descriptor, "qmp.sock")
        with pytest.raises(QmpClosed, match="did not greet"):
            await open_qmp(connection, timeout=0.05)
    finally:
        os.close(descriptor)
        silent.close()


async def test_links_and_plain_files_are_not_connected_to(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(lambda _reader, _writer: None, tmp_path / "real.sock")
    (tmp_path / "link.sock").symlink_to(tmp_path / "real.sock")
    (tmp_path / "file.sock").write_text("")
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (await sockets.connect(descriptor, "real.sock")).close()
        for name in ("link.sock", "file.sock", "missing.sock"):
            with pytest.raises(sockets.NoSocket):
                await sockets.connect(descriptor, name)
    finally:
        os.close(descriptor)
        server.close()


def test_it_works_under_uvloop(tmp_path: Path) -> None:
    async def once() -> Any:
        async with Monitor(tmp_path, echo) as monitor:
            return await monitor.execute("query-status")

    assert uvloop.run(once()) == "query-status"
