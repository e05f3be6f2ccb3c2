"""get, describe, events: how people look."""

from __future__ import annotations

from typing import Any

import yaml

from tests.conformance.objects import configmap, pod, widget

from .conftest import vm
from .kubectl import Kubectl


def create(kubectl: Kubectl, *objects: dict[str, Any]) -> None:
    kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(objects)})


def event(kubectl: Kubectl, reason: str, **involved: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": reason.lower(), "namespace": kubectl.namespace},
        "involvedObject": {"namespace": kubectl.namespace} | involved,
        "reason": reason,
        "message": "What happened.",
        "type": "Normal",
        "count": 1,
        "source": {"component": "suite"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


def test_a_table(kubectl: Kubectl) -> None:
    create(kubectl, vm("a"), vm("b"))
    rows = kubectl.rows("get", "vm")
    assert [row["NAME"] for row in rows] == ["a", "b"]
    assert {"NAME", "AGE", "STATUS", "READY"} <= set(rows[0])
    assert rows[0]["AGE"].endswith("s")


def test_short_names_and_groups(kubectl: Kubectl) -> None:
    create(kubectl, vm())
    for name in ("vm", "vms", "virtualmachine", "virtualmachines", "virtualmachines.kubevirt.io"):
        assert kubectl("get", name, "-o", "name") == "virtualmachine.kubevirt.io/vm1\n"


def test_wide_has_more_columns(kubectl: Kubectl) -> None:
    create(kubectl, widget(color="blue"))
    assert "PHASE" not in kubectl.rows("get", "widgets")[0]
    assert kubectl.rows("get", "widgets", "-o", "wide")[0]["COLOR"] == "blue"
    assert "PHASE" in kubectl("get", "widgets", "-o", "wide")


def test_yaml_json_and_jsonpath(kubectl: Kubectl) -> None:
    create(kubectl, vm(sockets=3))
    path = "{.spec.template.spec.domain.cpu.sockets}"
    assert kubectl("get", "vm", "vm1", "-o", f"jsonpath={path}") == "3"
    as_json = kubectl.json("get", "vm", "vm1")
    as_yaml = yaml.safe_load(kubectl("get", "vm", "vm1", "-o", "yaml"))
    assert as_json["spec"] == as_yaml["spec"]
    assert as_json["spec"]["template"]["spec"]["domain"]["cpu"]["sockets"] == 3
    listed = kubectl.json("get", "vm")
    assert (listed["kind"], len(listed["items"])) == ("List", 1)
    columns = "custom-columns=N:.metadata.name,S:.spec.runStrategy"
    assert kubectl.rows("get", "vm", "-o", columns) == [{"N": "vm1", "S": "Halted"}]


def test_labels_select_and_show(kubectl: Kubectl) -> None:
    create(kubectl, vm("a", labels={"tier": "web"}), vm("b", labels={"tier": "db"}))
    assert kubectl("get", "vm", "-l", "tier=web", "-o", "name") == "virtualmachine.kubevirt.io/a\n"
    assert kubectl("get", "vm", "-l", "tier in (db)", "-o", "name") == "virtualmachine.kubevirt.io/b\n"
    assert [row["TIER"] for row in kubectl.rows("get", "vm", "-L", "tier")] == ["web", "db"]
    assert "tier=web" in kubectl("get", "vm", "a", "--show-labels")


def test_field_selectors(kubectl: Kubectl) -> None:
    create(kubectl, vm("a"), vm("b"))
    found = kubectl("get", "vm", "--field-selector", "metadata.name=b", "-o", "name")
    assert found == "virtualmachine.kubevirt.io/b\n"
    refusal = kubectl.refused("get", "vm", "--field-selector", "spec.runStrategy=Halted")
    assert "field label not supported: spec.runStrategy" in refusal


def test_sorting_and_pages(kubectl: Kubectl) -> None:
    for name, size in (("a", 3), ("b", 1), ("c", 2)):
        create(kubectl, widget(name, size=size))
    rows = kubectl.rows("get", "widgets", "--sort-by=.spec.size")
    assert [row["NAME"] for row in rows] == ["b", "c", "a"]
    rows = kubectl.rows("get", "widgets", "--chunk-size=2")
    assert [row["NAME"] for row in rows] == ["a", "b", "c"]


def test_all_namespaces(kubectl: Kubectl) -> None:
    create(kubectl, vm())
    rows = kubectl.rows("get", "vm", "-A")
    assert {"NAMESPACE": kubectl.namespace, "NAME": "vm1"}.items() <= next(
        row for row in rows if row["NAMESPACE"] == kubectl.namespace
    ).items()


def test_several_kinds_at_once(kubectl: Kubectl) -> None:
    create(kubectl, vm(), configmap("cm1"))
    found = kubectl("get", "vm,configmap", "-o", "name").splitlines()
    assert {"virtualmachine.kubevirt.io/vm1", "configmap/cm1"} <= set(found)


def test_what_is_not_there(kubectl: Kubectl) -> None:
    refusal = kubectl.refused("get", "vm", "none")
    assert 'virtualmachines.kubevirt.io "none" not found' in refusal
    assert 'the server doesn\'t have a resource type "gadgets"' in kubectl.refused("get", "gadgets")
    done = kubectl.run("get", "vm")
    assert done.returncode == 0
    assert f"No resources found in {kubectl.namespace} namespace." in done.stderr


def test_watching_a_table(kubectl: Kubectl) -> None:
    create(kubectl, widget("a"))
    with kubectl.running("get", "widgets", "-w") as watch:
        watch.line_with("NAME", "SIZE")
        watch.line_with("a", "1", "red")
        create(kubectl, widget("b", color="green"))
        watch.line_with("b", "green")
        kubectl("patch", "widget", "a", "--type=merge", "-p", '{"spec":{"size":42}}')
        watch.line_with("a", "42")


def test_watching_events_of_one_object(kubectl: Kubectl) -> None:
    create(kubectl, widget("a"), widget("b"))
    with kubectl.running("get", "widget", "b", "-w", "--output-watch-events") as watch:
        watch.line_with("ADDED", "b")
        kubectl("patch", "widget", "a", "--type=merge", "-p", '{"spec":{"size":9}}')
        kubectl("patch", "widget", "b", "--type=merge", "-p", '{"spec":{"size":9}}')
        watch.line_with("MODIFIED", "b", "9")
        kubectl("delete", "widget", "b")
        watch.line_with("DELETED", "b")


def test_watching_json(kubectl: Kubectl) -> None:
    create(kubectl, widget("a"))
    arguments = ("get", "widgets", "-w", "-o", "jsonpath={.metadata.name}={.spec.size}{'\\n'}")
    with kubectl.running(*arguments) as watch:
        assert watch.line() == "a=1\n"
        kubectl("patch", "widget", "a", "--type=merge", "-p", '{"spec":{"size":2}}')
        assert watch.line() == "a=2\n"


def test_describe_a_vm_with_its_events(kubectl: Kubectl) -> None:
    create(kubectl, vm())
    uid = kubectl.json("get", "vm", "vm1")["metadata"]["uid"]
    involved = {"kind": "VirtualMachine", "apiVersion": "kubevirt.io/v1", "name": "vm1", "uid": uid}
    create(kubectl, event(kubectl, "Suited", **involved))
    told = kubectl("describe", "vm", "vm1")
    assert "Run Strategy:" in told
    assert "Halted" in told
    assert "Suited" in told
    assert "What happened." in told


def test_describe_built_in_kinds(kubectl: Kubectl) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "7"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none-such",
        },
    }
    create(kubectl, configmap("cm", {"key": "some text"}), secret, quota, claim)
    assert "some text" in kubectl("describe", "configmap", "cm")
    assert "k:  1 bytes" in kubectl("describe", "secret", "s")
    assert "Used By:" in kubectl("describe", "pvc", "c")
    assert "Resource" in kubectl("describe", "quota", "q")
    assert "Active" in kubectl("describe", "ns", kubectl.namespace)


