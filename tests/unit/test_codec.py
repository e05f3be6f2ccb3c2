"""Typed objects: nulls, unknown fields, quantities, and what is written back."""

from __future__ import annotations

import msgspec
import pytest

from hotvirt.api import codec
from hotvirt.api.conditions import Condition, find, is_true, remove, set_condition
from hotvirt.api.core import Node, Pod
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance
from hotvirt.api.meta import ObjectMeta, now, now_micro, owner_reference, parse_time
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import ALL, PODS, VMS


def test_a_null_means_not_set() -> None:
    vm = codec.decode(
        """{"metadata": {"name": "a", "creationTimestamp": null, "labels": null},
            "spec": {"runStrategy": "Always", "template": {
              "metadata": {"creationTimestamp": null},
              "spec": {"volumes": null, "domain": {
                "machine": null, "devices": null, "cpu": {"sockets": null, "cores": 2}}}}}}""",
        VirtualMachine,
    )
    domain = vm.spec.template.spec.domain
    assert domain.machine is None
    assert domain.devices.disks == ()
    assert domain.cpu is not None and (domain.cpu.sockets, domain.cpu.cores) == (0, 2)
    assert vm.metadata.labels == {}


def test_unknown_fields_are_ignored() -> None:
    pod = codec.convert(
        {"metadata": {"name": "p", "selfLink": "x"}, "spec": {"enableServiceLinks": True}}, Pod
    )
    assert pod.metadata.name == "p"


def test_a_wrong_type_names_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.template\.spec\.domain\.cpu\.sockets"):
        codec.convert(
            {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": "two"}}}}}}, VirtualMachine
        )


@pytest.mark.parametrize(("written", "read"), [("1Gi", "1Gi"), (5, "5"), (0.5, "500m"), ("1000m", "1")])
def test_quantities_of_every_json_type(written: object, read: str) -> None:
    node = codec.convert({"status": {"allocatable": {"cpu": written}}}, Node)
    assert str(node.status.allocatable["cpu"]) == read
    assert codec.builtins(node)["status"]["allocatable"]["cpu"] == read


def test_a_bad_quantity_says_so() -> None:
    with pytest.raises(msgspec.ValidationError, match="not a quantity"):
        codec.decode(b'{"status": {"allocatable": {"cpu": "lots"}}}', Node)


def test_an_object_carries_its_kind_even_when_the_list_did_not() -> None:
    vmi = codec.decode(b'{"metadata": {"name": "a", "uid": "u"}}', VirtualMachineInstance)
    plain = codec.builtins(vmi)
    assert (plain["apiVersion"], plain["kind"]) == ("kubevirt.io/v1", "VirtualMachineInstance")
    assert msgspec.json.decode(codec.encode(vmi)) == plain
    assert owner_reference(vmi) == {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": "a",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert owner_reference(plain, controller=False) == {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": "a",
        "uid": "u",
    }


def test_builtins_are_lists_as_the_wire_has_them() -> None:
    plain = codec.builtins(Pod(metadata=ObjectMeta(name="p", finalizers=("f",))))
    assert plain["metadata"]["finalizers"] == ["f"]


def test_plain_objects_may_hold_typed_ones() -> None:
    assert codec.encode({"requests": {"memory": Quantity("1024Mi")}}) == b'{"requests":{"memory":"1Gi"}}'


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = set_condition(
        [], Condition(type="Ready", status="False", last_transition_time="2026-01-01T00:00:00Z")
    )
    same = set_condition(first, Condition(type="Ready", status="False", reason="Other"))
    assert same[0].last_transition_time == "2026-01-01T00:00:00Z"
    assert same[0].reason == "Other"
    changed = set_condition(same, Condition(type="Ready", status="True"))
    assert changed[0].last_transition_time not in (None, "2026-01-01T00:00:00Z")
    assert is_true(changed, "Ready")
    assert find(changed, "Paused") is None
    assert remove(changed, "Ready") == []


def test_times_are_those_of_kubernetes() -> None:
    assert parse_time("1970-01-01T00:01:00Z") == 60
    assert parse_time("1970-01-01T00:01:00.250000Z") == 60.25
    assert len(now()) == len("2026-01-01T00:00:00Z")
    assert abs(parse_time(now_micro()) - parse_time(now())) < 5


def test_paths_of_resources() -> None:
    assert VMS.path("ns", "a", "status") == "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/a/status"
    assert PODS.path() == "/api/v1/pods"
    assert VMS.group_resource == "virtualmachines.kubevirt.io"
    assert PODS.group_resource == "pods"
    assert len({(resource.group, resource.plural) for resource in ALL}) == len(ALL)
