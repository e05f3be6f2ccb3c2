"""The test cluster with Hotvirt on it, as a place where scenarios run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from hotvirt.api.meta import parse_time
from tests.scenarios.place import Limits, Object, Place, Write, processes

from .bed import Bed
from .bed_layout import NODE

HOTVIRTS = "kubevirt"
LEASE = "hotvirt-controller"
WRITES = ("create", "update", "patch", "delete", "deletecollection")
NO_LIMIT = 1 << 60
CGROUPS = Path("/sys/fs/cgroup")


class OnCluster(Place):
    def __init__(self, bed: Bed) -> None:
        super().__init__(str(bed.layout.programs / "kubectl"))
        self.bed = bed

    @property
    def kubeconfig(self) -> Path:
        return self.bed.kubeconfig

    @property
    def node(self) -> str:
        return NODE

    def audit(self) -> list[Write]:
        lines = self.bed.layout.audit_log.read_text().split("\n")[:-1]  # the last may be half a line
        found = [_write(json.loads(line)) for line in lines if '"stage":"ResponseComplete"' in line]
        return [each for each in found if each is not None]

    def limits(self, pod: Object) -> Limits | None:
        """From the kernel; the kubelet may have put the Pod under its quality of service."""
        (compute,) = [each for each in pod["status"]["containerStatuses"] if each["name"] == "compute"]
        container = compute["containerID"].rpartition("/")[2]
        where = f"{self.bed.layout.cgroup}/kubepods/**/pod{pod['metadata']['uid']}/{container}"
        unified = next(CGROUPS.glob(where), None)
        if unified is not None:
            quota, _, period = (unified / "cpu.max").read_text().partition(" ")
            memory = (unified / "memory.max").read_text().strip()
            return Limits(
                None if memory == "max" else int(memory),
                None if quota == "max" else int(quota) * 1000 // int(period),
            )
        memory_folder = next((CGROUPS / "memory").glob(where))
        cpu = next((CGROUPS / "cpu").glob(where))
        bytes_, quota_us, period_us = (
            int((folder / file).read_text())
            for folder, file in (
                (memory_folder, "memory.limit_in_bytes"),
                (cpu, "cpu.cfs_quota_us"),
                (cpu, "cpu.cfs_period_us"),
            )
        )
        return Limits(
            bytes_ if bytes_ < NO_LIMIT else None, quota_us * 1000 // period_us if quota_us > 0 else None
        )

    def folder(self, pod: Object) -> Path:
        return self.bed.layout.kubelet_root / "pods" / str(pod["metadata"]["uid"])

    def service_address(self, service: Object, pod: Object) -> str:
        return str(service["spec"]["clusterIP"])

    def leader(self) -> str:
        """The name of the Pod whose controllers act."""
        return str(self.get("lease", LEASE, "-n", HOTVIRTS)["spec"].get("holderIdentity") or "")

    def kill_controllers(self) -> None:
        self._kill(self.get("pod", self.leader(), "-n", HOTVIRTS), b"hotvirt-controller")

    def kill_agent(self) -> None:
        (agent,) = self.get("pods", "-n", HOTVIRTS, "-l", "app.kubernetes.io/name=hotvirt-node")["items"]
        self._kill(agent, b"hotvirt-node")

    def replicas(self) -> dict[str, list[int]]:
        """The processes of each replica of the controller, by its Pod: who has them kills without delay."""
        pods = self.get("pods", "-n", HOTVIRTS, "-l", "app.kubernetes.io/name=hotvirt-controller")["items"]
        return {pod["metadata"]["name"]: self._processes(pod, b"hotvirt-controller") for pod in pods}

    def _kill(self, pod: Object, program: bytes) -> None:
        for pid in self._processes(pod, program):
            os.kill(pid, signal.SIGKILL)

    def _processes(self, pod: Object, program: bytes) -> list[int]:
        uid = pod["metadata"]["uid"]
        found = [pid for pid, command in processes() if program in command and self.is_in(pid, uid)]
        assert found, f"no {program!r} runs in {pod['metadata']['name']}"
        return found

    def is_in(self, pid: int, pod_uid: str) -> bool:
        try:
            return f"pod{pod_uid}" in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return False


def _write(record: Object) -> Write | None:
    about = record.get("objectRef")
    if record["verb"] not in WRITES or about is None:
        return None
    group = about.get("apiGroup", "")
    return Write(
        time=parse_time(record["stageTimestamp"]),
        user=record["user"]["username"],
        verb=record["verb"],
        resource=f"{about['resource']}.{group}" if group else about["resource"],
        subresource=about.get("subresource", ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=record.get("responseStatus", {}).get("code", 0),
        body=record.get("requestObject"),
    )
