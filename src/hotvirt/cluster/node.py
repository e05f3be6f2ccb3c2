"""`hotvirt-node`: the node agent as a process of a cluster, on every node that runs VMs.

It runs on asyncio's own loop: descriptors are passed to launchers over its sockets, which uvloop's do not do.
Ended or killed, it leaves every guest running; its next start finds them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, NoReturn

from hotvirt import __version__
from hotvirt.api import names
from hotvirt.hypervisor.driver import Driver
from hotvirt.hypervisor.instant import InstantDriver
from hotvirt.hypervisor.qemu.driver import QemuDriver
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.events import Recorder
from hotvirt.node.agent import NodeAgent

from .console import ConsoleServer
from .device_plugin import offer_kvm
from .health import Health
from .heartbeat import Heartbeat
from .process import end, first_failure, may_work, run
from .settings import NodeSettings, api_access

log = logging.getLogger(__name__)
COMPONENT = "hotvirt-node"


class NodeProcess:
    def __init__(self, settings: NodeSettings, access: ClientConfig) -> None:
        self._settings = settings
        self.health = Health()
        self._client = client = Client(access, f"{COMPONENT}/{__version__}")
        self._driver: Driver = InstantDriver() if settings.hypervisor == "instant" else QemuDriver()
        self._recorder = Recorder(client, COMPONENT, settings.node_name)
        self._agent = NodeAgent(
            client, settings.node_name, settings.root, {self._driver.name: self._driver}, self._recorder
        )
        self._consoles = ConsoleServer(
            client, settings.node_name, settings.address, settings.console_port, self._agent.open_console
        )
        self._heartbeat = Heartbeat(client, settings.node_name, self._told, settings.pod)
        self.health.not_ready("cluster", "it is being looked at")
        self.health.unless("lease", lambda: self._heartbeat.problem)

    def _told(self) -> dict[str, str]:
        host = self._settings.pod_ip
        address = f"[{host}]" if ":" in host else host
        return {
            names.ANNOTATION_CONSOLE_ADDRESS: f"{address}:{self._consoles.port}",
            names.ANNOTATION_CONSOLE_CERTIFICATE: self._consoles.fingerprint,
        }

    async def run(self, stopping: asyncio.Event) -> None:
        async with self._client:
            await self.health.start(self._settings.address, self._settings.health_port)
            try:
                if await may_work(self._client, self.health, stopping):
                    await self._work(stopping)
            finally:
                await self.health.stop()

    async def _work(self, stopping: asyncio.Event) -> None:
        parts: dict[str, Coroutine[Any, Any, None]] = {
            "node agent": self._agent.run(),
            "consoles": self._consoles.run(self._heartbeat.beat_now),
            "heartbeat": self._heartbeat.run(),
        }
        if self._driver.has_process:
            parts["devices"] = offer_kvm(self._driver.accelerator)
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        try:
            await first_failure(tasks, stopping)
        finally:
            await end(tasks)
            await self._recorder.close()
            log.info("guests keep running")


def main() -> NoReturn:
    async def serve(stopping: asyncio.Event) -> None:
        await NodeProcess(NodeSettings.of(os.environ), api_access()).run(stopping)

    run(COMPONENT, serve, asyncio.run)
