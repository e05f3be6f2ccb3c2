"""What `hotvirt up` shows in the foreground: the life of the VMs as it happens, one plain line each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from hotvirt.api.core import Event
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance
from hotvirt.api.pods import Pod
from hotvirt.api.resources import EVENTS, PODS, VMIS, VMS
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informers

WIDTH = 34
LONGEST = 160


class Feed:
    def __init__(self, client: Client, write: Callable[[str], None]) -> None:
        self._write = write
        self._live = False
        self._informers = Informers(client)
        self._vmis = self._informers.of(VMIS, VirtualMachineInstance)
        self._informers.of(VMS, VirtualMachine).add_handler(self._vm)
        self._vmis.add_handler(self._vmi)
        self._informers.of(PODS, Pod).add_handler(self._pod)
        self._informers.of(EVENTS, Event).add_handler(self._event)

    async def run(self) -> None:
        running = asyncio.create_task(self._informers.run())
        try:
            await self._informers.synced()
            for vmi in self._vmis.list():
                if vmi.status.phase == "Running":
                    self._line("vmi", vmi.metadata.key, f"still runs, {size_of(vmi)}")
            self._live = True
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])

    def _line(self, kind: str, key: tuple[str, str], text: str) -> None:
        about = f"{kind} {'/'.join(part for part in key if part)}"
        self._write(f"{datetime.now():%H:%M:%S}  {about:<{WIDTH}} {text}")

    def _vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        if not self._live:
            return
        if new is None:
            if old is not None:
                self._line("vm", old.metadata.key, "deleted")
            return
        if old is None:
            self._line("vm", new.metadata.key, "created")
        elif new.status.printable_status not in ("", old.status.printable_status):
            self._line("vm", new.metadata.key, new.status.printable_status)

    def _vmi(self, old: VirtualMachineInstance | None, new: VirtualMachineInstance | None) -> None:
        if not self._live or new is None:
            return
        before = old.status.phase if old else ""
        phase = new.status.phase
        if phase != before and phase:
            where = f" on {new.status.node_name}" if phase == "Scheduled" else ""
            size = f", {size_of(new)}" if phase == "Running" and size_of(new) else ""
            self._line("vmi", new.metadata.key, f"{phase}{where}{size}")
        elif phase == "Running" and old is not None and size_of(old) != size_of(new):
            grown = "vCPU" in size_of(old)
            text = f"{size_of(old)} → {size_of(new)}" if grown else f"the guest sees {size_of(new)}"
            self._line("vmi", new.metadata.key, text)

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if not self._live:
            return
        if new is None:
            if old is not None:
                self._line("pod", old.metadata.key, "gone")
        elif new.status.phase and (old is None or old.status.phase != new.status.phase):
            self._line("pod", new.metadata.key, new.status.phase)

    def _event(self, old: Event | None, new: Event | None) -> None:
        if not self._live or new is None or (old is not None and old.count == new.count):
            return
        about = new.involved_object
        kind = {"VirtualMachine": "vm", "VirtualMachineInstance": "vmi"}.get(about.kind, about.kind.lower())
        again = f" (×{new.count})" if new.count > 1 else ""
        mark = "! " if new.type == "Warning" else ""
        message = new.message if len(new.message) <= LONGEST else f"{new.message[:LONGEST]}…"
        self._line(kind, (about.namespace, about.name), f"{mark}{new.reason}: {message}{again}")


def size_of(vmi: VirtualMachineInstance) -> str:
    """What the guest sees: `2 vCPUs, 512Mi`."""
    parts = []
    topology = vmi.status.current_cpu_topology
    online = vmi.status.hotvirt.vcpus.online if vmi.status.hotvirt.vcpus else None
    if online is None and topology is not None:
        online = topology.sockets * topology.cores * topology.threads
    if online:
        parts.append(f"{online} vCPU{'s' if online > 1 else ''}")
    if vmi.status.memory is not None and vmi.status.memory.guest_current:
        parts.append(str(vmi.status.memory.guest_current))
    return ", ".join(parts)
