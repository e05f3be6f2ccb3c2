"""The device plug-in, against the kubelet's side of the same API."""

import asyncio
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hotvirt.cluster.device_plugin import DevicePlugin, offer_kvm, open_to_launchers

RESOURCE = "devices.example/thing"


class Kubelet:
    """The kubelet's side: takes registrations, then calls the plug-in back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.registered: asyncio.Queue[bytes] = asyncio.Queue()
        self._server: Any = None

    async def start(self) -> None:
        for old in self._folder.glob("*.sock"):
            old.unlink()  # as the real one does
        self._server = grpc.aio.server()

        async def register(request: bytes, _context: Any) -> bytes:
            await self.registered.put(request)
            return b""

        methods = {"Register": grpc.unary_unary_rpc_method_handler(register)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", methods),)
        )
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def plugin(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{self._folder / 'hotvirt-thing.sock'}")


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    plugin = asyncio.create_task(DevicePlugin(RESOURCE, "/dev/thing", folder=tmp_path, count=3).run())
    try:
        yield kubelet
    finally:
        plugin.cancel()
        await asyncio.wait([plugin])
        await kubelet.stop()
        assert not (tmp_path / "hotvirt-thing.sock").exists()


async def registration(kubelet: Kubelet) -> bytes:
    async with asyncio.timeout(20):
        return await kubelet.registered.get()


def message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


async def test_it_registers_lists_and_allocates(kubelet: Kubelet) -> None:
    await kubelet.start()
    assert await registration(kubelet) == (
        message(1, b"v1beta1") + message(2, b"hotvirt-thing.sock") + message(3, RESOURCE.encode())
    )
    async with kubelet.plugin() as channel, asyncio.timeout(20):
        call = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        listed = await call.read()
        assert listed == b"".join(
            message(1, message(1, b"%d" % n) + message(2, b"Healthy")) for n in range(3)
        )
        call.cancel()
        assert await channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")(b"") == b""
        wanted = message(1, message(1, b"0")) + message(1, message(1, b"1") + message(1, b"2"))
        device = message(1, b"/dev/thing") + message(2, b"/dev/thing") + message(3, b"rw")
        answer = await channel.unary_unary("/v1beta1.DevicePlugin/Allocate")(wanted)
        assert answer == message(1, message(3, device)) * 2, "one answer for each container"


async def test_it_registers_again_with_a_kubelet_that_started_again(kubelet: Kubelet) -> None:
    await kubelet.start()
    first = await registration(kubelet)
    await kubelet.stop()
    await kubelet.start()
    assert await registration(kubelet) == first
    async with kubelet.plugin() as channel, asyncio.timeout(20):
        assert await channel.unary_unary("/v1beta1.DevicePlugin/Allocate")(b"") == b""


async def test_a_broken_request_is_refused_and_the_next_one_served(kubelet: Kubelet) -> None:
    await kubelet.start()
    await registration(kubelet)
    async with kubelet.plugin() as channel, asyncio.timeout(20):
        allocate = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
        for broken in (b"\x0a\x7f", b"\x08\x01", b"\xff" * 20):
            with pytest.raises(grpc.aio.AioRpcError):
                await allocate(broken)
        assert await allocate(message(1, b"")) != b""


async def test_a_node_without_kvm_offers_none(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path)
    await kubelet.start()
    asked = asyncio.Event()

    async def emulated() -> str:
        asked.set()
        return "tcg"

    offering = asyncio.create_task(offer_kvm(emulated, DevicePlugin(folder=tmp_path)))
    await asked.wait()
    # One that begins later has been registered: so would have been the one that must not be.
    later = asyncio.create_task(DevicePlugin(RESOURCE, "/dev/thing", folder=tmp_path).run())
    try:
        assert RESOURCE.encode() in await registration(kubelet)
        assert not offering.done() and kubelet.registered.empty()
        assert {file.name for file in tmp_path.iterdir()} == {"kubelet.sock", "hotvirt-thing.sock"}
    finally:
        for task in (offering, later):
            task.cancel()
        await asyncio.wait([offering, later])
        await kubelet.stop()


@pytest.mark.parametrize(("mode", "expected"), [(0o660, 0o666), (0o666, 0o666), (0o600, 0o666)])
def test_launchers_may_open_it(tmp_path: Path, mode: int, expected: int) -> None:
    device = tmp_path / "kvm"
    device.touch()
    device.chmod(mode)
    open_to_launchers(device)
    assert stat.S_IMODE(device.stat().st_mode) == expected


def test_grpc_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, hotvirt.cluster.device_plugin; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
