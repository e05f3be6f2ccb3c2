"""QEMU as a driver: its monitor and the guest's agent behind the protocol of `hypervisor.driver`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hotvirt.hypervisor.driver import (
    Change,
    DriverError,
    GuestVcpu,
    GuestView,
    Handover,
    Listener,
    MachineGone,
    Observed,
    Slot,
    Status,
)
from hotvirt.hypervisor.files import Files
from hotvirt.hypervisor.qemu import accel, command
from hotvirt.hypervisor.qemu.guest_agent import AgentError, GuestAgent, NoAgent
from hotvirt.hypervisor.qemu.memory import HotMemory
from hotvirt.hypervisor.qemu.qmp import Qmp, QmpClosed, QmpError, open_qmp
from hotvirt.hypervisor.qemu.vcpus import Vcpus
from hotvirt.hypervisor.qemu.waiting import Waiter
from hotvirt.hypervisor.sockets import NoSocket, connect, peer
from hotvirt.plan.machine import Machine

# An agent that does not answer for a moment (a loaded guest) has not changed what the guest uses.
SILENCE = 60.0
_STATUS = {
    "running": Status.RUNNING,
    "paused": Status.PAUSED,
    "prelaunch": Status.PAUSED,
    "suspended": Status.PAUSED,
    "io-error": Status.PAUSED,
    "watchdog": Status.PAUSED,
    "shutdown": Status.SHUTDOWN,
}
# What QEMU said of itself so recently holds, unless it was told to change something or tells of a change.
RECENT = 1.0
# The guest's own total of memory is for people: it is read again when a change of it has settled.
TOTAL_LATER = 0.3
_CHANGES = {
    "STOP": Change.PAUSED,
    "RESUME": Change.RESUMED,
    "SUSPEND": Change.PAUSED,
    "WAKEUP": Change.RESUMED,
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
        except BaseException:
            machine.close()  # whatever it was: the next try opens a new one
            raise
        return machine


@dataclass(frozen=True, slots=True)
class _Said:
    """What QEMU said of itself, when, and after how much had happened."""

    at: float
    happened: int
    state: dict[str, Any]
    slots: list[tuple[Slot, dict[str, Any]]]
    memory: dict[str, Any] | None

    def still_holds(self, happened: int) -> bool:
        if happened != self.happened or time.monotonic() - self.at >= RECENT:
            return False
        # Of memory that is on its way QEMU tells once a second only.
        return self.memory is None or self.memory["size"] == self.memory["requested-size"]


class QemuMachine:
    def __init__(self, monitor: Qmp, folder: int, pid: int) -> None:
        self.closed = monitor.closed
        self.pid = pid
        self._monitor = monitor
        self._folder = folder
        self._agent = GuestAgent(folder, command.AGENT_SOCKET)
        self._agent_open = False
        self._happened = 0
        self._said: _Said | None = None
        self._asking: asyncio.Task[_Said] | None = None
        self._facts: dict[str, Any] | None = None  # what stays the same until the guest boots again
        self._total_due: float | None = None  # when the guest's total of memory is to be read again
        self._last_guest: GuestView | None = None
        self._answered_at = 0.0
        self._parked: int | None = None
        self._waiter = Waiter(monitor.closed)
        self._vcpus = Vcpus(self._do, self._agent, self._waiter)
        self._memory = HotMemory(self._do, self._agent, self._waiter)
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
        self._happened += 1
        name = str(event.get("event"))
        data = event.get("data") or {}
        if name == "VSERPORT_CHANGE":
            if data.get("id") != command.AGENT_PORT:
                return
            self._agent_open = bool(data.get("open"))
            self._facts = None
            self._agent.close()
        elif name == "RESET":
            self._facts = None
            self._last_guest = None
            self._parked = 0  # a guest boots with all that is plugged
        elif name == "MEMORY_DEVICE_SIZE_CHANGE":
            self._total_changes()
        elif name == "SHUTDOWN":
            self._guest_shut_down.set()
        if name in ("VSERPORT_CHANGE", "RESET"):
            self._memory.forget_guest()
        self._vcpus.forget_guest()
        self._waiter.stir()
        change = _CHANGES.get(name)
        if change is not None:
            for listener in list(self._listeners):
                listener(change)

    async def look_at_agent(self) -> None:
        """Whether the guest has its end of the agent's channel open: later changes come as events."""
        with _understood():
            for device in await self._do("query-chardev"):
                if device.get("label") == "agent":
                    self._agent_open = bool(device.get("frontend-open"))

    async def _do(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        try:
            return await self._monitor.execute(name, arguments)
        except QmpClosed as error:
            raise MachineGone(str(error)) from error
        except QmpError as error:
            raise DriverError(str(error)) from error
        finally:
            if not name.startswith("query-"):
                self._happened += 1

    # What is

    async def _ask_qemu(self) -> _Said:
        known = self._said
        if known and known.still_holds(self._happened):
            return known
        at, happened = time.monotonic(), self._happened
        asked = (self._do("query-status"), self._vcpus.slots(), self._memory.device())
        said = self._said = _Said(at, happened, *await asyncio.gather(*asked))
        return said

    async def observe(self) -> Observed:
        with _understood():
            return await self._observe()

    async def _observe(self) -> Observed:
        said = await self._ask_qemu()
        state, slots, device = said.state, said.slots, said.memory
        status = _STATUS.get(str(state.get("status")), Status.OTHER)
        memory = await self._memory.view(device, self._agent_open and status is Status.RUNNING)
        # A guest that stands still cannot answer, and stays as it was.
        connected = self._agent_open
        if not self._agent_open:
            self._last_guest = None
        elif status is Status.RUNNING:
            answer = await self._guest()
            connected = answer is not None
            if answer is not None:
                self._last_guest, self._answered_at = answer, time.monotonic()
                self._parked = sum(not vcpu.online for vcpu in answer.vcpus)
            elif time.monotonic() - self._answered_at > SILENCE:
                self._last_guest = None
        return Observed(
            status=status,
            detail=str(state.get("status"))[:64],
            vcpus=tuple(slot for slot, _ in slots),
            memory=memory,
            agent_connected=connected,
            agent_expected=self._agent_open and not connected,
            guest=self._last_guest,
            parked=self._parked,
            unread=self._total_due is not None and connected and status is Status.RUNNING,
        )

    async def _guest(self) -> GuestView | None:
        """None where the agent does not answer. What an old agent cannot say stays empty."""
        try:
            listed = await self._vcpus.listed()
            if self._facts is None:
                self._facts, self._total_due = await self._read_facts(), None
            elif self._total_due is not None and time.monotonic() >= self._total_due:
                self._facts["memory_total"], self._total_due = await self._read_total(), None
            facts = self._facts
        except NoAgent:
            return None
        except AgentError:
            self._total_due = None
            return GuestView()
        return GuestView(vcpus=_guest_vcpus(listed), **facts)

    async def _read_facts(self) -> dict[str, Any]:
        addresses: dict[str, tuple[str, ...]] = {}
        names: dict[str, str] = {}
        for card in await self._ask(self._agent.network_interfaces(), []):
            mac = str(card.get("hardware-address", "")).lower()
            listed = card.get("ip-addresses")
            if mac and mac != "00:00:00:00:00:00" and isinstance(listed, list):
                addresses[mac] = tuple(
                    str(item.get("ip-address", ""))[:64] for item in listed[:16] if isinstance(item, dict)
                )
                names[mac] = str(card.get("name", ""))[:64]
        return {
            "boot_id": (await self._ask(self._agent.read_file("/proc/sys/kernel/random/boot_id", 64), b""))
            .decode("ascii", "replace")
            .strip(),
            "memory_total": await self._read_total(),
            "os": await self._ask(self._agent.os_info(), {}),
            "addresses": addresses,
            "names": names,
        }

    async def _read_total(self) -> int:
        return _mem_total(await self._ask(self._agent.read_file("/proc/meminfo", 256), b""))

    def _total_changes(self) -> None:
        self._total_due = time.monotonic() + TOTAL_LATER

    @staticmethod
    async def _ask(question: Any, otherwise: Any) -> Any:
        try:
            return await question
        except (AgentError, KeyError, ValueError):
            return otherwise

    # What is to be

    async def plug_vcpus(self, count: int) -> None:
        with _understood():
            await self._vcpus.plug(count)

    async def use_vcpus(self, count: int, timeout: float) -> int | None:
        with _understood():
            if not self._agent_open:
                return None
            # While the guest is at it, QEMU has time for what is asked of it next.
            self._asking = asyncio.create_task(self._ask_qemu())
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
            return await self._vcpus.use(count, timeout)

    async def unplug_vcpus(self, count: int, timeout: float) -> None:
        with _understood():
            await self._vcpus.unplug(count, timeout)
        self._parked = 0  # they are the ones that went

    async def set_memory(self, plugged: int, timeout: float) -> None:
        self._total_changes()
        self._happened += 1
        with _understood():
            await self._memory.bring_to(plugged, timeout, self._agent_open)

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


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """The other end is in a tenant's Pod, and may answer in a shape that QEMU never would."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = type(error).__name__
        raise DriverError(f"what answers on the monitor does not speak as QEMU does ({problem})") from error


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
