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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubectl.kubectl import Kubectl
from tests.targets import real
from tests.targets.target import CHECKOUT, Target, free_ports, start_process, stop_process, wait_until

WORKLOADS = {"Deployment", "DaemonSet", "NetworkPolicy", "PodDisruptionBudget"}
CONTROLLER = "import sys; from hotvirt.cluster.controller import main; sys.exit(main())"
Object = dict[str, Any]


@dataclass(frozen=True)
class ControlPlane:
    target: Target
    folder: Path
    kubectl: Kubectl
    port: int
    """Where the API server looks for Hotvirt."""

    def kubeconfig_of(self, account: str) -> Path:
        """The way in of one of Hotvirt's service accounts, with the rights that the chart gives it."""
        path = f"/api/v1/namespaces/kubevirt/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        status, answer = self.target.request("POST", path, request)
        assert status == 201, answer
        config = yaml.safe_load(self.target.kubeconfig.read_text())
        config["users"] = [{"name": "test", "user": {"token": answer["status"]["token"]}}]
        file = self.folder / f"{account}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(config))
        return file

    @contextmanager
    def controller(self, name: str, port: int | None = None, **environment: str) -> Iterator[Controller]:
        """A replica; only the one on the port of the Service is asked by the API server."""
        health, other = free_ports(2)
        kubeconfig = self.kubeconfig_of("hotvirt-controller")
        log = self.folder / f"{name}.log"
        given = {
            "POD_NAME": name,
            "KUBECONFIG": str(kubeconfig),
            "HOTVIRT_ADDRESS": "127.0.0.1",
            "HOTVIRT_PORT": str(port or other),
            "HOTVIRT_HEALTH_PORT": str(health),
            "HOTVIRT_DRAIN_SECONDS": "0",
            "HOTVIRT_KUBEVIRT": "own",
            **environment,
        }
        process = start_process([sys.executable, "-c", CONTROLLER], log, os.environ | given)
        try:
            yield Controller(process, health, log)
        finally:
            stop_process(process)


@dataclass(frozen=True)
class Controller:
    process: subprocess.Popen[bytes]
    health_port: int
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=10) as answer:
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
    service = plane.kubectl.json("get", "apiservice", "v1.subresources.kubevirt.io")
    conditions = service.get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


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