def test_describe_a_pod(kubectl: Kubectl) -> None:
    create(kubectl, pod("p", labels={"a": "b"}))
    told = kubectl("describe", "pod", "p")
    told = " ".join(told.split())
    assert "Status: Pending" in told
    assert "Labels: a=b" in told
    assert "QoS Class: Burstable" in told


def test_pods_in_a_table(kubectl: Kubectl) -> None:
    create(kubectl, pod("p"))
    (row,) = kubectl.rows("get", "pods", "-o", "wide")
    wanted = {"NAME": "p", "READY": "0/1", "STATUS": "Pending", "RESTARTS": "0", "NODE": "<none>"}
    assert wanted.items() <= row.items()


def test_events(kubectl: Kubectl) -> None:
    kind = {"kind": "VirtualMachine", "apiVersion": "kubevirt.io/v1"}
    create(
        kubectl,
        vm("vm1"),
        event(kubectl, "First", name="vm1", **kind),
        event(kubectl, "Second", name="vm2", **kind),
    )
    everything = kubectl("events")
    assert "First" in everything
    assert "VirtualMachine/vm2" in everything
    of_one = kubectl("events", "--for", "vm/vm1")
    assert "First" in of_one
    assert "Second" not in of_one
    assert {row["REASON"] for row in kubectl.rows("get", "events")} == {"First", "Second"}
    assert "First" in kubectl("get", "events", "--field-selector", "involvedObject.name=vm1")


def test_get_all(kubectl: Kubectl) -> None:
    create(kubectl, pod("p"))
    assert "pod/p" in kubectl("get", "all")


def test_the_status_alone(kubectl: Kubectl) -> None:
    create(kubectl, widget())
    patch = '{"status":{"phase":"Done"}}'
    kubectl("patch", "widget", "one", "--subresource=status", "--type=merge", "-p", patch)
    assert kubectl.json("get", "widget", "one", "--subresource=status")["status"] == {"phase": "Done"}


def test_logs_of_what_is_not_there(kubectl: Kubectl) -> None:
    assert 'pods "none" not found' in kubectl.refused("logs", "none")
    create(kubectl, pod("p"))
    assert "other is not valid for pod p" in kubectl.refused("logs", "p", "-c", "other")
