"""Who may do what on a cluster: an owner of VMs in one namespace, a node agent on its node, the controller.

Everybody is real here: users by `kubectl --as` and by tokens of their own, the agent by a token that is bound
to its Pod, as the kubelet gives it one.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from hotvirt import __version__
from hotvirt.api import names
from hotvirt.api.meta import now_micro
from hotvirt.api.resources import (
    CONFIGMAPS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    SERVICEACCOUNTS,
    VMIS,
    VMS,
    Resource,
)
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import Forbidden
from tests.kube import Kube
from tests.scenarios.place import demo_vm
from tests.scenarios.shell import console_log, in_guest, wait_for, wait_for_another, wait_for_status
from tests.targets.target import wait_until

from .bed import Bed

# The first of them also waits for cluster, images and chart; another boots a guest three times.
pytestmark = pytest.mark.timeout(900)
Object = dict[str, Any]
SUBRESOURCES = "/apis/subresources.kubevirt.io/v1/namespaces"
OTHER_NODE = "node-elsewhere"


@dataclass(frozen=True)
class Person:
    """A ServiceAccount, as a user: with `kubectl --as` and with a kubeconfig of their own."""

    bed: Bed
    namespace: str
    name: str
    kubeconfig: Path

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def ask_kubectl(
        self, *words: str, input: str | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As a `Place` does: whoever waits for a machine needs no more than this."""
        return self.bed.run("kubectl", "--as", self.user, *words, input=input, timeout=timeout)

    def kubectl(self, *words: str, input: str | None = None, timeout: float | None = None) -> str:
        done = self.ask_kubectl(*words, input=input, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def refused(self, *words: str, input: str | None = None) -> str:
        """What kubectl says when this person is not allowed to."""
        done = self.ask_kubectl(*words, input=input)
        assert done.returncode != 0, f"kubectl {' '.join(words)} was allowed: {done.stdout}"
        return done.stderr

    def ask(self, what: str, verb: str) -> None:
        """A verb of the aggregated API, as `virtctl` sends it."""
        path = f"{SUBRESOURCES}/{self.namespace}/{what}/{verb}"
        self.kubectl("replace", "--raw", path, "-f", "-", input="{}")

    def get(self, *words: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found


@pytest.fixture
def namespaces(hotvirt_on_cluster: Bed) -> Iterator[tuple[str, str]]:
    """Two of them; what is in them goes with them."""
    mark = secrets.token_hex(3)
    here, elsewhere = f"rights-{mark}", f"elsewhere-{mark}"
    for name in (here, elsewhere):
        answer = hotvirt_on_cluster.run("kubectl", "create", "namespace", name)
        assert answer.returncode == 0, answer.stderr
        # Before, every Pod is refused there for the lack of an account.
        account = ("wait", "serviceaccount/default", "-n", name, "--for=create", "--timeout=120s")
        answer = hotvirt_on_cluster.run("kubectl", *account)
        assert answer.returncode == 0, answer.stderr
    yield here, elsewhere
    hotvirt_on_cluster.run("kubectl", "delete", "namespace", here, elsewhere, "--wait=false")


def person(bed: Bed, namespace: str, role: str, folder: Path) -> Person:
    """A ServiceAccount of that name with the ClusterRole of that name, in its namespace only."""
    for words in (
        ("create", "serviceaccount", role),
        ("create", "rolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:{role}"),
    ):
        answer = bed.run("kubectl", "-n", namespace, *words)
        assert answer.returncode == 0, answer.stderr
    config = yaml.safe_load(bed.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token_of(bed, namespace, role)}
    file = folder / f"{role}.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    made = Person(bed, namespace, role, file)
    may = ("kubectl", "auth", "can-i", "list", "virtualmachines.kubevirt.io", "-n", namespace)
    wait_until(
        lambda: bed.run(*may, "--as", made.user).returncode == 0, "the API server to know what they may do"
    )
    return made


def token_of(bed: Bed, namespace: str, account: str, *bound: str) -> str:
    answer = bed.run("kubectl", "-n", namespace, "create", "token", account, *bound)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@pytest.fixture
def owner(hotvirt_on_cluster: Bed, namespaces: tuple[str, str], tmp_path: Path) -> Person:
    return person(hotvirt_on_cluster, namespaces[0], "edit", tmp_path)


def machine(name: str, namespace: str, strategy: str = "Always") -> str:
    vm = demo_vm(name, namespace)
    vm["spec"]["runStrategy"] = strategy
    # How a guest shuts down is not the question here.
    vm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    for volume in vm["spec"]["template"]["spec"]["volumes"]:
        volume["containerDisk"]["image"] = f"hotvirt/demo-guest:{__version__}"
    return json.dumps(vm)


# A user with edit in one namespace


def test_an_owner_does_all_that_a_machine_needs(owner: Person) -> None:
    namespace = owner.namespace
    owner.kubectl("create", "-f", "-", input=machine("mine", namespace))
    wait_for(owner, namespace, "vm/mine", "condition=Ready")
    wait_for(owner, namespace, "vmi/mine", "condition=AgentConnected")
    first = owner.get("vmi", "mine", "-n", namespace)["metadata"]["uid"]

    two = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    owner.kubectl("patch", "vm", "mine", "-n", namespace, "--type=merge", "-p", json.dumps(two))
    wait_for(owner, namespace, "vmi/mine", "jsonpath={.status.currentCPUTopology.sockets}=2")
    assert in_guest(owner, namespace, "mine", "nproc") == "2"
    # What the guest prints is on its way to the log for a moment.
    wait_until(lambda: "login:" in console_log(owner, namespace, "mine"), "the log to have it")

    owner.ask("virtualmachineinstances/mine", "pause")
    wait_for_status(owner, namespace, "mine", "Paused")
    owner.ask("virtualmachineinstances/mine", "unpause")
    wait_for_status(owner, namespace, "mine", "Running")

    owner.ask("virtualmachines/mine", "restart")
    wait_for_another(owner, namespace, "mine", first)
    wait_for(owner, namespace, "vmi/mine", "condition=Ready")
    wait_for(owner, namespace, "vm/mine", "condition=Ready")

    owner.ask("virtualmachines/mine", "stop")
    wait_for_status(owner, namespace, "mine", "Stopped")
    owner.ask("virtualmachines/mine", "start")
    wait_for_status(owner, namespace, "mine", "Running")
    owner.kubectl("delete", "vm", "mine", "-n", namespace, "--timeout=120s")
    assert owner.get("vm,vmi", "-n", namespace)["items"] == []


def test_an_owner_does_nothing_elsewhere(owner: Person, namespaces: tuple[str, str]) -> None:
    _, elsewhere = namespaces
    made = owner.bed.run("kubectl", "create", "-f", "-", input=machine("theirs", elsewhere, "Manual"))
    assert made.returncode == 0, made.stderr
    inside = ("-n", elsewhere)
    verbs = f"{SUBRESOURCES}/{elsewhere}"
    for words, input in (
        (("get", "vm", *inside), None),
        (("get", "vm", "theirs", *inside), None),
        (("get", "vmi", *inside), None),
        (("get", "pods", *inside), None),
        (("get", "secrets", *inside), None),
        (("get", "vm", "--all-namespaces"), None),
        (("create", "-f", "-"), machine("planted", elsewhere)),
        (("patch", "vm", "theirs", *inside, "--type=merge", "-p", "{}"), None),
        (("delete", "vm", "theirs", *inside), None),
        (("replace", "--raw", f"{verbs}/virtualmachines/theirs/start", "-f", "-"), "{}"),
        (("replace", "--raw", f"{verbs}/virtualmachines/theirs/stop", "-f", "-"), "{}"),
        (("replace", "--raw", f"{verbs}/virtualmachineinstances/theirs/pause", "-f", "-"), "{}"),
        (("get", "--raw", f"{verbs}/virtualmachineinstances/theirs/console"), None),
        (("get", "kubevirts", "-n", "kubevirt"), None),
        (("patch", "kubevirt", "kubevirt", "-n", "kubevirt", "--type=merge", "-p", "{}"), None),
        (("get", "secret", "hotvirt-certificates", "-n", "kubevirt"), None),
        (("get", "leases", "-n", "kubevirt"), None),
        (("get", "nodes"), None),
    ):
        assert "orbidden" in owner.refused(*words, input=input), words
    theirs = json.loads(owner.bed.run("kubectl", "get", "vm", "theirs", *inside, "-o", "json").stdout)
    assert "stateChangeRequests" not in theirs.get("status", {})


def test_an_owner_does_not_write_what_is_hotvirts(owner: Person) -> None:
    """Status has a writer of its own, and a running machine's spec is made from its VM's."""
    owner.kubectl("create", "-f", "-", input=machine("mine", owner.namespace, "Manual"))
    patch = ("patch", "vm", "mine", "-n", owner.namespace, "--type=merge")
    status = json.dumps({"status": {"ready": True}})
    assert "orbidden" in owner.refused(*patch, "--subresource=status", "-p", status)
    spec = json.loads(machine("alone", owner.namespace))["spec"]["template"]["spec"]
    alone = {
        "metadata": {"name": "alone", "namespace": owner.namespace},
        "spec": spec | {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}},
    }
    owner.kubectl("create", "-f", "-", input=json.dumps(made(VMIS, alone)))
    two = json.dumps({"spec": {"domain": {"cpu": {"sockets": 2}}}})
    patch = ("patch", "vmi", "alone", "-n", owner.namespace, "--type=merge")
    assert "is Hotvirt's own" in owner.refused(*patch, "-p", two)
    assert "orbidden" in owner.refused(*patch, "--subresource=status", "-p", status)


def test_who_may_view_sees_machines_and_changes_nothing(
    hotvirt_on_cluster: Bed, owner: Person, tmp_path: Path
) -> None:
    namespace = owner.namespace
    viewer = person(hotvirt_on_cluster, namespace, "view", tmp_path)
    owner.kubectl("create", "-f", "-", input=machine("mine", namespace, "Manual"))
    assert [each["metadata"]["name"] for each in viewer.get("vm", "-n", namespace)["items"]] == ["mine"]
    here = f"{SUBRESOURCES}/{namespace}"
    for words, input in (
        (("patch", "vm", "mine", "-n", namespace, "--type=merge", "-p", "{}"), None),
        (("delete", "vm", "mine", "-n", namespace), None),
        (("replace", "--raw", f"{here}/virtualmachines/mine/start", "-f", "-"), "{}"),
        (("get", "--raw", f"{here}/virtualmachineinstances/mine/console"), None),
    ):
        assert "orbidden" in viewer.refused(*words, input=input), words


# A node agent


@pytest_asyncio.fixture
async def admin(hotvirt_on_cluster: Bed) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig(hotvirt_on_cluster.kubeconfig)) as client:
        yield client


