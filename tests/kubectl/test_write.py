"""create, apply, edit, patch, replace, label, annotate: how people change things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.objects import GROUP, configmap, widget

from .conftest import vm
from .kubectl import Kubectl

SOCKETS = "jsonpath={.spec.template.spec.domain.cpu.sockets}"


def sockets(kubectl: Kubectl) -> str:
    return kubectl("get", "vm", "vm1", "-o", SOCKETS)


def test_create_from_a_file(kubectl: Kubectl, tmp_path: Path) -> None:
    manifest = tmp_path / "vm.json"
    manifest.write_text(json.dumps(vm()))
    assert kubectl("create", "-f", str(manifest)) == "virtualmachine.kubevirt.io/vm1 created\n"
    assert "AlreadyExists" in kubectl.refused("create", "-f", str(manifest))


def test_create_refuses_a_misspelt_field(kubectl: Kubectl) -> None:
    body = vm()
    body["spec"]["runStrategi"] = "Halted"
    refusal = kubectl.refused("create", "-f", "-", stdin=body)
    assert 'strict decoding error: unknown field "spec.runStrategi"' in refusal
    done = kubectl.run("create", "-f", "-", "--validate=warn", stdin=body)
    assert done.returncode == 0
    assert 'Warning: unknown field "spec.runStrategi"' in done.stderr


def test_create_refuses_a_wrong_value(kubectl: Kubectl) -> None:
    refusal = kubectl.refused("create", "-f", "-", stdin=widget(size=1000))
    assert "spec.size: Invalid value: 1000: spec.size in body should be less than or equal to 100" in refusal


def test_create_with_a_generated_name(kubectl: Kubectl) -> None:
    body = widget()
    body["metadata"] = {"generateName": "made-"}
    assert kubectl("create", "-f", "-", stdin=body).startswith(f"widget.{GROUP}/made-")


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("configmap made --from-literal=a=b", "configmap/made"),
        ("secret generic made --from-literal=a=b", "secret/made"),
        ("serviceaccount made", "serviceaccount/made"),
        ("quota made --hard=pods=3,requests.cpu=2", "resourcequota/made"),
    ],
)
def test_create_without_a_file(kubectl: Kubectl, command: str, made: str) -> None:
    kubectl("create", *command.split())
    assert kubectl("get", made, "-o", "name").strip() == made


def test_create_a_namespace(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-more"
    assert kubectl("create", "namespace", name) == f"namespace/{name} created\n"
    kubectl("delete", "namespace", name, "--wait=false")


def test_create_a_token(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "made")
    assert len(kubectl("create", "token", "made", "--duration=10m").strip()) > 20


def test_a_dry_run_on_the_server_keeps_nothing(kubectl: Kubectl) -> None:
    printed = kubectl("create", "-f", "-", "--dry-run=server", stdin=vm())
    assert printed == "virtualmachine.kubevirt.io/vm1 created (server dry run)\n"
    assert "not found" in kubectl.refused("get", "vm", "vm1")
    refusal = kubectl.refused("create", "-f", "-", "--dry-run=server", stdin=widget(size=0))
    assert "spec.size" in refusal


def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=vm()) == "virtualmachine.kubevirt.io/vm1 created\n"
    assert kubectl("apply", "-f", "-", stdin=vm()) == "virtualmachine.kubevirt.io/vm1 unchanged\n"
    changed = kubectl("apply", "-f", "-", stdin=vm(sockets=2))
    assert changed == "virtualmachine.kubevirt.io/vm1 configured\n"
    assert sockets(kubectl) == "2"


def test_apply_removes_what_is_no_longer_named(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=configmap(data={"a": "1", "b": "2"}))
    kubectl("patch", "configmap", "one", "-p", '{"data":{"c":"3"}}')
    kubectl("apply", "-f", "-", stdin=configmap(data={"a": "9"}))
    assert kubectl.json("get", "configmap", "one")["data"] == {"a": "9", "c": "3"}


def test_apply_of_a_misspelt_field(kubectl: Kubectl) -> None:
    body = vm()
    body["spec"]["template"]["spec"]["domain"]["cpuu"] = {}
    refusal = kubectl.refused("apply", "-f", "-", stdin=body)
    assert 'unknown field "spec.template.spec.domain.cpuu"' in refusal


def test_apply_dry(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=vm())
    printed = kubectl("apply", "-f", "-", "--dry-run=server", stdin=vm(sockets=2))
    assert printed == "virtualmachine.kubevirt.io/vm1 configured (server dry run)\n"
    assert sockets(kubectl) == "1"


def test_diff(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=widget())
    assert kubectl("diff", "-f", "-", stdin=widget()) == ""
    done = kubectl.run("diff", "-f", "-", stdin=widget(size=2))
    assert done.returncode == 1, done.stderr
    assert "-  size: 1" in done.stdout
    assert "+  size: 2" in done.stdout


@pytest.fixture
def editor(tmp_path: Path) -> str:
    """An editor that raises the size, or the data, to 77."""
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nsed -i -e "s/size: 1$/size: 77/" -e "s/key: value/key: new/" "$1"\n')
    script.chmod(0o755)
    return str(script)


def test_edit_a_custom_resource(kubectl: Kubectl, editor: str) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    assert kubectl("edit", "widget", "one", EDITOR=editor) == f"widget.{GROUP}/one edited\n"
    assert kubectl("get", "widget", "one", "-o", "jsonpath={.spec.size}") == "77"


def test_edit_a_built_in_kind(kubectl: Kubectl, editor: str) -> None:
    kubectl("create", "-f", "-", stdin=configmap())
    assert kubectl("edit", "configmap", "one", EDITOR=editor) == "configmap/one edited\n"
    assert kubectl.json("get", "configmap", "one")["data"] == {"key": "new"}


def test_edit_that_changes_nothing(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    done = kubectl.run("edit", "widget", "one", environment={"EDITOR": "true"})
    assert done.returncode == 0
    assert "Edit cancelled, no changes made." in done.stderr + done.stdout


def test_patch_by_merge(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=vm())
    patch = '{"spec":{"template":{"spec":{"domain":{"cpu":{"sockets":2}}}}}}'
    printed = kubectl("patch", "vm", "vm1", "--type=merge", "-p", patch)
    assert printed == "virtualmachine.kubevirt.io/vm1 patched\n"
    assert sockets(kubectl) == "2"


def test_a_patch_that_changes_nothing(kubectl: Kubectl) -> None:
    """Of a kind that nobody else writes: kubectl compares what there was with what there is."""
    kubectl("create", "-f", "-", stdin=widget())
    patched = kubectl("patch", "widget", "one", "--type=merge", "-p", '{"spec":{"size":1}}')
    assert patched == f"widget.{GROUP}/one patched (no change)\n"


def test_patch_by_json(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=vm())
    path = "/spec/template/spec/domain/cpu/sockets"
    patch = [{"op": "test", "path": path, "value": 1}, {"op": "replace", "path": path, "value": 4}]
    kubectl("patch", "vm", "vm1", "--type=json", "-p", json.dumps(patch))
    assert sockets(kubectl) == "4"
    refusal = kubectl.refused("patch", "vm", "vm1", "--type=json", "-p", json.dumps(patch))
    assert "the server rejected our request due to an error in our request" in refusal


def test_patch_strategically(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=configmap(data={"a": "1"}))
    kubectl("patch", "configmap", "one", "-p", '{"data":{"b":"2"}}')
    assert kubectl.json("get", "configmap", "one")["data"] == {"a": "1", "b": "2"}
    kubectl("create", "-f", "-", stdin=widget())
    refusal = kubectl.refused("patch", "widget", "one", "-p", '{"spec":{"size":2}}')
    assert "application/strategic-merge-patch+json is not supported" in refusal
    assert "application/merge-patch+json" in refusal


def test_replace(kubectl: Kubectl) -> None:
    """Of a kind that nobody else writes: between the two, a controller changes a VM."""
    kubectl("create", "-f", "-", stdin=widget())
    body = kubectl.json("get", "widget", "one")
    body["spec"]["size"] = 2
    assert kubectl("replace", "-f", "-", stdin=body) == f"widget.{GROUP}/one replaced\n"
    assert kubectl("get", "widget", "one", "-o", "jsonpath={.spec.size}") == "2"
    body["metadata"]["resourceVersion"] = "1"
    assert "the object has been modified" in kubectl.refused("replace", "-f", "-", stdin=body)


def test_replace_by_force(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=widget())
    before = kubectl.json("get", "widget", "one")["metadata"]["uid"]
    kubectl("replace", "--force", "-f", "-", stdin=widget(size=2))
    after = kubectl.json("get", "widget", "one")
    assert after["metadata"]["uid"] != before
    assert after["spec"]["size"] == 2


def test_label(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=vm())
    assert kubectl("label", "vm", "vm1", "a=b") == "virtualmachine.kubevirt.io/vm1 labeled\n"
    assert kubectl.json("get", "vm", "vm1")["metadata"]["labels"]["a"] == "b"
    assert "--overwrite" in kubectl.refused("label", "vm", "vm1", "a=c")
    kubectl("label", "vm", "vm1", "a=c", "--overwrite")
    kubectl("label", "vm", "--all", "a-")
    assert "a" not in kubectl.json("get", "vm", "vm1")["metadata"].get("labels", {})


def test_annotate(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=vm())
    kubectl("annotate", "vm", "vm1", "note=hello there")
    assert kubectl.json("get", "vm", "vm1")["metadata"]["annotations"]["note"] == "hello there"
    kubectl("annotate", "vm", "vm1", "note-")
    assert "note" not in kubectl.json("get", "vm", "vm1")["metadata"].get("annotations", {})


def test_cordon(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-node"
    kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    assert kubectl("cordon", name) == f"node/{name} cordoned\n"
    assert kubectl.json("get", "node", name)["spec"]["unschedulable"] is True
    assert "SchedulingDisabled" in kubectl("get", "node", name)
    kubectl("uncordon", name)
    kubectl("delete", "node", name)
