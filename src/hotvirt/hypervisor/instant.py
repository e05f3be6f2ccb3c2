"""The driver that answers at once: a machine that is a file in its run folder. For tests and for measuring.

It keeps what it was told across restarts of the agent, as a real machine does, and its guest does as it is
asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
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
from hotvirt.hypervisor.files import MACHINE_FILE, Files
from hotvirt.plan.machine import Machine

STATE_FILE = "instant-machine.json"


class InstantDriver:
    name = "instant"
    has_process = False

    async def accelerator(self) -> str:
        return "kvm"

    async def version(self) -> tuple[int, ...]:
        return (1,)

    def argv(self, machine: Machine, handover: Handover, files: Files) -> list[str]:
        return ["true"]

    async def begin(self, run_dir_fd: int, machine: Machine) -> None:
        cpu = machine.cpu
        per_socket = cpu.cores * cpu.threads
        # As the launcher does: what it was started with is not what it is to have later.
        memory = {"boot": machine.memory.boot, "plugged": machine.memory.plugged}
        _save(run_dir_fd, {"machine": {"memory": memory}}, MACHINE_FILE)
        _save(
            run_dir_fd,
            {
                "boot_id": str(uuid.uuid4()),
                "status": "paused" if machine.paused else "running",
                "cores": cpu.cores,
                "threads": cpu.threads,
                "slots": cpu.max_sockets * per_socket,
                "plugged": cpu.sockets * per_socket,
                "online": cpu.sockets * per_socket,
                "memory": machine.memory.boot,
                "region": machine.memory.region,
                "requested": machine.memory.plugged,
            },
        )

    async def connect(self, run_dir_fd: int) -> InstantMachine:
        try:
            state = _load(run_dir_fd)
        except OSError as error:
            raise MachineGone(f"no machine was begun here: {error.strerror}") from error
        return InstantMachine(os.dup(run_dir_fd), state)


class InstantMachine:
    version = "instant"
    pid = 0

    def __init__(self, folder: int, state: dict[str, Any]) -> None:
        self.closed = asyncio.Event()
        self._folder = folder
        self._state = state
        self._listeners: list[Listener] = []

    async def observe(self) -> Observed:
        state = self._state
        return Observed(
            status=Status(state["status"]),
            vcpus=tuple(self._slot(number) for number in range(state["slots"])),
            memory=MemoryView(
                boot=state["memory"],
                requested=state["requested"],
                plugged=state["requested"],
                region=state["region"],
                online=state["requested"],
            ),
            agent_connected=True,
            guest=GuestView(
                vcpus=tuple(
                    GuestVcpu(number=n, online=n < state["online"], can_offline=n > 0)
                    for n in range(state["plugged"])
                ),
                boot_id=state["boot_id"],
                memory_total=state["memory"] + state["requested"],
                os={"id": "instant", "name": "Instant", "pretty-name": "A guest that answers at once"},
            ),
        )

    def _slot(self, number: int) -> Slot:
        core_number, thread = divmod(number, self._state["threads"])
        socket, core = divmod(core_number, self._state["cores"])
        return Slot(
            socket=socket,
            core=core,
            thread=thread,
            plugged=number < self._state["plugged"],
            removable=socket > 0,
        )

    async def plug_vcpus(self, count: int) -> None:
        self._change(plugged=min(max(count, self._state["plugged"]), self._state["slots"]))

    async def use_vcpus(self, count: int, timeout: float) -> int | None:
        self._change(online=min(max(1, count), self._state["plugged"]))
        online: int = self._state["online"]
        return online

    async def unplug_vcpus(self, count: int, timeout: float) -> None:
        plugged = max(1, min(count, self._state["plugged"]))
        self._change(plugged=plugged, online=min(plugged, self._state["online"]))

    async def set_memory(self, plugged: int, timeout: float) -> None:
        if plugged > self._state["region"]:
            raise DriverError(f"{plugged} bytes more do not fit: there is room for {self._state['region']}")
        self._change(requested=plugged)

    async def power_button(self) -> None:
        self._change(status="shutdown")
        self._tell(Change.SHUTDOWN)

    async def soft_reboot(self) -> None:
        await self.reset()

    async def pause(self) -> None:
        self._change(status="paused")
        self._tell(Change.PAUSED)

    async def resume(self) -> None:
        self._change(status="running")
        self._tell(Change.RESUMED)

    async def reset(self) -> None:
        self._change(boot_id=str(uuid.uuid4()), online=self._state["plugged"])
        self._tell(Change.RESET)

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            os.close(self._folder)

    def _change(self, **fields: Any) -> None:
        self._state |= fields
        _save(self._folder, self._state)

    def _tell(self, change: Change) -> None:
        for listener in list(self._listeners):
            listener(change)


def _save(folder: int, state: dict[str, Any], name: str = STATE_FILE) -> None:
    unfinished = name + ".new"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(file, "w") as stream:
        json.dump(state, stream)
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def _load(folder: int) -> dict[str, Any]:
    file = os.open(STATE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file) as stream:
        state: dict[str, Any] = json.load(stream)
    return state
