"""Memory of a running QEMU beyond what it booted with: one virtio-mem device.

The device's own size is not the truth: it counts memory that the guest has never brought online. So the
guest's memory blocks are counted, through its agent. They are brought online as movable, before anything can
live in them that could not be moved: only such memory comes back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from hotvirt.hypervisor.driver import DriverError, MemoryView
from hotvirt.hypervisor.qemu import command
from hotvirt.hypervisor.qemu.guest_agent import AgentError, GuestAgent, NoAgent
from hotvirt.hypervisor.qemu.waiting import Waiter

Do = Callable[[str, dict[str, Any] | None], Awaitable[Any]]
PATH = f"/machine/peripheral/{command.MEMORY_DEVICE}"
AUTO_ONLINE = "/sys/devices/system/memory/auto_online_blocks"
BLOCK_STATE = "/sys/devices/system/memory/memory{}/state"
MOVABLE = b"online_movable"
# A guest that could not give everything back tries again by itself only after 50 s: asking again wakes it.
# But it also breaks off what the guest is doing, and a busy one needs seconds for each block.
POKE_AFTER = 5.0
JUST_NOW = 0.1


class HotMemory:
    def __init__(self, do: Do, agent: GuestAgent, waiter: Waiter) -> None:
        self._do = do
        self._agent = agent
        self._waiter = waiter
        self._prepared = False
        self._block_size = 0
        self._listed: tuple[float, int, dict[int, bool]] | None = None
        self._boot: int | None = None
        """The memory at boot, which stays."""
        self._stands_at, self._stands_since = -1, 0.0

    def forget_guest(self) -> None:
        """The guest boots, or its agent has come or gone."""
        self._prepared = False
        self._block_size = 0
        self._listed = None

    async def view(self, device: dict[str, Any] | None, ask_guest: bool) -> MemoryView:
        if self._boot is None:
            self._boot = int((await self._do("query-memory-size-summary", None))["base-memory"])
        if device is None:
            return MemoryView(boot=self._boot)
        return MemoryView(
            boot=self._boot,
            requested=device["requested-size"],
            plugged=device["size"],
            region=device["max-size"],
            online=await self._online(device) if ask_guest else None,
        )

    async def device(self) -> dict[str, Any] | None:
        """The virtio-mem device as QEMU tells it."""
        for device in await self._do("query-memory-devices", None):
            data: dict[str, Any] = device.get("data", {})
            if device.get("type") == "virtio-mem" and data.get("id") == command.MEMORY_DEVICE:
                return data
        return None

    async def _online(self, device: dict[str, Any]) -> int | None:
        """Bytes of what is plugged that the guest uses; None when it does not say."""
        if not device["size"]:
            return 0
        try:
            blocks = await self._blocks(device)
        except (NoAgent, AgentError):
            return None
        # A block that the guest has not even listed yet is not in use either.
        if all(blocks.values()) and len(blocks) * self._block_size >= device["size"]:
            return int(device["size"])
        return min(int(device["size"]), sum(blocks.values()) * self._block_size)

    async def _blocks(self, device: dict[str, Any]) -> dict[int, bool]:
        """The guest's memory blocks that lie in the device, and whether each is online, as of this moment.

        Its list is long: what it said a moment ago of a device of this size is not asked again.
        """
        known = self._listed
        if known is not None and known[1] == device["size"] and time.monotonic() - known[0] < JUST_NOW:
            return known[2]
        blocks = await self._list_blocks(device)
        self._listed = time.monotonic(), device["size"], blocks
        return blocks

    async def _list_blocks(self, device: dict[str, Any]) -> dict[int, bool]:
        if not self._block_size:
            self._block_size = await self._agent.memory_block_size()
        size = self._block_size
        if size <= 0:
            raise AgentError("the guest does not tell the size of its memory blocks")
        first, last = device["memaddr"], device["memaddr"] + device["max-size"]
        return {
            number: bool(block.get("online"))
            for block in await self._agent.memory_blocks()
            if first <= (number := int(block.get("phys-index", -1))) * size < last
        }

    async def bring_to(self, plugged: int, timeout: float, ask_guest: bool) -> None:
        """Have so much plugged and in use, as far as the guest goes along within the time."""
        device = await self.device()
        if device is None:
            if plugged:
                raise DriverError("this machine was started without room for more memory. Restart the VM")
            return
        if plugged > device["max-size"]:
            raise DriverError(
                f"{plugged} bytes more do not fit: this machine was started with room for "
                f"{device['max-size']}. Restart the VM"
            )
        if ask_guest and plugged > device["size"]:
            await self._prepare()
        if device["requested-size"] != plugged:
            await self._request(plugged)
            self._moved(device["size"])

        async def settled() -> bool:
            now = await self.device()
            if now is None:
                return True
            if ask_guest and now["size"] <= plugged:
                # Not while it shrinks: a block that goes is offline before it is gone.
                await self._online_blocks(now)
            if now["size"] != plugged:
                if now["size"] != self._stands_at:
                    self._moved(now["size"])
                elif now["size"] > plugged and time.monotonic() - self._stands_since >= POKE_AFTER:
                    self._moved(now["size"])
                    await self._request(plugged)
                return False
            return not ask_guest or (await self._online(now)) in (None, plugged)

        await self._waiter.until(settled, timeout)

    def _moved(self, size: int) -> None:
        self._stands_at, self._stands_since = size, time.monotonic()

    async def _request(self, plugged: int) -> None:
        await self._do("qom-set", {"path": PATH, "property": "requested-size", "value": plugged})

    async def _prepare(self) -> None:
        """Have the guest bring new memory online by itself, as movable."""
        if self._prepared:
            return
        try:
            await self._agent.write_file(AUTO_ONLINE, MOVABLE)
            self._prepared = True
        except (NoAgent, AgentError):
            return  # the blocks are brought online one by one

    async def _online_blocks(self, device: dict[str, Any]) -> None:
        """What the guest left offline (it was plugged before it was told, or at boot)."""
        self._listed = None
        try:
            for number, online in (await self._blocks(device)).items():
                if not online:
                    self._listed = None
                    await self._agent.write_file(BLOCK_STATE.format(number), MOVABLE)
        except (NoAgent, AgentError):
            return
