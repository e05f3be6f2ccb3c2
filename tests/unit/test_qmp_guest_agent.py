"""The guest agent's channel: in step from the first answer, bounded, never blocking."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor.driver import DriverError
from hotvirt.hypervisor.qemu import guest_agent
from hotvirt.hypervisor.qemu.guest_agent import AgentError, GuestAgent, NoAgent


class FakeAgent:
    """Speaks as qemu-ga does: an error line for the 0xFF that flushes it, then 0xFF and the answer."""

    def __init__(self, replies: dict[str, Any], stale: bytes = b"") -> None:
        self.replies = replies
        self.stale = stale
        self.asked: list[dict[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.stale)
        while line := await reader.readline():
            if line.startswith(b"\xff"):
                writer.write(b'{"error": {"class": "GenericError", "desc": "JSON parse error"}}\n')
            request = json.loads(line.lstrip(b"\xff"))
            if request["execute"] == "guest-sync-delimited":
                writer.write(b"\xff" + json.dumps({"return": request["arguments"]["id"]}).encode() + b"\n")
                continue
            self.asked.append(request)
            reply = self.replies.get(request["execute"])
            if isinstance(reply, bytes):
                writer.write(reply)
            elif reply is not None:
                writer.write(json.dumps(reply).encode() + b"\n")
        writer.close()


@asynccontextmanager
async def channel(folder: Path, agent: FakeAgent) -> AsyncIterator[GuestAgent]:
    server = await asyncio.start_unix_server(agent.serve, folder / "agent.sock")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    client = GuestAgent(descriptor, "agent.sock")
    try:
        yield client
    finally:
        client.close()
        os.close(descriptor)
        server.close()


VCPUS = [
    {"logical-id": 1, "online": False, "can-offline": True},
    {"logical-id": 0, "online": True, "can-offline": False},
]


async def test_answers_are_in_step_after_the_error_line_and_old_rubbish(tmp_path: Path) -> None:
    agent = FakeAgent({"guest-get-vcpus": {"return": VCPUS}}, stale=b'{"return": 7}\nhalf an answ\n')
    async with channel(tmp_path, agent) as client:
        for _ in range(3):
            assert [vcpu["logical-id"] for vcpu in await client.vcpus()] == [0, 1]


async def test_vcpus_are_set_in_one_command(tmp_path: Path) -> None:
    agent = FakeAgent({"guest-set-vcpus": {"return": 2}})
    async with channel(tmp_path, agent) as client:
        assert await client.set_vcpus({1: True, 2: True}) == 2
    wanted = [{"logical-id": 1, "online": True}, {"logical-id": 2, "online": True}]
    assert agent.asked == [{"execute": "guest-set-vcpus", "arguments": {"vcpus": wanted}}]


async def test_a_refusal_is_told_apart_from_absence(tmp_path: Path) -> None:
    agent = FakeAgent({"guest-get-osinfo": {"error": {"class": "CommandNotFound", "desc": "not allowed"}}})
    async with channel(tmp_path, agent) as client:
        with pytest.raises(AgentError, match="not allowed"):
            await client.os_info()


async def test_no_answer_ends_in_time_and_the_next_call_is_in_step(tmp_path: Path) -> None:
    agent = FakeAgent({"guest-get-vcpus": {"return": VCPUS}})
    async with channel(tmp_path, agent) as client:
        with pytest.raises(NoAgent, match="did not answer guest-mute"):
            await client.call("guest-mute", timeout=0.05)
        assert len(await client.vcpus()) == 2


async def test_a_reboot_that_was_not_sent_does_not_pass_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_agent, "SYNC_TIMEOUT", 0.5)  # also for the answers that do come
    agent = FakeAgent({"guest-ping": {"return": {}}})
    async with channel(tmp_path, agent) as client:
        await client.shutdown("reboot")  # no answer to the reboot itself is its success
        assert agent.asked[-1] == {"execute": "guest-shutdown", "arguments": {"mode": "reboot"}}
    agent.replies = {"guest-ping": {"error": {"class": "CommandNotFound", "desc": "not allowed"}}}
    (tmp_path / "agent.sock").unlink()
    async with channel(tmp_path, agent) as client:
        with pytest.raises(DriverError, match="could not be asked for a reboot"):
            await client.shutdown("reboot")


async def test_nobody_in_the_guest_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_agent, "SYNC_TIMEOUT", 0.05)
    server = await asyncio.start_unix_server(lambda _reader, _writer: None, tmp_path / "agent.sock")
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(NoAgent):
            await GuestAgent(descriptor, "agent.sock").vcpus()
        with pytest.raises(NoAgent):
            await GuestAgent(descriptor, "none.sock").vcpus()
    finally:
        os.close(descriptor)
        server.close()


@pytest.mark.parametrize("reply", [b"x" * 5000 + b"\n", b"[]\n", b"nonsense\n"])
async def test_whatever_a_guest_sends_is_bounded(
    tmp_path: Path, reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_agent, "MAX_REPLY", 1024)
    async with channel(tmp_path, FakeAgent({"guest-get-vcpus": reply})) as client:
        with pytest.raises(NoAgent):
            await client.vcpus()


async def test_a_list_with_strangers_in_it_is_taken_without_them(tmp_path: Path) -> None:
    agent = FakeAgent({"guest-get-vcpus": {"return": [*VCPUS, "stranger", 5]}})
    async with channel(tmp_path, agent) as client:
        assert len(await client.vcpus()) == 2


async def test_files_are_read_and_closed(tmp_path: Path) -> None:
    text = base64.b64encode(b"a-boot-id\n").decode()
    agent = FakeAgent(
        {
            "guest-file-open": {"return": 1000},
            "guest-file-read": {"return": {"count": 10, "buf-b64": text, "eof": False}},
            "guest-file-close": {"return": {}},
        }
    )
    async with channel(tmp_path, agent) as client:
        assert await client.read_file("/proc/sys/kernel/random/boot_id") == b"a-boot-id\n"
    assert [request["execute"] for request in agent.asked] == [
        "guest-file-open",
        "guest-file-read",
        "guest-file-close",
    ]


@pytest.mark.parametrize("rubbish", [b"\xff[]\n", b"\xff" + b"[" * 100_000 + b"\n", b"\xff" * 5000 + b"\n"])
async def test_rubbish_in_place_of_a_sync_is_no_agent(
    tmp_path: Path, rubbish: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_agent, "SYNC_TIMEOUT", 0.2)
    monkeypatch.setattr(guest_agent, "MAX_REPLY", 200_000 if len(rubbish) > 5001 else 1024)
    async with channel(tmp_path, FakeAgent({}, stale=rubbish)) as client:
        with pytest.raises(NoAgent):
            await client.vcpus()


async def test_numbers_that_are_none_and_files_that_are_too_long(tmp_path: Path) -> None:
    agent = FakeAgent(
        {
            "guest-get-vcpus": {"return": [*VCPUS, {"logical-id": "x"}, {"logical-id": None}]},
            "guest-get-memory-block-info": {"return": {"size": "much"}},
            "guest-file-open": {"return": 1000},
            "guest-file-read": {"return": {"buf-b64": base64.b64encode(b"x" * 9000).decode()}},
            "guest-file-close": {"return": {}},
        }
    )
    async with channel(tmp_path, agent) as client:
        assert len(await client.vcpus()) == 2
        assert await client.memory_block_size() == 0
        assert await client.read_file("/proc/sys/kernel/random/boot_id", 64) == b"x" * 64
        agent.replies["guest-file-read"] = {"return": None}
        with pytest.raises(AgentError, match="no content"):
            await client.read_file("/etc/hostname")
