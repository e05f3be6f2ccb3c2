"""A machine started by the real launcher, as in a Pod, with a stand-in for the node agent's hand-over."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotvirt.hypervisor.files import MACHINE_VARIABLE, ROOT_VARIABLE
from hotvirt.plan.machine import Machine, to_json

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHER = [sys.executable, "-m", "hotvirt.hypervisor.launcher"]
PATIENCE = 240.0


def demo_disk() -> Path:
    built = subprocess.run([REPOSITORY / "demo/guest/build"], capture_output=True, text=True, check=True)
    return Path(built.stdout.splitlines()[-1])


def until(ready: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Poll: what is waited for here (files, other processes' output) has no event for a test to await."""
    deadline = time.monotonic() + patience
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {patience:g} s")
        time.sleep(0.02)


class Launched:
    """The launcher's two containers, run as processes."""

    def __init__(self, folder: Path, machine: Machine, images: dict[str, Path] | None = None) -> None:
        self.root = folder / "root"
        self.run = self.root / "var/run/hotvirt"
        self.scratch = self.root / "var/run/hotvirt-scratch"
        for made in (self.run, self.scratch):
            made.mkdir(parents=True)
        for volume, path in (images or {}).items():
            inside = self.root / "var/run/hotvirt-images" / volume / "disk"
            inside.mkdir(parents=True)
            shutil.copyfile(path, inside / path.name)
        self.env = os.environ | {ROOT_VARIABLE: str(self.root), MACHINE_VARIABLE: to_json(machine)}
        self.console_log = folder / "console.log"
        self.launcher_log = folder / "launcher.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        with self.console_log.open("wb") as log:
            self.logger = self._start("console-log", stdout=log)
        with self.launcher_log.open("wb") as log:
            self.compute = self._start("run", stderr=log)

    def _start(self, verb: str, **streams: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*LAUNCHER, verb], env=self.env, **streams)
        self._processes.append(process)
        return process

    def hand_over(self, network: dict[str, Any] | None = None) -> None:
        with until(self._launcher, "launcher.sock") as connection:
            message = {"accel": "tcg", "network": network or {"kind": "none"}}
            connection.sendall(json.dumps(message).encode() + b"\n")
        until(lambda: (self.run / "qmp.sock").exists() or self.compute.poll() is not None, "qmp.sock")
        assert self.compute.poll() is None, self.launcher_log.read_text()

    def _launcher(self) -> socket.socket | None:
        """The socket is there a moment before anybody listens on it."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.run / "launcher.sock"))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        return connection

    def console_text(self) -> str:
        return self.console_log.read_text(errors="replace")

    def until_console_says(self, text: str) -> None:
        until(lambda: text in self.console_text(), f"{text!r} on the console")

    def stop(self, timeout: float = PATIENCE) -> int:
        """As the Pod's preStop does; the exit code of the machine."""
        subprocess.run([*LAUNCHER, "stop"], env=self.env, check=True, timeout=timeout)
        return self.compute.wait(timeout=timeout)

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
