"""Where scenarios run: one running Hotvirt, reached as its users and its administrators reach it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig

HOTVIRT = Path(sys.executable).parent / "hotvirt"
WITHIN = 120.0
Object = dict[str, Any]


@dataclass(frozen=True)
class Write:
    """One line of an audit log: who wrote what, and what came of it."""

    time: float
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    body: Any = field(default=None, compare=False)
    """What was sent, where the log has it."""


@dataclass(frozen=True)
class Limits:
    """What the kernel holds a container to; None is no limit."""

    memory: int | None
    cpu: int | None
    """In thousandths of a CPU."""


class Place(ABC):
    """A kubeconfig and a kubectl; the rest is what only someone on the machine itself can see or do."""

    demo_image = "hotvirt/demo-guest:latest"

    def __init__(self, kubectl_program: str) -> None:
        self.kubectl_program = kubectl_program

    @property
    @abstractmethod
    def kubeconfig(self) -> Path: ...

    @property
    def node(self) -> str:
        """The node with real guests."""
        return str(self.get("nodes")["items"][0]["metadata"]["name"])

    # As a user has it

    def ask_kubectl(
        self, *arguments: str, input: str | None = None, timeout: float = WITHIN
    ) -> subprocess.CompletedProcess[str]:
        """All that kubectl says: the warnings are on its stderr."""
        command = [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = WITHIN
    ) -> str:
        """Its stdout; a refusal is an AssertionError with what kubectl said."""
        done = self.ask_kubectl(*arguments, input=input, timeout=timeout)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def apply(self, obj: Object) -> None:
        self.kubectl("apply", "-f", "-", input=json.dumps(obj))

    def say(self, *arguments: str) -> str:
        """A command of `hotvirt` that acts on a VM."""
        done = run_hotvirt(*arguments, "--kubeconfig", str(self.kubeconfig))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def client(self) -> Client:
        return Client(load_kubeconfig(self.kubeconfig))

    # What is different from place to place

    @abstractmethod
    def audit(self) -> list[Write]:
        """Every write to the API so far, in order."""

    @abstractmethod
    def limits(self, pod: Object) -> Limits | None:
        """Of the container `compute`, as the kernel has them. None: there are no cgroups here."""

    @abstractmethod
    def folder(self, pod: Object) -> Path:
        """The Pod's folder on its node."""

    @abstractmethod
    def service_address(self, service: Object, pod: Object) -> str:
        """Where a Service is reached from this machine."""

    @abstractmethod
    def kill_controllers(self) -> None:
        """kill -9 of those that act; returns when the API answers again."""

    @abstractmethod
    def kill_agent(self) -> None:
        """kill -9 of the node agent; returns when the API answers again."""

    def hypervisor(self, pod: Object) -> int:
        """The process of the machine in the Pod."""
        return next(
            pid
            for pid, command in processes()
            if b"qemu-system" in command and self.is_in(pid, pod["metadata"]["uid"])
        )

    @abstractmethod
    def is_in(self, pid: int, pod_uid: str) -> bool:
        """Whether the process belongs to the Pod."""


def processes() -> Iterator[tuple[int, bytes]]:
    """Every process of this machine with its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked


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


def demo_vm(name: str, namespace: str = "default", *, user_data: str = "", **domain: Any) -> Object:
    """A VM of the demo guest: one vCPU of up to four, 256 MiB, a serial console."""
    volumes: list[Object] = [
        {"name": "system", "containerDisk": {"image": Place.demo_image, "imagePullPolicy": "IfNotPresent"}}
    ]
    if user_data:
        volumes.append({"name": "seed", "cloudInitNoCloud": {"userData": user_data}})
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
                    "volumes": volumes,
                }
            },
        },
    }
