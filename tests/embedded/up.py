"""`hotvirt up` on a state folder, as a place where scenarios run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from hotvirt.api.meta import parse_time
from hotvirt.embedded.node.cgroups import Cgroups
from hotvirt.embedded.state import StateDir
from hotvirt.kube.config import load_kubeconfig
from tests.scenarios.place import Limits, Object, Place, Write, run_hotvirt

LARGE = ("--allocatable", "cpu=32,memory=64Gi")
ENDS_WITHIN = 120.0
STOPS_WITHIN = 300.0


class Up(Place):
    """A state folder with a `hotvirt up` on it."""

    def __init__(self, state: Path, kubectl_program: str) -> None:
        super().__init__(kubectl_program)
        self.state = state
        self._options: tuple[str, ...] = ()

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pid(self) -> int:
        running = StateDir(self.state).running()
        assert running is not None, "hotvirt up is not running"
        return running.pid

    def start(self, *arguments: str) -> None:
        self._options = arguments or self._options
        done = self.hotvirt("up", "--detach", "--port", "0", *self._options)
        if done.returncode:
            raise RuntimeError(f"hotvirt up failed: {done.stderr}\n{self.log()}")

    def stop(self, *arguments: str) -> None:
        done = self.hotvirt("down", *arguments, timeout=STOPS_WITHIN)
        if done.returncode:
            raise RuntimeError(f"hotvirt down failed: {done.stdout}{done.stderr}\n{self.log()}")

    def kill(self) -> None:
        """kill -9; returns when it has ended: until then it has its folder and its port."""
        process = os.pidfd_open(self.pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            assert select.select([process], [], [], ENDS_WITHIN)[0], "it does not die"
        finally:
            os.close(process)

    def log(self) -> str:
        log = self.state / "hotvirt.log"
        return log.read_text()[-5000:] if log.exists() else ""

    def hotvirt(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_hotvirt(*arguments, state=self.state, **options)

    def import_image(self, name: str, path: Path) -> None:
        done = self.hotvirt("image", "import", name, str(path))
        assert done.returncode == 0, done.stderr

    # What a place is asked

    def audit(self) -> list[Write]:
        """Both files of it: one is put aside when it is full."""
        log = StateDir(self.state).audit_log
        files = [path for path in (log.with_name(f"{log.name}.1"), log) if path.exists()]
        records = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        fields = ("user", "verb", "resource", "subresource", "namespace", "name", "code")
        return [
            Write(parse_time(each["time"]), *((each[field] or "") for field in fields)) for each in records
        ]

    def limits(self, pod: Object) -> Limits | None:
        found = Cgroups(self.state).read(pod["metadata"]["uid"], "compute")
        return Limits(found.memory_limit, found.cpu_limit) if found else None

    def folder(self, pod: Object) -> Path:
        return self.state / "pods" / str(pod["metadata"]["uid"])

    def service_address(self, service: Object, pod: Object) -> str:
        """Services are kept and route nowhere here (`docs/embedded-api.md`): the Pod's own address it is."""
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        return str(pod["status"]["podIP"])

    def kill_controllers(self) -> None:
        """Everything is one process here: the API and the node agent die too."""
        _, _, port = load_kubeconfig(self.kubeconfig).server.rpartition(":")
        self.kill()
        self.start(*self._options, "--port", port)  # the old clients find it again

    def kill_agent(self) -> None:
        self.kill_controllers()

    def is_in(self, pid: int, pod_uid: str) -> bool:
        """The hypervisor's working folder is in that of its Pod."""
        try:
            place = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            return False
        return place.is_relative_to(self.state / "pods" / pod_uid)
