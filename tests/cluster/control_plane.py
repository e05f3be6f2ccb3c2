"""Hotvirt on a real API server without nodes: `deploy/install.yaml`, and the controller as a process here.

For what concerns the API server and the controller alone: it starts in seconds. Everything in the file is
applied as it is, but the workloads; the Service leads to a port of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubectl.kubectl import Kubectl
from tests.targets import real
from tests.targets.target import CHECKOUT, Target, free_ports, start_process, stop_process, wait_until

WORKLOADS = {"Deployment", "DaemonSet", "NetworkPolicy", "PodDisruptionBudget"}
Object = dict[str, Any]


@dataclass(frozen=True)
class ControlPlane:
    target: Target
    folder: Path
    kubectl: Kubectl
    port: int
    """Where the API server looks for Hotvirt."""

    def kubeconfig_of(self, account: str, pod: Object | None = None) -> Path:
        """The way in of one of Hotvirt's service accounts, with the rights that the chart gives it.

        As the kubelet gives it to a Pod, the token is bound to that Pod.
        """
        path = f"/api/v1/namespaces/kubevirt/serviceaccounts/{account}/token"
        spec: Object = {}
        if pod is not None:
            place = {key: pod["metadata"][key] for key in ("name", "uid")}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **place}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        status, answer = self.target.request("POST", path, request)
        assert status == 201, answer
        config = yaml.safe_load(self.target.kubeconfig.read_text())
        config["users"] = [{"name": "test", "user": {"token": answer["status"]["token"]}}]
        file = self.folder / f"{account}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(config))
        return file

    def controller(
        self, name: str, port: int | None = None, **environment: str
    ) -> AbstractContextManager[Process]:
        """A replica; only the one on the port of the Service is asked by the API server."""
        given = {
            "POD_NAME": name,
            "HOTVIRT_PORT": str(port or 0),
            "HOTVIRT_DRAIN_SECONDS": "0",
            **environment,
        }
        return self._running("controller", name, self.kubeconfig_of("hotvirt-controller"), given)

    def agent(self, pod: Object, **environment: str) -> AbstractContextManager[Process]:
        """A node's agent, as if it ran in that Pod."""
        given = {
            "NODE_NAME": pod["spec"]["nodeName"],
            "POD_IP": "127.0.0.1",
            "POD_NAME": pod["metadata"]["name"],
            "POD_UID": pod["metadata"]["uid"],
            "HOTVIRT_NODE_ROOT": str(self.folder),
            "HOTVIRT_HYPERVISOR": "instant",
            "HOTVIRT_CONSOLE_PORT": "0",
            **environment,
        }
        kubeconfig = self.kubeconfig_of("hotvirt-node", pod)
        return self._running("node", pod["metadata"]["name"], kubeconfig, given)

    @contextmanager
    def _running(
        self, program: str, name: str, kubeconfig: Path, environment: dict[str, str]
    ) -> Iterator[Process]:
        (health,) = free_ports(1)
        ours = {
            "KUBECONFIG": str(kubeconfig),
            "HOTVIRT_ADDRESS": "127.0.0.1",
            "HOTVIRT_HEALTH_PORT": str(health),
        }
        log = self.folder / f"{name}.log"
        code = f"import sys; from hotvirt.cluster.{program} import main; sys.exit(main())"
        process = start_process([sys.executable, "-c", code], log, os.environ | ours | environment)
        try:
            yield Process(process, health, log)
        finally:
            stop_process(process)


@dataclass(frozen=True)
class Process:
    """One of Hotvirt's processes."""

    process: subprocess.Popen[bytes]
    health_port: int
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def readiness(self) -> str:
        """What /readyz says; empty while nobody answers."""
        try:
            return self.get("/readyz")[1]
        except OSError:
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-3000:]}"
            return ""

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.readiness() == "ok\n", f"{self.log.name} to be ready")


def available(plane: ControlPlane) -> bool:
    """The API server reaches Hotvirt and knows it: as aggregated API, and at its webhooks."""
    for version in ("v1", "v1alpha3"):
        service = plane.kubectl.json("get", "apiservice", f"{version}.subresources.kubevirt.io")
        conditions = service.get("status", {}).get("conditions", [])
        if not any(each["type"] == "Available" and each["status"] == "True" for each in conditions):
            return False
    path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines?dryRun=All"
    return plane.target.request("POST", path, vm("anything"))[0] == 201


def vm(name: str, **spec: Any) -> Object:
    domain = {"memory": {"guest": "128Mi"}, "devices": {}}
    template = {"spec": {"domain": domain | spec.pop("domain", {})}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": template, **spec},
    }


@contextmanager
def control_plane(folder: Path, minor: str | None = None) -> Iterator[ControlPlane]:
    target = real.start(folder, aggregates=True, crds=False, minor=minor)
    try:
        kubectl = Kubectl(real.programs("kubectl") / "kubectl", target.kubeconfig, folder, "")
        (port,) = free_ports(1)
        plane = ControlPlane(target, folder, kubectl, port)
        install(plane)
        yield plane
    finally:
        target.stop()


def install(plane: ControlPlane) -> None:
    """What `kubectl apply -f deploy/install.yaml` makes, in its order."""
    documents = yaml.safe_load_all((CHECKOUT / "deploy" / "install.yaml").read_text())
    objects = [reaching(obj, plane.port) for obj in documents if obj and obj["kind"] not in WORKLOADS]
    plane.kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": objects})


def reaching(obj: Object, port: int) -> Object:
    """The same object, with the Service at a port of this machine instead of at Pods."""
    obj = json.loads(json.dumps(obj))
    if obj["kind"] == "Service" and obj["metadata"]["name"] == "hotvirt-api":
        obj["spec"] = {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"name": "https", "port": port}],
        }
    elif obj["kind"] == "APIService":
        obj["spec"]["service"]["port"] = port
    for webhook in obj.get("webhooks") or ():
        webhook["clientConfig"]["service"]["port"] = port
    return obj
