"""What the node needs of whatever runs a Pod's containers. Two kinds: real processes, and one that answers
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .cgroups import Limits

UNKNOWN_EXIT = 255


@dataclass(frozen=True)
class ContainerRun:
    """One container from its start on; `exit_code` is None while it runs."""

    started_at: str
    exit_code: int | None = None
    signal: int = 0
    finished_at: str = ""
    reason: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return self.exit_code is None


@dataclass(frozen=True)
class Launch:
    """How to start one container."""

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str


@dataclass(frozen=True)
class PodLaunch:
    containers: list[Launch]
    init_containers: list[Launch] = field(default_factory=list)


@dataclass(frozen=True)
class ExecResult:
    exit_code: int
    output: str


class RuntimeFailure(RuntimeError):
    """The sandbox or a container could not be made; the message is for a person. It is tried again."""


Listener = Callable[[], None]


class Listeners:
    """Who wants to hear of a change."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> Listener:
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()


class PodRuntime(Protocol):
    """One Pod."""

    def on_change(self, listener: Listener) -> Listener:
        """Have `listener` called whenever `containers` may answer differently; the answer ends that."""

    @property
    def address(self) -> str: ...

    @property
    def started(self) -> bool:
        """Whether its containers were started, at any time; they are never started twice."""

    async def prepare(self, pod: Limits, containers: dict[str, Limits]) -> None:
        """Make the sandbox: network and cgroups. May be repeated."""

    async def start(self, launch: PodLaunch) -> None: ...

    def containers(self) -> dict[str, ContainerRun]:
        """Those that have been started."""

    def signal(self, container: str, number: int) -> bool: ...

    async def execute(self, launch: Launch, timeout: float) -> ExecResult:
        """Run a command beside a container, with its environment; it is killed after that time."""

    def resize(self, pod: Limits, containers: dict[str, Limits]) -> None: ...

    def memory_usage(self, container: str | None = None) -> int | None: ...

    async def release(self) -> None:
        """Give back network and cgroups; whatever still runs in them is killed. May be repeated."""

    def close(self) -> None:
        """Stop watching; the Pod goes on."""


class Runtime(Protocol):
    """Makes the runtimes of Pods."""

    @property
    def runs_processes(self) -> bool:
        """Whether a container is a process of this machine."""

    @property
    def notes(self) -> list[str]:
        """What this machine does not allow, as sentences."""

    def pod(self, uid: str, folder: Path) -> PodRuntime: ...

    async def forget_all_but(self, uids: set[str]) -> None:
        """Give back what Pods that are no more have left (after a crash)."""

    def close(self) -> None: ...
