"""One running `hotvirt up` for the tests of this folder, with its kubectl.

`up` is shared by all tests of a run: make your own namespace (`namespace`), leave the node as it was.
`own_up` is a fresh one for a test that stops or kills it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotvirt.embedded.state import StateDir
from tests.targets import real
from tests.targets.target import CHECKOUT

HOTVIRT = Path(sys.executable).parent / "hotvirt"
WITHIN = 120


@pytest.fixture(scope="session")
def kubectl_program() -> str:
    """The kubectl on PATH, else the newest, built from its Go module."""
    return shutil.which("kubectl") or str(real.programs("kubectl") / "kubectl")


@dataclass
class Up:
    """A state folder with a `hotvirt up` on it."""

    state: Path
    kubectl_program: str

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pid(self) -> int:
        running = StateDir(self.state).running()
        assert running is not None, "hotvirt up is not running"
        return running.pid

    def start(self, *arguments: str) -> None:
        done = self.hotvirt("up", "--detach", "--port", "0", *arguments)
        if done.returncode:
            raise RuntimeError(f"hotvirt up failed: {done.stderr}\n{self.log()}")

    def stop(self, *arguments: str) -> None:
        done = self.hotvirt("down", *arguments)
        if done.returncode:
            raise RuntimeError(f"hotvirt down failed: {done.stdout}{done.stderr}\n{self.log()}")

    def log(self) -> str:
        log = self.state / "hotvirt.log"
        return log.read_text()[-5000:] if log.exists() else ""

    def hotvirt(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_hotvirt(*arguments, state=self.state, **options)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = WITHIN
    ) -> str:
        """Its stdout; a refusal is an AssertionError with what kubectl said."""
        command = [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found


def run_hotvirt(
    *arguments: str, state: Path | None = None, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The real program, as a user has it: nothing of this environment leads it elsewhere."""
    clean = {
        key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "HOTVIRT_STATE_DIR")
    }
    if state is not None:
        clean["HOTVIRT_STATE_DIR"] = str(state)
    options.setdefault("timeout", WITHIN)
    return subprocess.run(
        [str(HOTVIRT), *arguments], capture_output=True, text=True, env=clean | (env or {}), **options
    )


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, kubectl_program: str) -> Iterator[Up]:
    it = Up(tmp_path_factory.mktemp("up") / "state", kubectl_program)
    it.start("--allocatable", "cpu=32,memory=64Gi")
    try:
        yield it
    finally:
        it.stop("--stop-vms")


@pytest.fixture
def own_up(tmp_path: Path, kubectl_program: str) -> Iterator[Up]:
    it = Up(tmp_path / "state", kubectl_program)
    it.start("--allocatable", "cpu=32,memory=64Gi")
    try:
        yield it
    finally:
        if StateDir(it.state).running() is None:
            it.start()
        it.stop("--stop-vms")


@pytest.fixture
def namespace(up: Up, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, gone with all that is in it afterwards."""
    name = f"test-{abs(hash(request.node.nodeid)) % 10**8}"
    up.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        up.kubectl("delete", "namespace", name, "--timeout=120s")


@pytest.fixture(scope="session")
def demo_disk() -> Path:
    """The demo guest's disk, made on the spot and cached."""
    build = CHECKOUT / "demo" / "guest" / "build"
    done = subprocess.run([sys.executable, str(build)], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


def demo_vm(name: str, namespace: str = "default", **domain: Any) -> dict[str, Any]:
    """A VM of the demo guest: one vCPU of up to four, 256 MiB, a serial console."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "spec": {
                    "terminationGracePeriodSeconds": 30,
                    "domain": {
                        "cpu": {"sockets": 1, "maxSockets": 4},
                        "memory": {"guest": "256Mi"},
                        "devices": {
                            "disks": [{"name": "system", "disk": {"bus": "virtio"}}],
                            "interfaces": [{"name": "default", "masquerade": {}}],
                        },
                    }
                    | domain,
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [{"name": "system", "containerDisk": {"image": "hotvirt/demo-guest:latest"}}],
                }
            },
        },
    }


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Poll, for what has no event to wait for: the inside of a guest, a process, a file."""

    def wait(what: Callable[[], Any], within: float = 60.0, because: str = "") -> Any:
        deadline = time.monotonic() + within
        while True:
            found = what()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{because or what} did not come true within {within:.0f} s; last: {found!r}"
                )
            time.sleep(0.1)

    return wait
