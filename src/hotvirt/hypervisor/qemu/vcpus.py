"""vCPUs of a running QEMU: plugged in one batch, put into use by the guest's agent, taken away again.

Never believe `device_add`: a vCPU counts when the guest's own list shows it online. Taking away: the guest
stops using it first. With KVM the device goes too; under TCG it stays, parked, because QEMU crashes sooner or
later when a vCPU is unplugged there. Parked ones are the first to come back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hotvirt.hypervisor.driver import DriverError, Slot
from hotvirt.hypervisor.qemu import command
from hotvirt.hypervisor.qemu.guest_agent import AgentError, GuestAgent, NoAgent
from hotvirt.hypervisor.qemu.waiting import Waiter

Do = Callable[[str, dict[str, Any] | None], Awaitable[Any]]
# What the guest said of its vCPUs so recently is not asked again: each question costs it milliseconds.
JUST_NOW = 0.1


class Vcpus:
    def __init__(self, do: Do, agent: GuestAgent, waiter: Waiter) -> None:
        self._do = do
        self._agent = agent
        self._waiter = waiter
        self._listed: tuple[float, list[dict[str, Any]]] | None = None
        self._always_on: set[int] = set()

    def forget_guest(self) -> None:
        """Something happened: what the guest said before may not be so any more."""
        self._listed = None

    async def listed(self) -> list[dict[str, Any]]:
        """The guest's own list, as it is or was a moment ago."""
        if self._listed is not None and time.monotonic() - self._listed[0] < JUST_NOW:
            return self._listed[1]
        return await self._list()

    async def _list(self) -> list[dict[str, Any]]:
        listed = await self._agent.vcpus()
        if not _always_on(listed) <= self._always_on:
            # A vCPU that is just being added looks like one that cannot be switched off: the guest's kernel
            # makes its folder before the switch in it, and the agent takes what has no switch for online.
            listed = await self._agent.vcpus()
        self._always_on = _always_on(listed)
        self._listed = time.monotonic(), listed
        return listed

    async def slots(self) -> list[tuple[Slot, dict[str, Any]]]:
        """In the order in which they are filled, each with what QEMU says of it (it lists the highest
        first).
        """
        listed = await self._do("query-hotpluggable-cpus", None)
        slots = [
            (
                Slot(
                    socket=int(entry["props"].get("socket-id", 0)),
                    core=int(entry["props"].get("core-id", 0)),
                    thread=int(entry["props"].get("thread-id", 0)),
                    plugged="qom-path" in entry,
                    removable=str(entry.get("qom-path", "")).startswith("/machine/peripheral/"),
                ),
                entry,
            )
            for entry in listed
        ]
        return sorted(slots, key=lambda item: (item[0].socket, item[0].core, item[0].thread))

    async def plug(self, count: int) -> None:
        slots = await self.slots()
        missing = count - sum(slot.plugged for slot, _ in slots)
        free = [(slot, entry) for slot, entry in slots if not slot.plugged]
        if missing > len(free):
            raise DriverError(
                f"{count} vCPUs do not fit: this machine was started with {len(slots)} slots. Restart the VM"
            )
        self.forget_guest()
        await asyncio.gather(*(self._plug(slot, entry) for slot, entry in free[: max(0, missing)]))

    async def _plug(self, slot: Slot, entry: dict[str, Any]) -> None:
        # The props go back as QEMU gave them: newer versions have more of them.
        device = {"driver": entry["type"], "id": command.vcpu_id(slot.socket, slot.core, slot.thread)}
        await self._do("device_add", device | entry["props"])

    async def use(self, count: int, timeout: float) -> int | None:
        """Have the guest use exactly so many; how many it does use then, None when it cannot be asked."""
        online: int | None = None

        async def settled() -> bool:
            nonlocal online
            online = await self._use_what_is_there(count, online)
            return online == count

        await self._waiter.until(settled, timeout)
        return online

    async def _use_what_is_there(self, count: int, before: int | None) -> int | None:
        try:
            # An older list is enough to begin with: what comes of it is looked at behind it.
            listed = self._listed[1] if self._listed is not None else None
            if listed is None or _online(listed) == count:
                listed = await self.listed()
            online = [vcpu for vcpu in listed if vcpu.get("online")]
            if len(online) < count:
                change = [vcpu for vcpu in listed if not vcpu.get("online")][: count - len(online)]
            else:
                spare = [vcpu for vcpu in online if vcpu.get("can-offline")]
                change = spare[len(spare) - min(len(spare), len(online) - count) :][::-1]
            if not change:
                if len(online) != count:
                    self.forget_guest()  # it is to be looked at again
                return len(online)
            self.forget_guest()
            await self._agent.set_vcpus({int(vcpu["logical-id"]): len(online) < count for vcpu in change})
            return _online(await self._list())
        except (NoAgent, AgentError, KeyError):
            return before

    async def unplug(self, count: int, timeout: float) -> None:
        """Have at most so many plugged. The guest lets go of each; only its slot tells when it has."""

        async def settled() -> bool:
            return sum(slot.plugged for slot, _ in await self.slots()) <= count

        slots = [slot for slot, _ in await self.slots() if slot.plugged]
        spare = [slot for slot in slots if slot.removable][::-1][: max(0, len(slots) - count)]
        for slot in spare:
            await self._do("device_del", {"id": command.vcpu_id(slot.socket, slot.core, slot.thread)})
        if spare:
            await self._waiter.until(settled, timeout)


def _online(listed: list[dict[str, Any]]) -> int:
    return sum(bool(vcpu.get("online")) for vcpu in listed)


def _always_on(listed: list[dict[str, Any]]) -> set[int]:
    return {int(vcpu["logical-id"]) for vcpu in listed if vcpu.get("online") and not vcpu.get("can-offline")}
