"""delete and wait: how people know that something has happened."""

from __future__ import annotations

import uuid

import pytest

from tests.conformance.objects import GROUP, IMAGE, configmap, widget
from tests.targets.target import Target

from .conftest import vm
from .kubectl import Kubectl

HOLD = "conformance.hotvirt.io/hold"


def test_delete_waits_until_it_is_gone(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=vm())
    assert kubectl("delete", "vm", "vm1").startswith('virtualmachine.kubevirt.io "vm1" deleted')
    assert "not found" in kubectl.refused("get", "vm", "vm1")
    assert "not found" in kubectl.refused("delete", "vm", "vm1")
    assert kubectl("delete", "vm", "vm1", "--ignore-not-found") == ""


def test_delete_waits_for_finalizers(kubectl: Kubectl) -> None:
    body = widget()
    body["metadata"]["finalizers"] = [HOLD]
    kubectl("create", "-f", "-", stdin=body)
    with kubectl.running("delete", "widget", "one") as deleting:
        deleting.line_with(f'widget.{GROUP} "one" deleted')
        kubectl("patch", "widget", "one", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        deleting.done()


def test_delete_by_label_and_all(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c"):
        kubectl("create", "-f", "-", stdin=widget(name, labels={"go": "yes"} if name == "a" else None))
    kubectl("delete", "widgets", "-l", "go=yes")
    assert kubectl("get", "widgets", "-o", "name").split() == [f"widget.{GROUP}/b", f"widget.{GROUP}/c"]
    kubectl("delete", "widgets", "--all")
    assert kubectl("get", "widgets", "-o", "name") == ""


def test_delete_dry(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    assert "(server dry run)" in kubectl("delete", "widget", "one", "--dry-run=server")
    kubectl("get", "widget", "one")


@pytest.mark.parametrize(
    ("cascade", "finalizer"), [("foreground", "foregroundDeletion"), ("orphan", "orphan")]
)
def test_cascades_are_finalizers(kubectl: Kubectl, cascade: str, finalizer: str) -> None:
    body = widget()
    body["metadata"]["finalizers"] = [HOLD]
    kubectl("create", "-f", "-", stdin=body)
    finalizers = "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}{'\\n'}"
    with kubectl.running("get", "widget", "one", "-w", "-o", finalizers) as watch:
        watch.line_with(HOLD)
        kubectl("delete", "widget", "one", f"--cascade={cascade}", "--wait=false")
        watch.line_with("20", HOLD, finalizer)  # a garbage collector may take it away at once
    kubectl("patch", "widget", "one", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def make_family(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget("owner"))
    uid = kubectl.json("get", "widget", "owner")["metadata"]["uid"]
    child = configmap("child")
    child["metadata"]["ownerReferences"] = [
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "Widget",
            "name": "owner",
            "uid": uid,
            "blockOwnerDeletion": True,
        }
    ]
    kubectl("create", "-f", "-", stdin=child)
    # When the garbage collector has taken this one, it knows the child, too.
    child["metadata"]["name"] = "of-nobody"
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": str(uuid.uuid4())}
    ]
    kubectl("create", "-f", "-", stdin=child)
    kubectl("wait", "configmap/of-nobody", "--for=delete", "--timeout=120s")


@pytest.mark.needs_controllers
def test_foreground_takes_the_family_along(kubectl: Kubectl) -> None:
    make_family(kubectl)
    kubectl("delete", "widget", "owner", "--cascade=foreground")
    assert "not found" in kubectl.refused("get", "configmap", "child")


@pytest.mark.needs_controllers
def test_orphan_leaves_the_family(kubectl: Kubectl) -> None:
    make_family(kubectl)
    kubectl("delete", "widget", "owner", "--cascade=orphan")
    assert "ownerReferences" not in kubectl.json("get", "configmap", "child")["metadata"]


@pytest.mark.needs_controllers
def test_a_namespace_goes_with_its_content(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-more"
    kubectl("create", "namespace", name)
    kubectl("create", "configmap", "inside", "-n", name)
    kubectl("delete", "namespace", name)
    assert "not found" in kubectl.refused("get", "namespace", name)


def report(kubectl: Kubectl, status: str) -> None:
    kubectl("patch", "widget", "one", "--subresource=status", "--type=merge", "-p", status)


READY = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'


def test_wait_for_a_condition(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    with kubectl.running("wait", "widget/one", "--for=condition=Ready", "--timeout=120s") as waiting:
        report(kubectl, READY)
        assert waiting.done() == f"widget.{GROUP}/one condition met\n"


def test_wait_for_a_condition_that_is_met(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    report(kubectl, READY)
    kubectl("wait", "widget", "--all", "--for=condition=Ready=true", "--timeout=120s")


def test_wait_for_a_value(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    arguments = ("wait", "widget/one", "--for=jsonpath={.status.phase}=Done", "--timeout=120s")
    with kubectl.running(*arguments) as waiting:
        report(kubectl, '{"status":{"phase":"Busy"}}')
        report(kubectl, '{"status":{"phase":"Done"}}')
        assert waiting.done() == f"widget.{GROUP}/one condition met\n"


def test_wait_for_a_deletion(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    with kubectl.running("wait", "widget/one", "--for=delete", "--timeout=120s") as waiting:
        kubectl("delete", "widget", "one", "--wait=false")
        waiting.done()
    kubectl("wait", "widget/one", "--for=delete", "--timeout=120s")


def test_wait_gives_up(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    refusal = kubectl.refused("wait", "widget/one", "--for=condition=Ready", "--timeout=1s")
    assert "timed out waiting for the condition" in refusal


def test_delete_a_pod_at_once(kubectl: Kubectl, target: Target) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "nobody-runs-here",
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": IMAGE}],
        },
    }
    kubectl("create", "-f", "-", stdin=body)
    kubectl("delete", "pod", "p", "--wait=false")
    (row,) = kubectl.rows("get", "pods")
    assert row["STATUS"] == "Terminating"
    kubectl("delete", "pod", "p", "--grace-period=0", "--force")
    assert "not found" in kubectl.refused("get", "pod", "p")
