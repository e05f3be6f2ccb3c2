"""A guest in plain QEMU, without any of Hotvirt's code: these tests are about the disk, not about Hotvirt."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 240.0
"""Seconds; a guest that is emulated on a busy machine takes its time."""


class JsonSocket:
    """One JSON text a line, over a unix socket that QEMU listens on."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._unread = b""

    def send(self, message: dict[str, Any], prefix: bytes = b"") -> None:
        self._socket.sendall(prefix + json.dumps(message).encode() + b"\n")

    def line(self) -> bytes:
        while b"\n" not in self._unread:
            received = self._socket.recv(65536)
            if not received:
                raise EOFError("QEMU closed the socket")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        self._socket.close()


def drain(console: socket.socket) -> None:
    """Read and forget: the text is in the log, but the guest's serial port stalls when nobody reads."""
    with contextlib.suppress(OSError):  # closed at the end of the test
        while console.recv(4096):
            continue


class Machine:
    """A running QEMU: its console text, its monitor, its guest agent."""

    def __init__(self, folder: Path, disk: Path, *more: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._keyboard: socket.socket | None = None
        self.boot_took = 0.0
        """Seconds, where somebody has waited for it."""
        self.console_log = folder / "console.log"
        arguments = [
            # One thread for all vCPUs: else QEMU aborts when one is added while its buffer is full.
            *("-accel", "tcg,thread=single,tb-size=64"),
            *("-machine", "q35", "-cpu", "max", "-m", "256M,maxmem=2G"),
            *("-smp", "1,sockets=2,cores=1,threads=1,maxcpus=2"),
            *("-display", "none", "-nodefaults", "-no-reboot"),
            "-chardev",
            f"socket,id=console,path={folder}/console,server=on,wait=off,logfile={self.console_log}",
            *("-serial", "chardev:console"),
            *("-qmp", f"unix:{folder}/qmp,server=on,wait=off"),
            *("-drive", f"file={disk},if=none,id=boot,format=raw,snapshot=on"),
            *("-device", "virtio-blk-pci,drive=boot,serial=boot-disk,bootindex=1"),
            *("-chardev", f"socket,id=agent,path={folder}/agent,server=on,wait=off"),
            *("-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
            *more,
        ]
        self.output = folder / "qemu.log"
        with self.output.open("wb") as output:
            command = ["qemu-system-x86_64", *arguments]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self._monitor = self._connected("qmp")
            self._monitor.line()
            self.monitor("qmp_capabilities")
            self._agent = self._connected("agent")
        except BaseException:
            self.kill()
            raise

    def _connected(self, name: str) -> JsonSocket:
        """A socket is there a moment before QEMU listens on it."""

        def connection() -> JsonSocket | None:
            try:
                return JsonSocket(self._folder / name)
            except (FileNotFoundError, ConnectionRefusedError):
                return None

        connected: JsonSocket = self.until(connection, f"QEMU's socket {name}")
        return connected

    def monitor(self, command: str, **arguments: Any) -> Any:
        self._monitor.send({"execute": command, "arguments": arguments})
        while True:
            reply = json.loads(self._monitor.line())
            if "event" not in reply:
                assert "error" not in reply, reply
                return reply["return"]

    def console(self) -> str:
        return self.console_log.read_text(errors="replace") if self.console_log.exists() else ""

    def type(self, text: str) -> None:
        """Type on the serial console. The connection stays, or what the guest has not yet read is lost."""
        if self._keyboard is None:
            self._keyboard = socket.socket(socket.AF_UNIX)
            self._keyboard.connect(str(self._folder / "console"))
            threading.Thread(target=drain, args=(self._keyboard,), daemon=True).start()
        self._keyboard.sendall(text.encode())

    def until(self, true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait for something that has no event of its own (a line in a file, a figure in the guest)."""
        deadline = time.monotonic() + seconds
        while not (result := true()):
            assert self.process.poll() is None, f"QEMU ended before {what}:\n{self.output.read_text()}"
            assert time.monotonic() < deadline, (
                f"no {what} within {seconds:.0f} s. Console:\n{self.console()}"
            )
            time.sleep(0.05)
        return result

    def until_console(self, text: str) -> None:
        self.until(lambda: text in self.console(), f"console line {text!r}")

    def sync_agent(self) -> None:
        """0xFF makes the agent drop what it has half read; it answers that with an error line, so read on
        to the reply that starts with 0xFF."""
        self._agent.send({"execute": "guest-sync-delimited", "arguments": {"id": 4711}}, prefix=b"\xff")
        while not (line := self._agent.line()).startswith(b"\xff"):
            continue
        assert json.loads(line[1:])["return"] == 4711

    def agent(self, command: str, **arguments: Any) -> Any:
        self._agent.send({"execute": command, "arguments": arguments})
        reply = json.loads(self._agent.line())
        assert "error" not in reply, reply
        return reply["return"]

    def run(self, *command: str) -> str:
        """Run a program in the guest; its output."""
        pid = self.agent("guest-exec", path=command[0], arg=list(command[1:]), **{"capture-output": True})[
            "pid"
        ]

        def ended() -> dict[str, Any] | None:
            status: dict[str, Any] = self.agent("guest-exec-status", pid=pid)
            return status if status["exited"] else None

        status = self.until(ended, f"end of {command}")
        output = base64.b64decode(status.get("out-data", "")).decode()
        assert status["exitcode"] == 0, (command, output, base64.b64decode(status.get("err-data", "")))
        return output

    def write(self, path: str, text: str) -> None:
        handle = self.agent("guest-file-open", path=path, mode="w")
        self.agent("guest-file-write", handle=handle, **{"buf-b64": base64.b64encode(text.encode()).decode()})
        self.agent("guest-file-close", handle=handle)

    def wait_for_end(self) -> None:
        self.process.wait(PATIENCE)

    def kill(self) -> None:
        for each in ("_keyboard", "_monitor", "_agent"):
            if connection := getattr(self, each, None):
                connection.close()
        self.process.kill()
        self.process.wait()
