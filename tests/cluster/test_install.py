"""The chart on real API servers: installed, upgraded, taken away; and refused where a KubeVirt already is."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotvirt.api.names import CERTIFICATES_SECRET, WEBHOOKS
from hotvirt.kube.x509 import make_ca, name
from tests.kubectl.kubectl import Kubectl
from tests.targets import real
from tests.targets.target import CHECKOUT, wait_until

CHART = CHECKOUT / "deploy" / "chart" / "hotvirt"
OLDEST = "1.34"
HOOKS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
GONE_WITHIN = 400.0
API_SERVICE = "v1.subresources.kubevirt.io"
Object = dict[str, Any]
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Server:
    kubectl: Kubectl
    helm_program: Path
    kubeconfig: Path

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        command = [str(self.helm_program), "--namespace", "kubevirt", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def install(self) -> subprocess.CompletedProcess[str]:
        return self.helm("install", "hotvirt", str(CHART), "--create-namespace")

    def names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.kubectl.json("get", kind, "-A")["items"]]

    def delete_crds(self, *which: str) -> None:
        """A busy API server cannot look for objects of a kind whose storage it still sets up. It tries again
        later and later, for minutes; or as soon as the kind is touched.
        """
        self.kubectl("delete", "crd", *which, "--wait=false")
        looks = itertools.count()

        def gone() -> bool:
            left = self.names("crds")
            for each in left:
                self.kubectl.run("annotate", "crd", each, f"tests/look={next(looks)}", "--overwrite")
            return not left

        wait_until(gone, "the CRDs to go", GONE_WITHIN)


@pytest.fixture(scope="module", params=["newest", OLDEST])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server alone: what is installed does not run there. Each test leaves it as it was."""
    minor = None if request.param == "newest" else request.param
    folder = tmp_path_factory.mktemp("server")
    target = real.start(folder, crds=False, minor=minor)
    try:
        kubectl = Kubectl(real.programs("kubectl") / "kubectl", target.kubeconfig, folder, "")
        yield Server(kubectl, real.programs("helm") / "helm", target.kubeconfig)
    finally:
        target.stop()


newest_only = pytest.mark.parametrize("server", ["newest"], indirect=True, scope="module")


def test_it_is_installed_upgraded_and_taken_away(server: Server) -> None:
    installed = server.install()
    assert installed.returncode == 0, installed.stderr
    assert server.names("deployments") == ["hotvirt-controller"]
    ca = base64.b64encode(
        make_ca(name("test"), timedelta(days=1), datetime.now(UTC)).certificate_pem
    ).decode()
    for hook in HOOKS:
        for index in range(len(server.kubectl.json("get", hook, WEBHOOKS)["webhooks"])):
            add = [{"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": ca}]
            server.kubectl("patch", hook, WEBHOOKS, "--type=json", "-p", yaml.safe_dump(add))
    trust = yaml.safe_dump({"spec": {"caBundle": ca}})
    server.kubectl("patch", "apiservice", API_SERVICE, "--type=merge", "-p", trust)
    secret = ("secret", CERTIFICATES_SECRET, "-n", "kubevirt")
    server.kubectl("patch", *secret, "--type=merge", "-p", yaml.safe_dump({"data": {"ca.crt": ca}}))

    for words in (("upgrade", "hotvirt", str(CHART), "--set", "replicas=3"), ("rollback", "hotvirt", "1")):
        done = server.helm(*words)
        assert done.returncode == 0, done.stderr
        for hook in HOOKS:
            for webhook in server.kubectl.json("get", hook, WEBHOOKS)["webhooks"]:
                assert webhook["clientConfig"]["caBundle"] == ca, f"{words[0]} took the CA away"
        assert server.kubectl.json("get", "apiservice", API_SERVICE)["spec"]["caBundle"] == ca
        assert server.kubectl.json("get", *secret)["data"] == {"ca.crt": ca}

    gone = server.helm("uninstall", "hotvirt")
    assert gone.returncode == 0, gone.stderr
    for kind in ("clusterroles", "validatingadmissionpolicies", *HOOKS, "apiservices"):
        assert not [it for it in server.names(kind) if "hotvirt" in it or "subresources" in it]
    assert "virtualmachines.kubevirt.io" in server.names("crds")
    server.delete_crds("-l", "app.kubernetes.io/part-of=hotvirt")


@newest_only
def test_it_is_refused_over_the_kinds_of_another_kubevirt(server: Server) -> None:
    crd = yaml.safe_load((CHECKOUT / "deploy" / "crds" / "virtualmachines.kubevirt.io.yaml").read_text())
    crd["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "virt-operator"}
    server.kubectl("create", "-f", "-", stdin=crd)
    refused = server.install()
    assert refused.returncode != 0
    assert "A KubeVirt that is not Hotvirt's is already on this cluster" in refused.stderr
    assert "remove that KubeVirt first, or use another cluster" in refused.stderr
    assert server.names("crds") == ["virtualmachines.kubevirt.io"]
    untouched = server.kubectl.json("get", "crd", "virtualmachines.kubevirt.io")
    assert untouched["metadata"]["labels"] == crd["metadata"]["labels"]
    server.delete_crds("virtualmachines.kubevirt.io")
    assert not [it for it in server.names("clusterroles") if "hotvirt" in it]


@newest_only
def test_it_is_refused_beside_the_operator_of_another_kubevirt(server: Server) -> None:
    labels = {"kubevirt.io": "virt-operator"}
    operator = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "virt-operator", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "o", "image": "o"}]},
            },
        },
    }
    server.kubectl("create", "-f", "-", stdin=operator)
    refused = server.install()
    assert refused.returncode != 0
    assert "the Deployment virt-operator, is in the namespace default" in refused.stderr
    server.kubectl("delete", "deployment", "virt-operator", "-n", "default")
    assert not [it for it in server.names("clusterroles") if "hotvirt" in it]


def test_one_file_is_applied_twice_without_a_complaint(server: Server) -> None:
    for _ in range(2):
        server.kubectl("apply", "-f", str(CHECKOUT / "deploy" / "install.yaml"))
    assert "hotvirt-controller" in server.names("deployments")
    server.kubectl("delete", "-f", str(CHECKOUT / "deploy" / "install.yaml"), "--wait=false")
