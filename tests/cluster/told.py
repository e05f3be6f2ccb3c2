"""What a QEMU in a Pod is told over its monitors, by its own trace in the log of its container.

The second monitor switches the trace on and off; its own last command is the line at which reading ends, so
nothing is counted too early. No part of Hotvirt is a witness here, and any of them may be killed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotvirt.api import names
from hotvirt.hypervisor.qemu.command import STOP_SOCKET
from hotvirt.hypervisor.qemu.qmp import Qmp, open_qmp
from hotvirt.hypervisor.sockets import connect
from tests.kube import Object

from .on_cluster import OnCluster

RUN_FOLDER = Path("volumes/kubernetes.io~empty-dir/run")
REQUESTS, ANSWERS = "handle_qmp_command", "monitor_qmp_respond"
LINE = re.compile(rf"({REQUESTS}|{ANSWERS}) mon (0x\w+) re(?:q|sp): (\{{.*\}})\s*$")
SWITCH = "trace-event-set-state"
READ_WITHIN = 60.0
LONGEST_LINE = 1 << 24


@dataclass
class Command:
    name: str
    arguments: Object
    refused: str = ""


@dataclass
class Told:
    """The commands in their order; complete when the trace has ended."""

    commands: list[Command] = field(default_factory=list)

    def devices(self) -> list[Command]:
        return [each for each in self.commands if each.name == "device_add"]


@asynccontextmanager
async def told(place: OnCluster, pod: Object) -> AsyncIterator[Told]:
    folder = os.open(place.folder(pod) / RUN_FOLDER, os.O_PATH | os.O_DIRECTORY)
    found = Told()
    try:
        for event in (ANSWERS, REQUESTS):
            await _switch(folder, event, on=True)
        yield found
        for event in (REQUESTS, ANSWERS):
            await _switch(folder, event, on=False)
        found.commands = await _read(place, pod)
    finally:
        os.close(folder)


async def _switch(folder: int, event: str, *, on: bool) -> None:
    monitor: Qmp = await open_qmp(await connect(folder, STOP_SOCKET))
    try:
        await monitor.execute(SWITCH, {"name": event, "enable": on})
    finally:
        monitor.close()


async def _read(place: OnCluster, pod: Object) -> list[Command]:
    """The log up to the command that ended the trace."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    following = await asyncio.create_subprocess_exec(
        *(place.kubectl_program, "--kubeconfig", str(place.kubeconfig)),
        *("logs", name, "-n", namespace, "-c", names.CONTAINER_COMPUTE, "--follow"),
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
    )
    assert following.stdout is not None
    try:
        async with asyncio.timeout(READ_WITHIN):
            return await commands_in(following.stdout)
    finally:
        following.kill()
        await following.wait()


async def commands_in(lines: AsyncIterator[bytes] | asyncio.StreamReader) -> list[Command]:
    found: list[Command] = []
    open_: dict[tuple[str, Any], Command] = {}
    async for line in lines:
        match = LINE.search(line.decode(errors="replace"))
        if match is None:
            continue
        event, monitor, said = match[1], match[2], json.loads(match[3])
        who = monitor, said.get("id")
        if event == ANSWERS:
            asked = open_.pop(who, None)
            if asked is not None and "error" in said:
                asked.refused = said["error"]["desc"]
            continue
        command = open_[who] = Command(said["execute"], said.get("arguments", {}))
        if command.name == SWITCH and command.arguments == {"name": REQUESTS, "enable": False}:
            return found
        found.append(command)
    raise AssertionError("the log ended before the trace did")
