"""explain, api-resources, auth: how people find out what there is."""

from __future__ import annotations

from tests.conformance.objects import GROUP

from .kubectl import Kubectl, version


def test_explain_a_custom_resource(kubectl: Kubectl) -> None:
    told = kubectl("explain", "widgets")
    assert "Widget is what the suite creates, changes and deletes." in told
    told = kubectl("explain", "widget.spec.size")
    assert "How large the widget is." in told
    assert "<integer>" in told


def test_explain_a_vm(kubectl: Kubectl) -> None:
    told = kubectl("explain", "vm.spec")
    assert "runStrategy" in told
    assert "VirtualMachine" in told
    assert "sockets" in kubectl("explain", "vm.spec.template.spec.domain.cpu")


def test_explain_everything(kubectl: Kubectl) -> None:
    told = kubectl("explain", "vm.spec", "--recursive")
    for field in ("template", "domain", "sockets", "containerDisk"):
        assert field in told


def test_explain_a_built_in_kind(kubectl: Kubectl) -> None:
    assert "spec" in kubectl("explain", "pod")
    assert "containers" in kubectl("explain", "pods.spec")
    assert "<map[string]string>" in kubectl("explain", "configmap.data")


def test_explain_what_is_not_there(kubectl: Kubectl) -> None:
    assert 'field "nothing" does not exist' in kubectl.refused("explain", "vm.spec.nothing")


def test_api_resources(kubectl: Kubectl) -> None:
    rows = {row["NAME"]: row for row in kubectl.rows("api-resources", "--api-group=kubevirt.io")}
    machines = rows["virtualmachines"]
    assert machines["APIVERSION"] == "kubevirt.io/v1"
    assert (machines["NAMESPACED"], machines["KIND"]) == ("true", "VirtualMachine")
    assert machines["SHORTNAMES"] == "vm,vms"
    mine = kubectl("api-resources", f"--api-group={GROUP}", "-o", "name")
    assert mine == f"widgets.{GROUP}\n"
    core = {row["NAME"]: row for row in kubectl.rows("api-resources", "--api-group=")}
    assert core["nodes"]["NAMESPACED"] == "false"


def test_api_resources_by_category(kubectl: Kubectl) -> None:
    found = kubectl("api-resources", "--categories=conformance", "-o", "name")
    assert found == f"widgets.{GROUP}\n"


def test_api_resources_with_verbs(kubectl: Kubectl) -> None:
    found = kubectl("api-resources", "--verbs=watch,delete", "--namespaced=true", "-o", "name").split()
    assert {"pods", "configmaps", "virtualmachines.kubevirt.io"} <= set(found)
    assert "nodes" not in found


def test_api_versions(kubectl: Kubectl) -> None:
    assert {"v1", "apps/v1", "kubevirt.io/v1", f"{GROUP}/v1"} <= set(kubectl("api-versions").split())


def test_can_i(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "vm") == "yes\n"
    assert kubectl("auth", "can-i", "*", "*") == "yes\n"
    assert kubectl("auth", "can-i", "get", "/metrics") == "yes\n"


def test_can_i_list(kubectl: Kubectl) -> None:
    assert "*.*" in kubectl("auth", "can-i", "--list")


def test_who_am_i(kubectl: Kubectl) -> None:
    if version(kubectl.binary) < (1, 28):  # asks for versions of the API that no server of today has
        assert "selfsubjectreviews API is not enabled" in kubectl.refused("auth", "whoami")
    else:
        assert "system:authenticated" in kubectl("auth", "whoami")


def test_version(kubectl: Kubectl) -> None:
    assert kubectl.json("version")["serverVersion"]["gitVersion"].startswith("v1.")


def test_raw_paths(kubectl: Kubectl) -> None:
    assert kubectl("get", "--raw", "/readyz").strip() == "ok"
