"""Every test, in several runs of pytest side by side: much of what they do is to wait.

    python -m tests.sessions [PYTEST-OPTION ...]

A session has what it needs for itself (a cluster, a `hotvirt up`): the others do not disturb it. `SESSIONS`
says what is in each, and `tests/unit/test_sessions.py` that nothing is left out. The output is that of one
session after another: the first that still runs is shown as it comes, the others when it has ended. The exit
code is 0 when all have passed. Ctrl-C and SIGTERM end them all, and what they have started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import BinaryIO

from tests.targets.target import CHECKOUT, die_with_parent

AT_ONCE = 3
NO_CLUSTER = ("--target=real", "--target=oldest", "--target=embedded")
SESSIONS: dict[str, tuple[str, ...]] = {
    "cluster": ("tests/cluster", "tests/conformance", "tests/kubectl", "--target=cluster"),
    "one machine": ("tests/embedded",),
    "resizes": (
        "tests/embedded/test_resize.py",
        "tests/embedded/test_resize_crash.py",
        "tests/embedded/test_scenarios.py",
        "tests/embedded/test_up_crash.py",
    ),
    "faults": ("tests/faults",),
    "control plane": (
        "tests/cluster/test_certificates.py",
        "tests/cluster/test_install.py",
        "tests/cluster/test_leading.py",
        "tests/cluster/test_processes.py",
    ),
    "quick": ("tests/guest", "tests/unit", "tests/conformance", "tests/kubectl", *NO_CLUSTER),
}
"""What is in each. A file that one names is not in the folder that another names. The longest come first: the
next one starts when one of those before it has ended."""


class Session:
    """One run of pytest."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.code: int | None = None
        self.took = 0.0
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._held: list[bytes] = []
        self._screen: BinaryIO | None = None
        self._is_to_end = False

    async def run(self) -> None:
        started = time.monotonic()
        self._write(f"\ntests: {self.name}\n".encode())
        # A group of its own: what is typed at the terminal comes to it once, from here.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=CHECKOUT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        if self._is_to_end:
            self.interrupt()
        assert self._process.stdout is not None
        while text := await self._process.stdout.read(1 << 16):
            self._write(text)
        self.code = await self._process.wait()
        self.took = time.monotonic() - started

    def _write(self, text: bytes) -> None:
        if self._screen is None:
            self._held.append(text)
        else:
            self._screen.write(text)
            self._screen.flush()

    def show(self, screen: BinaryIO) -> None:
        """What was said up to now, and from now on as it comes."""
        self._screen = screen
        self._write(b"".join(self._held))

    def interrupt(self) -> None:
        """As Ctrl-C does: pytest takes down what its tests have set up, and says what failed before."""
        self._is_to_end = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    @property
    def outcome(self) -> str:
        minutes, seconds = divmod(round(self.took), 60)
        if self.code is None:
            return "not run"
        return f"{'passed' if self.code == 0 else f'FAILED (pytest: {self.code})'}, {minutes} min {seconds} s"


def end_with_parent() -> None:
    """Nothing runs on when this process is killed."""
    # A shell has its background jobs ignore it, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with_parent(signal.SIGINT)


async def run_all(commands: Mapping[str, Sequence[str]], screen: BinaryIO, at_once: int = AT_ONCE) -> int:
    """The exit code: 0, 1, or that of a process ended by the signal that ended this one."""
    sessions = [Session(name, command) for name, command in commands.items()]
    places = asyncio.Semaphore(at_once)
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        for session in sessions:
            session.interrupt()

    async def in_turn(session: Session) -> None:
        async with places:
            if not ended_by:
                await session.run()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    names = ", ".join(session.name for session in sessions)
    screen.write(f"tests: {names}: {at_once} at a time, shown one after the other\n".encode())
    tasks = [asyncio.create_task(in_turn(session)) for session in sessions]
    for session, task in zip(sessions, tasks, strict=True):
        session.show(screen)
        await task
    screen.write(b"\n")
    for session in sessions:
        screen.write(f"tests: {session.name}: {session.outcome}\n".encode())
    screen.flush()
    if ended_by:
        return 128 + ended_by[0]
    return 0 if all(session.code == 0 for session in sessions) else 1


def arguments(name: str) -> list[str]:
    """Those of this session for pytest."""
    words = SESSIONS[name]
    elsewhere = [word for other in SESSIONS.values() if other is not words for word in other]
    files = [word for word in elsewhere if word.endswith(".py")]
    return [*words, *(f"--ignore={file}" for file in files if str(PurePath(file).parent) in words)]


def commands(options: Sequence[str]) -> dict[str, list[str]]:
    colour = ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []
    pytest = [sys.executable, "-m", "pytest", *colour, *options]
    return {name: [*pytest, *arguments(name)] for name in SESSIONS}


if __name__ == "__main__":
    sys.exit(asyncio.run(run_all(commands(sys.argv[1:]), sys.stdout.buffer)))