def with_token(bed: Bed, token: str) -> Client:
    config = load_kubeconfig(bed.kubeconfig)
    return Client(replace(config, token=token, cert_data=None, key_data=None))


@pytest_asyncio.fixture
async def agent(hotvirt_on_cluster: Bed, admin: Client) -> AsyncIterator[Client]:
    """With the credentials of the agent that runs on the node."""
    pods = await admin.list(PODS, names.NAMESPACE, label_selector="app.kubernetes.io/name=hotvirt-node")
    own = pods.items[0]["metadata"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={own['name']}")
    token = token_of(
        hotvirt_on_cluster, names.NAMESPACE, "hotvirt-node", *bound, f"--bound-object-uid={own['uid']}"
    )
    async with with_token(hotvirt_on_cluster, token) as client:
        yield client


@pytest_asyncio.fixture
async def node(admin: Client) -> str:
    return str((await admin.list(NODES)).items[0]["metadata"]["name"])


async def machine_on(admin: Client, namespace: str, name: str, node: str) -> None:
    """A VMI that is said to run there. Its Pod fits nowhere, so nobody else writes about it for long."""
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": "nowhere"},
        "domain": {"memory": {"guest": "64Mi"}, "devices": {}},
    }
    kube = Kube(admin, namespace)
    labels = {names.LABEL_NODE_NAME: node}
    await kube.create(VMIS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    await kube.until(VMIS, name, lambda vmi: (vmi.get("status") or {}).get("phase") == "Scheduling")
    await kube.patch(VMIS, name, {"status": {"nodeName": node}}, status=True)


async def test_a_node_agent_writes_about_its_own_machines_only(
    agent: Client, admin: Client, namespaces: tuple[str, str], node: str
) -> None:
    namespace = namespaces[0]
    await machine_on(admin, namespace, "own", node)
    await machine_on(admin, namespace, "other", OTHER_NODE)

    async def write(name: str, status: Object) -> Object:
        return await agent.patch(VMIS, name, {"status": status}, namespace, subresource="status")

    written = await write("own", {"machine": {"type": "q35"}})
    assert written["status"]["machine"] == {"type": "q35"}
    with pytest.raises(Forbidden, match=f"agent of node {node} writes about the machines of this node only"):
        await write("other", {"machine": {"type": "q35"}})
    for claim in ({"nodeName": OTHER_NODE}, {"activePods": {"some-uid": OTHER_NODE}}):
        with pytest.raises(Forbidden, match="not for a node agent to say"):
            await write("own", claim)
    for resource, name in ((VMIS, "own"), (VMIS, "other")):
        with pytest.raises(Forbidden):
            await agent.patch(resource, name, {"metadata": {"labels": {"mine": "now"}}}, namespace)
        with pytest.raises(Forbidden):
            await agent.delete(resource, name, namespace)
    untouched = await admin.get(VMIS, "other", namespace)
    assert "machine" not in untouched["status"]


async def test_a_node_agent_has_its_own_lease_only(agent: Client, admin: Client, node: str) -> None:
    spec = {"holderIdentity": node, "renewTime": now_micro()}
    await agent.patch(LEASES, f"hotvirt-node-{node}", {"spec": spec}, names.NAMESPACE)
    foreign = {"metadata": {"name": f"hotvirt-node-{OTHER_NODE}"}, "spec": spec}
    with pytest.raises(Forbidden, match="its own Lease only"):
        await agent.create(LEASES, made(LEASES, foreign), names.NAMESPACE)
    with pytest.raises(Forbidden, match="its own Lease only"):
        await agent.patch(LEASES, "hotvirt-controller", {"spec": spec}, names.NAMESPACE)


async def test_a_node_agent_tells_events_in_its_own_name_only(
    agent: Client, namespaces: tuple[str, str], node: str
) -> None:
    namespace = namespaces[0]
    event = {
        "metadata": {"name": "told"},
        "involvedObject": {"kind": VMIS.kind, "name": "any", "namespace": namespace},
        "reason": "Test",
        "type": "Normal",
        "source": {"component": "hotvirt-node", "host": node},
    }
    await agent.create(EVENTS, made(EVENTS, event), namespace)
    await agent.patch(EVENTS, "told", {"count": 2}, namespace)
    posing = event | {"metadata": {"name": "posing"}, "source": {"host": OTHER_NODE}}
    with pytest.raises(Forbidden, match="in the name of this node only"):
        await agent.create(EVENTS, made(EVENTS, posing), namespace)


async def test_a_node_agent_reaches_nothing_else(
    agent: Client, namespaces: tuple[str, str], node: str
) -> None:
    namespace = namespaces[0]
    taint = {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}}
    pod = {"metadata": {"name": "planted"}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    for attempt in (
        agent.patch(NODES, node, taint),
        agent.patch(NODES, node, {"status": {}}, subresource="status"),
        agent.create(PODS, made(PODS, pod), namespace),
        agent.list(SECRETS, names.NAMESPACE),
        agent.get(SECRETS, "hotvirt-certificates", names.NAMESPACE),
        agent.list(CONFIGMAPS, namespace),
        agent.list(VMS, namespace),
    ):
        with pytest.raises(Forbidden):
            await attempt


async def test_a_token_that_names_no_node_writes_nothing(
    hotvirt_on_cluster: Bed, admin: Client, namespaces: tuple[str, str], node: str
) -> None:
    await machine_on(admin, namespaces[0], "own", node)
    token = token_of(hotvirt_on_cluster, names.NAMESPACE, "hotvirt-node")
    async with with_token(hotvirt_on_cluster, token) as loose:
        with pytest.raises(Forbidden, match="names no node"):
            await loose.patch(VMIS, "own", {"status": {}}, namespaces[0], subresource="status")
        with pytest.raises(Forbidden):
            await loose.patch(LEASES, f"hotvirt-node-{node}", {"spec": {}}, names.NAMESPACE)


def test_the_policies_make_sense_to_the_cluster(hotvirt_on_cluster: Bed) -> None:
    """It looks whether the fields that they name exist, and says so in their status."""

    def checked() -> list[Object]:
        answer = hotvirt_on_cluster.run("kubectl", "get", "validatingadmissionpolicies", "-o", "json")
        policies: list[Object] = json.loads(answer.stdout)["items"]
        return [
            each["status"]["typeChecking"] for each in policies if "typeChecking" in each.get("status", {})
        ]

    wait_until(lambda: len(checked()) == 4, "the policies to be looked at")
    assert checked() == [{}] * 4


# The controller


async def test_the_controller_makes_pods_of_machines_only(
    hotvirt_on_cluster: Bed, namespaces: tuple[str, str]
) -> None:
    token = token_of(hotvirt_on_cluster, names.NAMESPACE, "hotvirt-controller")
    label, value = names.LABEL_LAUNCHER
    owner = {"apiVersion": "kubevirt.io/v1", "kind": VMIS.kind, "name": "x", "uid": "y", "controller": True}
    launcher = {"name": "planted", "labels": {label: value}, "ownerReferences": [owner]}
    container = {"name": "c", "image": "c", "securityContext": {"privileged": True}}
    plain = {"metadata": {"name": "planted"}, "spec": {"containers": [container]}}
    privileged = {"metadata": launcher, "spec": {"containers": [container]}}
    async with with_token(hotvirt_on_cluster, token) as controller:
        with pytest.raises(Forbidden, match="Pods of VirtualMachineInstances only"):
            await controller.create(PODS, made(PODS, plain), namespaces[0])
        with pytest.raises(Forbidden, match="nothing of its node"):
            await controller.create(PODS, made(PODS, privileged), namespaces[0])
        with pytest.raises(Forbidden):
            await controller.list(SECRETS, namespaces[0])


async def test_no_container_of_a_machine_gets_more_than_its_pod(
    hotvirt_on_cluster: Bed, namespaces: tuple[str, str]
) -> None:
    """What a container says of itself counts before what its Pod says."""
    namespace = namespaces[0]
    token = token_of(hotvirt_on_cluster, names.NAMESPACE, "hotvirt-controller")
    async with with_token(hotvirt_on_cluster, token) as controller:
        await controller.create(PODS, launcher_with(), namespace, dry_run=True)
        for more in (
            {"runAsNonRoot": False, "runAsUser": 0},
            {"allowPrivilegeEscalation": True},
            {"capabilities": {"add": ["NET_ADMIN"]}},
        ):
            with pytest.raises(Forbidden, match="no root, no capability"):
                await controller.create(PODS, launcher_with(**more), namespace, dry_run=True)


async def test_the_controller_leaves_pods_of_others_alone(
    hotvirt_on_cluster: Bed, admin: Client, namespaces: tuple[str, str]
) -> None:
    """Their status (labels can be written with it), their size, their life. Those of machines are its own."""
    kube = Kube(admin, namespaces[0])
    await kube.until(SERVICEACCOUNTS, "default", lambda _: True)
    container = {"name": "c", "image": "c", "resources": {"requests": {"cpu": "1m"}}}
    spec = {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}, "containers": [container]}
    label, value = names.LABEL_LAUNCHER
    for name, labels in (("theirs", {"app": "shop"}), ("a-machines", {label: value})):
        await kube.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    token = token_of(hotvirt_on_cluster, names.NAMESPACE, "hotvirt-controller")
    async with with_token(hotvirt_on_cluster, token) as controller:
        for refused in attempts(controller, "theirs", kube.namespace):
            with pytest.raises(Forbidden, match="changes and deletes Pods of VirtualMachineInstances only"):
                await refused
        for allowed in attempts(controller, "a-machines", kube.namespace):
            await allowed
    assert (await kube.get(PODS, "theirs"))["metadata"]["labels"] == {"app": "shop"}


def attempts(client: Client, name: str, namespace: str) -> Iterator[Awaitable[Any]]:
    """On a Pod: a label that comes with its status, its size, its end."""
    poses = {"metadata": {"labels": {"app": "bank"}}}
    yield client.patch(PODS, name, poses, namespace, subresource="status")
    yield client.patch(PODS, name, {}, namespace, subresource="resize")
    yield client.delete(PODS, name, namespace)


def launcher_with(**security: Any) -> Object:
    """A Pod like that of a machine; its container says this of itself."""
    label, value = names.LABEL_LAUNCHER
    owner = {"apiVersion": "kubevirt.io/v1", "kind": VMIS.kind, "name": "x", "uid": "y", "controller": True}
    container = {
        "name": "c",
        "image": "c",
        "securityContext": {"allowPrivilegeEscalation": False, **security},
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 107},
        "containers": [container],
    }
    metadata = {"name": "like-a-machine", "labels": {label: value}, "ownerReferences": [owner]}
    return made(PODS, {"metadata": metadata, "spec": spec})


def made(resource: Resource, obj: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
