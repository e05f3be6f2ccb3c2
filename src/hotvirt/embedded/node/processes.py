"""Which process is which: a pid alone may be anybody's by now.

A process is named by pid, start time and host boot id. Signals go through a pidfd that was opened before the
start time was compared, so that they never reach a stranger.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of this process; None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True)
class Process:
    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Process | None:
        try:
            return cls(int(record["pid"]), int(record["startTime"]), str(record["bootId"]))
        except (KeyError, TypeError, ValueError):
            return None

    def alive(self) -> bool:
        return self.boot_id == boot_id() and start_time(self.pid) == self.start_time

    def pidfd(self) -> int | None:
        """A handle to exactly this process, or None when it is gone. The caller closes it."""
        if self.boot_id != boot_id():
            return None
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return None
        if start_time(self.pid) != self.start_time:
            os.close(handle)
            return None
        return handle

    def signal(self, number: int) -> bool:
        """False when it is gone already."""
        handle = self.pidfd()
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


class EndWatch:
    """Calls back once, from the event loop, when a process that is not our child has ended."""

    def __init__(self, process: Process, ended: Callable[[], None]) -> None:
        self._handle = process.pidfd()
        self._ended = ended
        loop = asyncio.get_running_loop()
        if self._handle is None:
            loop.call_soon(ended)
        else:
            loop.add_reader(self._handle, self._readable)

    def _readable(self) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        if self._handle is not None:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = None


async def wait_for_end(process: Process, timeout: float | None = None) -> bool:
    """True when it has ended within that time."""
    ended = asyncio.Event()
    watch = EndWatch(process, ended.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), timeout)
        return ended.is_set()
    finally:
        watch.close()
