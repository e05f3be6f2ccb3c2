"""`hotvirt-launcher console-log`: the machine's serial port, to this container's log and to any number of
consoles.

Nobody may hold up the guest: what a slow log or a slow console cannot take is dropped, with a note where it
is missing. It ends when the machine has ended: QEMU and the launcher before it hold a lock on the file
`alive`.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time

from hotvirt.hypervisor.files import ALIVE_FILE, CONSOLE_SOCKET, ENDED_FILE, RUN_DIR, container_path, listen
from hotvirt.hypervisor.qemu.command import SERIAL_SOCKET

MAX_BUFFER = 1 << 20
MAX_CONSOLES = 64
_CHUNK = 65536
# A pipe that polls as writable takes this much without blocking, whoever else holds it.
_PIPE_ATOMIC = 4096


class Outlet:
    """Bytes on their way out, bounded: when full, the new is dropped and the gap is named."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._pending = bytearray()
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def put(self, data: bytes) -> None:
        if len(self._pending) + len(data) > MAX_BUFFER:
            self._dropped += len(data)
            return
        if self._dropped:
            self._pending += (
                f"\r\n[hotvirt: {self._dropped} bytes dropped: too slow to take them]\r\n".encode()
            )
            self._dropped = 0
        self._pending += data

    def flush(self) -> None:
        """Write what fits now; only called when the descriptor is ready. Raises OSError when it is gone."""
        written = os.write(self.descriptor, self._pending[:_PIPE_ATOMIC])
        del self._pending[:written]


class Relay:
    """One serial port, one log, many consoles."""

    def __init__(self, log: int) -> None:
        self._poll = select.poll()
        self._log = Outlet(log)
        self._serial_listener = listen(SERIAL_SOCKET)
        self._console_listener = listen(CONSOLE_SOCKET)
        self._serial: socket.socket | None = None
        self._to_serial: Outlet | None = None
        self._consoles: dict[int, tuple[socket.socket, Outlet]] = {}
        self._ended_reader, self._ended_writer = os.pipe()
        self._ended = False
        for listener in (self._serial_listener, self._console_listener):
            self._poll.register(listener, select.POLLIN)
        self._poll.register(self._ended_reader, select.POLLIN)

    def run(self) -> None:
        threading.Thread(target=self._await_end, daemon=True).start()
        # After the machine's end what the serial port still holds is read to its end of file.
        while not self._ended or self._serial is not None:
            self._turn(None)
        deadline = time.monotonic() + 10
        while self._log and time.monotonic() < deadline:
            self._turn(1000)

    def _await_end(self) -> None:
        """Blocks in the kernel until the last holder of the lock is gone (in a thread of its own)."""
        descriptor = _open_when_there(ALIVE_FILE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(self._ended_writer, b"!")

    def _turn(self, timeout: int | None) -> None:
        self._watch_outlets()
        for descriptor, events in self._poll.poll(timeout):
            if descriptor == self._serial_listener.fileno():
                self._accept_serial()
            elif descriptor == self._console_listener.fileno():
                self._accept_console()
            elif descriptor == self._ended_reader:
                self._machine_ended()
            elif descriptor == self._log.descriptor:
                self._flush_log()
            elif self._serial is not None and descriptor == self._serial.fileno():
                self._serve_serial(events)
            elif descriptor in self._consoles:
                self._serve_console(descriptor, events)

    def _watch_outlets(self) -> None:
        """Ask for write readiness exactly where something waits to be written."""
        if self._log:
            self._poll.register(self._log.descriptor, select.POLLOUT)
        if self._serial is not None:
            waiting = bool(self._to_serial)
            self._poll.register(self._serial, select.POLLIN | (select.POLLOUT if waiting else 0))
        for console, outlet in self._consoles.values():
            self._poll.register(console, select.POLLIN | (select.POLLOUT if outlet else 0))

    def _machine_ended(self) -> None:
        self._poll.unregister(self._ended_reader)
        self._ended = True
        waiting = select.poll()
        waiting.register(self._serial_listener, select.POLLIN)
        if waiting.poll(0):  # it came and went before we had a look: its last words are still to be read
            self._accept_serial()
        try:
            with open(ENDED_FILE, "rb") as file:
                self._log.put(b"hotvirt: the machine could not be started: " + file.read(_CHUNK))
        except OSError:
            return

    def _accept_serial(self) -> None:
        connection, _ = self._serial_listener.accept()
        self._drop_serial()
        connection.setblocking(False)
        self._serial, self._to_serial = connection, Outlet(connection.fileno())

    def _drop_serial(self) -> None:
        if self._serial is not None:
            self._poll.unregister(self._serial)
            self._serial.close()
            self._serial = self._to_serial = None

    def _accept_console(self) -> None:
        connection, _ = self._console_listener.accept()
        if len(self._consoles) >= MAX_CONSOLES:
            connection.close()
            return
        connection.setblocking(False)
        self._consoles[connection.fileno()] = (connection, Outlet(connection.fileno()))

    def _drop_console(self, descriptor: int) -> None:
        console, _ = self._consoles.pop(descriptor)
        self._poll.unregister(console)
        console.close()

    def _serve_serial(self, events: int) -> None:
        assert self._serial is not None and self._to_serial is not None
        try:
            if events & select.POLLOUT and self._to_serial:
                self._to_serial.flush()
            if not events & ~select.POLLOUT:
                return
            data = self._serial.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_serial()
            return
        self._log.put(data)
        for _, outlet in self._consoles.values():
            outlet.put(data)

    def _serve_console(self, descriptor: int, events: int) -> None:
        console, outlet = self._consoles[descriptor]
        try:
            if events & select.POLLOUT and outlet:
                outlet.flush()
            if not events & ~select.POLLOUT:
                return
            data = console.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_console(descriptor)
        elif self._to_serial is not None:
            self._to_serial.put(data)

    def _flush_log(self) -> None:
        try:
            self._log.flush()
        except OSError:
            # Nobody reads the log any more; the consoles still want theirs.
            self._poll.unregister(self._log.descriptor)
            self._log = Outlet(os.open(os.devnull, os.O_WRONLY))
            return
        if not self._log:
            self._poll.unregister(self._log.descriptor)


def _open_when_there(path: str) -> int:
    while True:
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            time.sleep(0.05)  # a file appearing has no event in the standard library


def _on_sigterm(*_: object) -> None:
    """The Pod is being ended: the guest's last words are still wanted, unless there never was a machine."""
    if not os.path.exists(ALIVE_FILE):
        sys.exit(0)


def serve() -> int:
    os.chdir(container_path(RUN_DIR))
    signal.signal(signal.SIGTERM, _on_sigterm)
    Relay(sys.stdout.fileno()).run()
    return 0
