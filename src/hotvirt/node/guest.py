"""One machine of this node, as the agent holds it: its run folder, its monitor, its DHCP.

All of it can be found again from the run folder: nothing here is needed by the machine itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotvirt.api.pods import Pod
from hotvirt.hypervisor.driver import Change, Driver, MachineGone, Observed, RunningMachine
from hotvirt.hypervisor.files import CONSOLE_SOCKET, LAUNCHER_SOCKET
from hotvirt.hypervisor.qemu.command import QMP_SOCKET
from hotvirt.hypervisor.sockets import NoSocket, connect
from hotvirt.node import network
from hotvirt.node.dhcp import DhcpServer
from hotvirt.node.folders import open_run_folder
from hotvirt.node.handover import hand_over, lease_for, read_record
from hotvirt.node.inotify import FolderWatch
from hotvirt.node.looks import Looks
from hotvirt.node.peers import Membership, StrangerError, check_peer, pod_network
from hotvirt.node.sizes import Sizer
from hotvirt.plan.machine import Machine

# Between the hand-over and the first connection: that a process listens is announced by no event.
STARTING_POLL, LONGEST_STARTING_POLL = 0.05, 1.0
FIRST_AGENT_DELAY, LONGEST_AGENT_DELAY = 0.5, 30.0


class Guest:
    def __init__(
        self, pod_uid: str, folder: int, driver: Driver, machine: Machine, belongs: Membership
    ) -> None:
        self.pod_uid = pod_uid
        self._belongs = belongs
        self.folder = folder
        self.driver = driver
        self.machine = machine
        self.running: RunningMachine | None = None
        self.accelerator = ""
        self.boot_memory = 0
        self.panicked = False
        self.agent_delay = FIRST_AGENT_DELAY
        self.sizer = Sizer()
        self.looks = Looks()
        self.handed_over = False
        self._starting_since = time.monotonic()
        self._dhcp: DhcpServer | None = None
        self._stop_watching: Callable[[], None] = lambda: None

    @classmethod
    def open(
        cls,
        node_root: Path,
        pod: Pod,
        driver: Driver,
        machine: Machine,
        watch: FolderWatch,
        stirred: Callable[[], None],
        belongs: Membership,
    ) -> Guest:
        """Raises OSError while the node has not made the folder."""
        folder = open_run_folder(node_root, pod.metadata.uid)
        guest = cls(pod.metadata.uid, folder, driver, machine, belongs)
        try:
            guest._stop_watching = watch.watch(folder, stirred)
        except OSError:
            os.close(folder)
            raise
        return guest

    async def bring_up(self, address: str, stirred: Callable[[], None]) -> bool:
        """Connect to the machine, handing over to its launcher first where that still waits.

        False while there is nothing to do but wait: the folder's watch tells when that changes.
        """
        if self.running is not None and not self.running.closed.is_set():
            return True
        if self.running is not None:
            self._starting_since = time.monotonic()
        self._forget_machine()
        if not self.driver.has_process and not self.handed_over:
            await self._begin()
        try:
            self.running = await self.driver.connect(self.folder)
        except MachineGone:
            if self.driver.has_process and not self.handed_over and self._has(LAUNCHER_SOCKET):
                await self._hand_over(address)
            return False
        self.running.add_listener(lambda change: self._on_change(change, stirred))
        try:
            await self._adopt()
        except BaseException:
            self._forget_machine()  # half adopted is not adopted: the next try does all of it
            raise
        return True

    @property
    def unplugs(self) -> bool:
        """Under TCG a vCPU that was plugged stays, parked: QEMU crashes when it is unplugged."""
        return self.accelerator == "kvm"

    def next_look_at_agent(self, observed: Observed) -> float | None:
        """An agent whose channel is open announces its first answer by no event: ask again, less and less."""
        if not observed.agent_expected:
            self.agent_delay = FIRST_AGENT_DELAY
            return None
        delay, self.agent_delay = self.agent_delay, min(self.agent_delay * 2, LONGEST_AGENT_DELAY)
        return delay

    async def _begin(self) -> None:
        """A driver without a process: begin once, whoever of us was here before."""
        try:
            connection = await self.driver.connect(self.folder)
        except MachineGone:
            await self.driver.begin(self.folder, self.machine)
        else:
            connection.close()
        self.handed_over = True

    def next_look_at_start(self) -> float | None:
        """The launcher or the hypervisor is at work; when it will listen is announced by no event.

        The longer it takes, the less often it is looked at. None: the folder's watch tells.
        """
        if not (self.handed_over or self._has(QMP_SOCKET) or self._has(LAUNCHER_SOCKET)):
            return None
        waited = time.monotonic() - self._starting_since
        return min(LONGEST_STARTING_POLL, max(STARTING_POLL, waited / 20))

    def _has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    async def _hand_over(self, address: str) -> None:
        try:
            given = await hand_over(
                self.folder, self.driver, self.machine, address, self.pod_uid, self._belongs
            )
        except NoSocket:
            return  # an agent before us has handed over, and the launcher is about to start the machine
        self.handed_over = True
        self._starting_since = time.monotonic()
        if given.dhcp is not None and given.lease is not None:
            self._close_dhcp()
            self._dhcp = DhcpServer(given.dhcp, given.lease)

    async def _adopt(self) -> None:
        """What a machine that runs already was started with, and the DHCP that it may still ask for."""
        assert self.running is not None
        namespace = None
        if self.driver.has_process:  # also where it is not needed: a stranger is not adopted
            namespace = pod_network(self.running.pid, self.pod_uid, self._belongs)
        try:
            await self._adopt_in(namespace)
        finally:
            if namespace is not None:
                os.close(namespace)

    async def _adopt_in(self, namespace: int | None) -> None:
        record = read_record(self.folder)
        self.accelerator = str(record.get("accel") or await self.driver.accelerator())[:16]
        self.boot_memory = _boot_memory(record) or self.machine.memory.boot + self.machine.memory.plugged
        kind = record.get("network", {}).get("kind") if isinstance(record.get("network"), dict) else None
        if kind != "tap" or self._dhcp is not None or not self.machine.interfaces or namespace is None:
            return
        endpoint, mtu = await network.open_dhcp_socket(namespace)
        self._dhcp = DhcpServer(endpoint, lease_for(self.machine, record, mtu))

    def _on_change(self, change: Change, stirred: Callable[[], None]) -> None:
        self.looks.forget()
        if change is Change.PANICKED:
            self.panicked = True
        stirred()

    async def open_console(self) -> socket.socket:
        """A connection to the serial console. ConnectionError: there is none now, or it is a stranger's."""
        connection = await connect(self.folder, CONSOLE_SOCKET)
        try:
            check_peer(connection, self.pod_uid, self._belongs)
        except (StrangerError, network.NetworkError) as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _close_dhcp(self) -> None:
        if self._dhcp is not None:
            self._dhcp.close()
            self._dhcp = None

    def _forget_machine(self) -> None:
        self.looks.forget()
        if self.running is not None:
            self.running.close()
            self.running = None

    def close(self) -> None:
        """Let go of the machine, which goes on."""
        self._stop_watching()
        self._forget_machine()
        self._close_dhcp()
        os.close(self.folder)


def _boot_memory(record: dict[str, Any]) -> int:
    """What the guest had when it was started; the spec may ask for more by now."""
    try:
        memory = record["machine"]["memory"]
        return int(memory["boot"]) + int(memory["plugged"])
    except (KeyError, TypeError, ValueError):
        return 0
