"""`hotvirt-launcher stop`: press the machine's power button and wait for it to end.

It runs as the Pod's preStop step: the node kills it together with the machine when the grace period is over.
"""

from __future__ import annotations

import json
import os
import socket

from hotvirt.hypervisor.files import RUN_DIR, container_path, say
from hotvirt.hypervisor.qemu.command import STOP_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A guest that is still booting does not hear the button: press again.
PRESS_EVERY = 5.0


def stop_machine() -> int:
    os.chdir(container_path(RUN_DIR))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(STOP_SOCKET)
    except OSError:
        say("no machine runs here: nothing to stop")
        return 0
    connection.settimeout(PRESS_EVERY)
    monitor = _Monitor(connection)
    try:
        monitor.send("qmp_capabilities")
        monitor.send("cont")  # a paused guest could not hear the button
        while True:
            monitor.send("system_powerdown")
            try:
                monitor.read_until_closed()
            except TimeoutError:
                continue
            return 0
    except OSError:  # it ended while we spoke
        return 0


class _Monitor:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, command: str, **arguments: Any) -> None:
        request = {"execute": command, "arguments": arguments}
        self._connection.sendall(json.dumps(request).encode() + b"\n")

    def read_until_closed(self) -> None:
        """Replies and events are of no interest: the machine's end is what counts."""
        while self._connection.recv(65536):
            pass
