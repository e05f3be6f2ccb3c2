"""QEMU as a driver: its monitor and the guest's agent behind the protocol of `hypervisor.driver`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from hotvirt.hypervisor.driver import (
    Change,
    DriverError,
    GuestVcpu,
    GuestView,
    Handover,
    Listener,
    MachineGone,
    MemoryView,
    Observed,
    Slot,
    Status,
)
from hotvirt.hypervisor.files import Files
from hotvirt.hypervisor.qemu import accel, command
from hotvirt.hypervisor.qemu.guest_agent import AgentError, GuestAgent, NoAgent
from hotvirt.hypervisor.qemu.qmp import Qmp, QmpClosed, QmpError, open_qmp
from hotvirt.hypervisor.sockets import NoSocket, connect, peer
from hotvirt.plan.machine import Machine

# A guest that onlines vCPUs by itself sends no event for it: look this often while we wait.
GUEST_POLL = 0.25

_STATUS = {
    "running": Status.RUNNING,
    "paused": Status.PAUSED,
    "prelaunch": Status.PAUSED,
    "suspended": Status.PAUSED,
    "io-error": Status.PAUSED,
    "watchdog": Status.PAUSED,
    "shutdown": Status.SHUTDOWN,
}
_CHANGES = {
    "STOP": Change.PAUSED,
    "RESUME": Change.RESUMED,
    "RESET": Change.RESET,
    "SHUTDOWN": Change.SHUTDOWN,
    "GUEST_PANICKED": Change.PANICKED,
    "VSERPORT_CHANGE": Change.AGENT,
    "ACPI_DEVICE_OST": Change.VCPUS,
    "MEMORY_DEVICE_SIZE_CHANGE": Change.MEMORY,
    "CLOSED": Change.CLOSED,
}


class QemuDriver:
    name = "qemu"
    has_process = True

    async def accelerator(self) -> str:
        return await accel.accelerator()

    async def version(self) -> tuple[int, ...]:
        return await accel.qemu_version()

    def argv(self, machine: Machine, handover: Handover, files: Files) -> list[str]:
        return command.argv(
            machine, accel=handover.accel, network=handover.network, files=files, version=handover.version
        )

    async def begin(self, run_dir_fd: int, machine: Machine) -> None:
        raise DriverError("QEMU is begun by the launcher, with a hand-over")

    async def connect(self, run_dir_fd: int) -> QemuMachine:
        try:
            connection = await connect(run_dir_fd, command.QMP_SOCKET)
            pid, _ = peer(connection)
            monitor = await open_qmp(connection)
        except (NoSocket, QmpClosed, QmpError) as error:
            raise MachineGone(str(error)) from error
        machine = QemuMachine(monitor, os.dup(run_dir_fd), pid)
        try:
            await machine.look_at_agent()
        except QmpClosed as error:
            machine.close()
            raise MachineGone(str(error)) from error
        return machine


class QemuMachine:
    def __init__(self, monitor: Qmp, folder: int, pid: int) -> None:
        self.closed = monitor.closed
        self.pid = pid
        self._monitor = monitor
        self._folder = folder
        self._agent = GuestAgent(folder, command.AGENT_SOCKET)
        self._agent_open = False
        self._facts: dict[str, Any] | None = None  # what stays the same until the guest boots again
        self._last_guest: GuestView | None = None
        self._guest_stirred = asyncio.Event()
        self._guest_shut_down = asyncio.Event()
        self._listeners: list[Listener] = []
        self._released = False
        monitor.add_listener(self._on_event)

    @property
    def version(self) -> str:
        numbers = self._monitor.greeting.get("version", {}).get("qemu", {})
        return "QEMU " + ".".join(str(numbers.get(part, "?")) for part in ("major", "minor", "micro"))

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        if not self._released:
            self._released = True
            self._agent.close()
            self._monitor.close()
            os.close(self._folder)

    def _on_event(self, event: dict[str, Any]) -> None:
        name = str(event.get("event"))
        data = event.get("data") or {}
        if name == "VSERPORT_CHANGE":
            if data.get("id") != command.AGENT_PORT:
                return
            self._agent_open = bool(data.get("open"))
            self._facts = None
            self._agent.close()
        elif name in ("RESET", "MEMORY_DEVICE_SIZE_CHANGE"):
            self._facts = None
        elif name == "SHUTDOWN":
            self._guest_shut_down.set()
        if name in ("ACPI_DEVICE_OST", "VSERPORT_CHANGE", "CLOSED", "RESET"):
            self._guest_stirred.set()
        change = _CHANGES.get(name)
        if change is not None:
            for listener in list(self._listeners):
                listener(change)

    async def look_at_agent(self) -> None:
        """Whether the guest has its end of the agent's channel open: later changes come as events."""
        for device in await self._monitor.execute("query-chardev"):
            if device.get("label") == "agent":
                self._agent_open = bool(device.get("frontend-open"))

    async def _do(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        try:
            return await self._monitor.execute(name, arguments)
        except QmpClosed as error:
            raise MachineGone(str(error)) from error
        except QmpError as error:
            raise DriverError(str(error)) from error

    # What is

    async def observe(self) -> Observed:
        state, slots, memory = await asyncio.gather(self._do("query-status"), self._slots(), self._memory())
        status = _STATUS.get(str(state.get("status")), Status.OTHER)
        if not self._agent_open:
            self._last_guest = None
        elif status is Status.RUNNING:
            self._last_guest = await self._guest()
        # A guest that stands still cannot answer, and stays as it was.
        connected = self._last_guest is not None if status is Status.RUNNING else self._agent_open
        return Observed(
            status=status,
            detail=str(state.get("status"))[:64],
            vcpus=tuple(slot for slot, _ in slots),
            memory=memory,
            agent_connected=connected,
            agent_expected=self._agent_open and not connected,
            guest=self._last_guest,
        )

    async def _slots(self) -> list[tuple[Slot, dict[str, Any]]]:
        """In the order in which they are filled, each with what QEMU says of it (it lists the highest
        first).
        """
        listed = await self._do("query-hotpluggable-cpus")
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

    async def _memory(self) -> MemoryView:
        summary, devices = await asyncio.gather(
            self._do("query-memory-size-summary"), self._do("query-memory-devices")
        )
        for device in devices:
            data = device.get("data", {})
            if device.get("type") == "virtio-mem" and data.get("id") == command.MEMORY_DEVICE:
                return MemoryView(
                    boot=summary["base-memory"],
                    requested=data["requested-size"],
                    plugged=data["size"],
                    region=data["max-size"],
                )
        return MemoryView(boot=summary["base-memory"])

    async def _guest(self) -> GuestView | None:
        """None where the agent does not answer. What an old agent cannot say stays empty."""
        try:
            listed = await self._agent.vcpus()
            if self._facts is None:
                self._facts = await self._read_facts()
            facts = self._facts
        except NoAgent:
            return None
        except AgentError:
            return GuestView()
        return GuestView(vcpus=_guest_vcpus(listed), **facts)

    async def _read_facts(self) -> dict[str, Any]:
        addresses: dict[str, tuple[str, ...]] = {}
        names: dict[str, str] = {}
        for card in await self._ask(self._agent.network_interfaces(), []):
            mac = str(card.get("hardware-address", "")).lower()
            listed = card.get("ip-addresses")
            if mac and mac != "00:00:00:00:00:00" and isinstance(listed, list):
                addresses[mac] = tuple(str(item.get("ip-address", ""))[:64] for item in listed[:16])
                names[mac] = str(card.get("name", ""))[:64]
        meminfo = await self._ask(self._agent.read_file("/proc/meminfo", 256), b"")
        return {
            "boot_id": (await self._ask(self._agent.read_file("/proc/sys/kernel/random/boot_id", 64), b""))
            .decode("ascii", "replace")
            .strip(),
            "memory_total": _mem_total(meminfo),
            "os": await self._ask(self._agent.os_info(), {}),
            "addresses": addresses,
            "names": names,
        }

    @staticmethod
    async def _ask(question: Any, otherwise: Any) -> Any:
        try:
            return await question
        except (AgentError, KeyError, ValueError):
            return otherwise

    # What is to be

    async def plug_vcpus(self, count: int) -> None:
        slots = await self._slots()
        missing = count - sum(slot.plugged for slot, _ in slots)
        free = [(slot, entry) for slot, entry in slots if not slot.plugged]
        if missing > len(free):
            raise DriverError(
                f"{count} vCPUs do not fit: this machine was started with {len(slots)} slots. Restart the VM"
            )
        await asyncio.gather(*(self._plug(slot, entry) for slot, entry in free[: max(0, missing)]))

    async def _plug(self, slot: Slot, entry: dict[str, Any]) -> None:
        # The props go back as QEMU gave them: newer versions have more of them.
        device = {"driver": entry["type"], "id": command.vcpu_id(slot.socket, slot.core, slot.thread)}
        await self._do("device_add", device | entry["props"])

    async def online_vcpus(self, count: int, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        online: int | None = None
        while True:
            self._guest_stirred.clear()
            if self._agent_open:
                online = await self._online_what_is_there(count, online)
                if online is not None and online >= count:
                    return online
            left = deadline - time.monotonic()
            if left <= 0 or self.closed.is_set():
                return online
            try:
                async with asyncio.timeout(min(left, GUEST_POLL)):
                    await self._guest_stirred.wait()
            except TimeoutError:
                continue

    async def _online_what_is_there(self, count: int, before: int | None) -> int | None:
        try:
            listed = await self._agent.vcpus()
            offline = [int(v["logical-id"]) for v in listed if not v.get("online")]
            online = len(listed) - len(offline)
            wanted = offline[: max(0, count - online)]
            if wanted:
                await self._agent.set_vcpus(dict.fromkeys(wanted, True))
                online = sum(bool(v.get("online")) for v in await self._agent.vcpus())
            return online
        except (NoAgent, AgentError, KeyError):
            return before

    async def power_button(self) -> None:
        await self._do("system_powerdown")

    async def soft_reboot(self) -> None:
        """By the agent. Without one: the power button, and a reset when the guest is down."""
        status = _STATUS.get(str((await self._do("query-status"))["status"]))
        if status is Status.PAUSED:
            raise DriverError("a paused guest cannot reboot itself: unpause it first")
        if self._agent_open and status is Status.RUNNING:
            await self._agent.shutdown("reboot")
            return
        self._guest_shut_down.clear()
        await self._do("set-action", {"shutdown": "pause"})
        try:
            if status is not Status.SHUTDOWN:
                await self._do("system_powerdown")
                try:
                    async with asyncio.timeout(60):
                        await self._guest_shut_down.wait()
                except TimeoutError:
                    raise DriverError("the guest did not react to the power button within 60 s") from None
            await self._do("system_reset")
            await self._do("cont")
        finally:
            await self._do("set-action", {"shutdown": "poweroff"})

    async def pause(self) -> None:
        await self._do("stop")

    async def resume(self) -> None:
        await self._do("cont")

    async def reset(self) -> None:
        await self._do("system_reset")


def _guest_vcpus(listed: list[dict[str, Any]]) -> tuple[GuestVcpu, ...]:
    return tuple(
        GuestVcpu(
            number=int(vcpu.get("logical-id", 0)),
            online=bool(vcpu.get("online")),
            can_offline=bool(vcpu.get("can-offline")),
        )
        for vcpu in listed
    )


def _mem_total(meminfo: bytes) -> int:
    for line in meminfo.decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemTotal:" and words[1].isdigit():
            return int(words[1]) * 1024
    return 0
