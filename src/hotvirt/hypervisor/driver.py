"""What the node agent needs of a hypervisor. Three figures are never mixed: asked for, plugged, seen by the
guest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from hotvirt.hypervisor.files import Files
from hotvirt.plan.machine import Machine


class DriverError(RuntimeError):
    """The hypervisor refused or could not do it; the message is for a person."""


class MachineGone(ConnectionError):
    """The machine has ended, or its monitor does not answer."""


class Status(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    SHUTDOWN = "shutdown"
    OTHER = "other"


class Change(StrEnum):
    """What a machine tells by itself."""

    PAUSED = "paused"
    RESUMED = "resumed"
    RESET = "reset"
    SHUTDOWN = "shutdown"
    PANICKED = "panicked"
    AGENT = "agent"  # the guest agent came or went
    VCPUS = "vcpus"  # the guest took note of a vCPU
    MEMORY = "memory"
    CLOSED = "closed"


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What the node gives to a machine that starts."""

    accel: str
    network: dict[str, object]
    version: tuple[int, ...] = ()


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A place for one vCPU, in the order in which they are filled."""

    socket: int
    core: int
    thread: int
    plugged: bool
    removable: bool = False


class GuestVcpu(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    online: bool
    can_offline: bool = False


class GuestView(msgspec.Struct, frozen=True, kw_only=True):
    """The guest's own account of itself, through its agent."""

    vcpus: tuple[GuestVcpu, ...] = ()
    boot_id: str = ""
    memory_total: int = 0
    os: dict[str, str] = {}
    interfaces: tuple[str, ...] = ()
    addresses: dict[str, tuple[str, ...]] = {}  # by MAC address
    names: dict[str, str] = {}  # the guest's interface names by MAC address

    @property
    def online(self) -> int:
        return sum(vcpu.online for vcpu in self.vcpus)


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes: at boot; and beyond that: asked for, plugged, in use by the guest, the most that fits.

    What the guest uses is None when it cannot be asked.
    """

    boot: int = 0
    requested: int = 0
    plugged: int = 0
    region: int = 0
    online: int | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    detail: str = ""  # the hypervisor's own word for it
    vcpus: tuple[Slot, ...]
    memory: MemoryView
    agent_connected: bool
    agent_expected: bool = False  # its channel is open in the guest, but it does not answer yet
    guest: GuestView | None = None  # None: nobody answers in the guest
    # Plugged vCPUs that the guest does not use, as it last said in this boot. None: it has not said so to us.
    parked: int | None = 0
    unread: bool = False  # something of the guest is from before its last change: look again soon

    @property
    def plugged(self) -> int:
        return sum(slot.plugged for slot in self.vcpus)


Listener = Callable[[Change], None]


class RunningMachine(Protocol):
    """A connection to one machine. Losing it does not touch the machine."""

    closed: asyncio.Event

    @property
    def version(self) -> str:
        """The hypervisor's name and version."""

    @property
    def pid(self) -> int:
        """The hypervisor's process, 0 where there is none."""

    async def observe(self) -> Observed: ...

    async def plug_vcpus(self, count: int) -> None:
        """Have at least so many plugged, all missing ones in one batch. The guest may still not use them."""

    async def use_vcpus(self, count: int, timeout: float) -> int | None:
        """Have the guest use so many; how many it does use then, None when it cannot be asked."""

    async def unplug_vcpus(self, count: int, timeout: float) -> None:
        """Have at most so many plugged, as far as the guest lets go of them within the time."""

    async def set_memory(self, plugged: int, timeout: float) -> None:
        """Have so many bytes beyond those at boot, as far as the guest goes along within the time."""

    async def power_button(self) -> None: ...

    async def soft_reboot(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def reset(self) -> None: ...

    def add_listener(self, listener: Listener) -> Callable[[], None]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def has_process(self) -> bool:
        """Whether a launcher waits for a hand-over; without one, `begin` is all it takes."""

    async def accelerator(self) -> str:
        """`kvm` where a guest really starts, else `tcg`."""

    async def version(self) -> tuple[int, ...]:
        """Of the hypervisor that is installed here."""

    def argv(self, machine: Machine, handover: Handover, files: Files) -> list[str]: ...

    async def begin(self, run_dir_fd: int, machine: Machine) -> None: ...

    async def connect(self, run_dir_fd: int) -> RunningMachine:
        """Raises MachineGone while there is no machine to connect to."""
