"""The controller as a process before a real API server: what it makes, webhooks, the aggregated API.

No node is needed for any of it; the rights are those that the chart gives.
"""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubectl.kubectl import Kubectl
from tests.targets.target import wait_until

from .control_plane import ControlPlane, Process, available, control_plane, vm

OLDEST = "1.34"
ADDRESS = "hotvirt.io/console-address"
GROUP = "/apis/subresources.kubevirt.io/v1"
Object = dict[str, Any]


@pytest.fixture(scope="module", params=["newest", OLDEST])
def here(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The newest Kubernetes, and the oldest that Hotvirt works on."""
    if request.param == "newest":
        yield request.getfixturevalue("plane")
        return
    with (
        tempfile.TemporaryDirectory(prefix="hotvirt-test-") as folder,
        control_plane(Path(folder), request.param) as oldest,
    ):
        yield oldest


@pytest.fixture(scope="module")
def controller(here: ControlPlane) -> Iterator[Process]:
    """The replica that the API server asks, ready."""
    with here.controller("replica-1", here.port) as started:
        started.wait_until_ready()
        wait_until(lambda: available(here), "the API server to ask it")
        yield started


@pytest.fixture(scope="module")
def kubectl(here: ControlPlane) -> Kubectl:
    return here.kubectl


def test_a_vm_gets_its_instance_and_its_pod(controller: Process, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=vm("first"))
    wait_until(lambda: "first" in kubectl("get", "vmi", "-o", "name"), "the VMI of the VM")
    instance = kubectl.json("get", "vmi", "first")
    wait_until(
        lambda: "virt-launcher-first" in kubectl("get", "pods", "-o", "name"), "the launcher Pod of the VMI"
    )
    (pod,) = kubectl.json("get", "pods", "-l", "vm.kubevirt.io/name=first")["items"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == instance["metadata"]["uid"]
    kubectl("delete", "vm", "first", "--wait=false")


def test_the_settings_object_is_there_without_anybody_applying_it(
    controller: Process, kubectl: Kubectl
) -> None:
    wait_until(lambda: "kubevirt" in kubectl("get", "kubevirts", "-A", "-o", "name"), "the KubeVirt object")
    (found,) = kubectl.json("get", "kubevirts", "-A")["items"]
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == ("kubevirt", "kubevirt")


def test_what_a_machine_leaves_open_is_filled_in(controller: Process, kubectl: Kubectl) -> None:
    template = vm("alone")["spec"]["template"]
    machine = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", **template}
    machine["metadata"] = {"name": "alone"}
    created = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=machine)
    domain = json.loads(created)["spec"]["domain"]
    assert domain["cpu"] == {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 4}
    assert domain["memory"]["guest"] == "128Mi"


def test_the_ca_is_wherever_it_is_looked_for(controller: Process, kubectl: Kubectl) -> None:
    published = kubectl.json("get", "configmap", "hotvirt-ca", "-n", "kubevirt")["data"]["ca.crt"]
    secret = kubectl.json("get", "secret", "hotvirt-certificates", "-n", "kubevirt")["data"]
    assert base64.b64decode(secret["ca.crt"]).decode() == published
    assert set(secret) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        for webhook in kubectl.json("get", kind, "hotvirt")["webhooks"]:
            assert base64.b64decode(webhook["clientConfig"]["caBundle"]).decode() == published
    for version in ("v1", "v1alpha3"):
        service = kubectl.json("get", "apiservice", f"{version}.subresources.kubevirt.io")
        assert base64.b64decode(service["spec"]["caBundle"]).decode() == published


def test_a_ca_that_somebody_removed_is_put_back(controller: Process, kubectl: Kubectl) -> None:
    configuration = ("validatingwebhookconfiguration", "hotvirt")

    def trusted() -> list[str]:
        webhooks = kubectl.json("get", *configuration)["webhooks"]
        return [webhook["clientConfig"].get("caBundle", "") for webhook in webhooks]

    before = trusted()
    assert all(before)
    kubectl(
        *("patch", *configuration, "--type=json", "-p"),
        '[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]',
    )
    wait_until(lambda: trusted() == before, "the CA to be put back")


def test_what_cannot_work_is_refused_with_every_cause(controller: Process, here: ControlPlane) -> None:
    wrong = vm("wrong", domain={"cpu": {"sockets": 9, "maxSockets": 4}, "memory": {"guest": "1Ki"}})
    path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
    status, answer = here.target.request("POST", path, wrong)
    assert status == 422, answer
    fields = {cause["field"] for cause in answer["details"]["causes"]}
    assert {
        "spec.template.spec.domain.cpu.sockets",
        "spec.template.spec.domain.memory.guest",
    } <= fields


def test_kubectl_shows_what_has_no_effect(controller: Process, kubectl: Kubectl) -> None:
    strange = vm("strange", domain={"devices": {"watchdog": {"name": "dog", "i6300esb": {}}}})
    done = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=strange)
    assert done.returncode == 0, done.stderr
    assert "Warning: " in done.stderr
    assert "watchdog" in done.stderr


def may_start(here: ControlPlane, user: str) -> bool:
    """What the API server knows by now of who may start VMs in the namespace shop."""
    what = {"group": "subresources.kubevirt.io", "resource": "virtualmachines", "subresource": "start"}
    spec = {"user": user, "resourceAttributes": what | {"namespace": "shop", "verb": "update"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(here.target.request("POST", path, review)[1]["status"]["allowed"])


def test_the_aggregated_api_lets_in_whom_rbac_lets_in(
    controller: Process, here: ControlPlane, kubectl: Kubectl
) -> None:
    kubectl("create", "namespace", "shop")
    kubectl("create", "rolebinding", "-n", "shop", "owners", "--clusterrole=edit", "--user=alice")
    # Nobody joins the roles of the chart to `edit` without a controller-manager: so this is by hand.
    kubectl("create", "clusterrolebinding", "alice", "--clusterrole=kubevirt.io:edit", "--user=nobody")
    kubectl("create", "rolebinding", "-n", "shop", "vms", "--clusterrole=kubevirt.io:edit", "--user=alice")
    kubectl("create", "-n", "shop", "-f", "-", stdin=vm("web", runStrategy="Halted"))
    wait_until(lambda: may_start(here, "alice"), "the API server to know what alice may do")

    start = f"{GROUP}/namespaces/shop/virtualmachines/web/start"
    assert kubectl.run("replace", "--raw", start, "-f", "-", "--as=alice", stdin={}).returncode == 0
    assert kubectl.json("get", "vm", "-n", "shop", "web")["spec"]["runStrategy"] == "Always"

    refused = kubectl.refused("replace", "--raw", start, "-f", "-", "--as=bob", stdin={})
    assert 'User "bob" cannot update resource "virtualmachines/start"' in refused
    elsewhere = start.replace("/shop/", "/default/")
    refused = kubectl.refused("replace", "--raw", elsewhere, "-f", "-", "--as=alice", stdin={})
    assert 'in the namespace "default"' in refused
    kubectl("delete", "vm", "-n", "shop", "web", "--wait=false")


def test_discovery_of_the_aggregated_api(controller: Process, kubectl: Kubectl) -> None:
    names = {each["name"] for each in json.loads(kubectl("get", "--raw", GROUP))["resources"]}
    assert {"virtualmachines/start", "virtualmachineinstances/console"} <= names
    version = json.loads(kubectl("get", "--raw", f"{GROUP}/version"))
    assert version["gitVersion"].startswith("v")


def test_the_api_server_has_no_stale_view_of_it(controller: Process, here: ControlPlane) -> None:
    """With one stale group, Kubernetes deletes no namespace any more."""

    def freshness() -> dict[str, str]:
        asked = urllib.request.Request(f"{here.target.url}/apis")
        asked.add_header("Authorization", f"Bearer {here.target.token}")
        asked.add_header("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        with urllib.request.urlopen(asked, context=here.target.tls, timeout=60) as answer:
            groups = json.load(answer)["items"]
        return {
            version["version"]: version["freshness"]
            for group in groups
            if group["metadata"]["name"] == "subresources.kubevirt.io"
            for version in group["versions"]
        }

    current = {"v1": "Current", "v1alpha3": "Current"}
    wait_until(lambda: freshness() == current, "discovery to be current", within=180)


def test_headers_without_the_api_servers_certificate_count_for_nothing(
    controller: Process, here: ControlPlane
) -> None:
    """Whoever reaches the port, and says to be an admin."""
    ca = here.kubectl.json("get", "configmap", "hotvirt-ca", "-n", "kubevirt")["data"]["ca.crt"]
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = False  # it is certified for its Service, not for this address
    headers = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    for path in (GROUP, f"{GROUP}/namespaces/default/virtualmachines/x/start", "/openapi/v2", "/nothing"):
        request = urllib.request.Request(f"https://127.0.0.1:{here.port}{path}", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, context=context, timeout=60)
        assert refused.value.code == 401, path
        assert json.loads(refused.value.read())["reason"] == "Unauthorized"


def test_a_nodes_agent_says_in_its_lease_that_it_lives_and_where_its_consoles_are(
    controller: Process, here: ControlPlane
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    containers = [{"name": "node", "image": "hotvirt/controller"}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "kubevirt"},
        "spec": {"serviceAccountName": "hotvirt-node", "nodeName": "node-1", "containers": containers},
    }
    for obj in (node, pod):
        here.kubectl("create", "-f", "-", stdin=obj)
    pod = here.kubectl.json("get", "pod", "agent", "-n", "kubevirt")
    with here.agent(pod) as agent:
        agent.wait_until_ready()
        wait_until(lambda: not told(here)["annotations"][ADDRESS].endswith(":0"), "the consoles to be open")
        said = told(here)["annotations"]
        host, _, port = said[ADDRESS].partition(":")
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=60))
        assert hashlib.sha256(shown).hexdigest() == said["hotvirt.io/console-certificate"]
        assert told(here)["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0


def told(here: ControlPlane) -> Object:
    """What the Lease of the agent on node-1 says about itself."""
    metadata: Object = here.kubectl.json("get", "lease", "hotvirt-node-node-1", "-n", "kubevirt")["metadata"]
    return metadata
