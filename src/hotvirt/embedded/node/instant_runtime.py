"""Containers that run at once and without a process: for tests and for measuring 1,000 VMs on one machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from dataclasses import asdict
from pathlib import Path

from hotvirt.api.meta import now_micro

from .cgroups import Limits
from .runtime import ContainerRun, ExecResult, Launch, Listeners, PodLaunch


class InstantRuntime:
    runs_processes = False
    notes: list[str] = []  # noqa: RUF012  (never filled: this runtime needs nothing of the machine)

    def pod(self, uid: str, folder: Path) -> InstantPod:
        return InstantPod(uid, folder)

    async def forget_all_but(self, uids: set[str]) -> None:
        return

    def close(self) -> None:
        return


class InstantPod(Listeners):
    def __init__(self, uid: str, folder: Path) -> None:
        super().__init__()
        number = int(hashlib.sha256(uid.encode()).hexdigest(), 16) % (2**22 - 2) + 1
        self.address = f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        self._file = folder / "instant.json"
        self._runs: dict[str, ContainerRun] = {}
        if self._file.exists():
            saved = json.loads(self._file.read_text())
            self._runs = {name: ContainerRun(**run) for name, run in saved.items()}

    @property
    def started(self) -> bool:
        return bool(self._runs)

    async def prepare(self, pod: Limits, containers: dict[str, Limits]) -> None:
        return

    async def start(self, launch: PodLaunch) -> None:
        for init in launch.init_containers:
            self._runs[init.name] = ContainerRun(now_micro(), 0, finished_at=now_micro(), reason="Completed")
        for container in launch.containers:
            self._runs[container.name] = ContainerRun(now_micro())
        self._save()

    def _save(self) -> None:
        self._file.write_text(json.dumps({name: asdict(run) for name, run in self._runs.items()}))
        asyncio.get_running_loop().call_soon(self._changed)

    def containers(self) -> dict[str, ContainerRun]:
        return dict(self._runs)

    def signal(self, container: str, number: int) -> bool:
        run = self._runs.get(container)
        if run is None or not run.running:
            return False
        code = 128 + number if number == signal.SIGKILL else 0
        self._runs[container] = ContainerRun(
            run.started_at, code, 0, now_micro(), "Error" if code else "Completed"
        )
        self._save()
        return True

    async def execute(self, launch: Launch, timeout: float) -> ExecResult:
        return ExecResult(0, "")

    def resize(self, pod: Limits, containers: dict[str, Limits]) -> None:
        return

    def memory_usage(self, container: str | None = None) -> int | None:
        return None

    async def release(self) -> None:
        return

    def close(self) -> None:
        return
