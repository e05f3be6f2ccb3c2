"""Admission: who may write what, what is filled in, what is refused, and what the user is told."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import json
from typing import Any

import pytest

from hotvirt.admission import webhooks
from hotvirt.admission.lookups import remembered
from hotvirt.admission.request import AdmissionResponse
from hotvirt.admission.review import review
from hotvirt.admission.webhooks import Admission, AdmissionRequest
from hotvirt.api import names
from hotvirt.api.resources import DATAVOLUMES, KUBEVIRTS, PODS, VMIMS, VMIS, VMS, Resource
from hotvirt.kube.errors import ApiError
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults

CONFIG = ClusterConfig()


def vm(sockets: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "a", "namespace": "ns"},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "spec": {
                    "domain": {"cpu": {"sockets": sockets}, "memory": {"guest": "1Gi"}, "devices": {}},
                    "volumes": [{"name": "root", "containerDisk": {"image": "a/b:1"}}],
                }
            },
        }
        | spec,
    }


def vmi(sockets: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ns"},
        "spec": vmi_defaults(vm(sockets)["spec"]["template"]["spec"], CONFIG),
        "status": {"phase": "Running", "virtualMachineRevisionName": "r"},
    }


def request(
    resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None = None, user: str = "jane"
) -> AdmissionRequest:
    return AdmissionRequest(
        operation="CREATE" if old is None else "UPDATE",
        resource=resource.group_resource,
        namespace="ns",
        name="a",
        object=obj,
        old_object=old,
        user=user,
    )


def admission(running: dict[str, Any] | None = None, config: ClusterConfig = CONFIG) -> Admission:
    async def find_vmi(namespace: str, name: str) -> dict[str, Any] | None:
        assert (namespace, name) == ("ns", "a")
        return running

    async def find_revision(namespace: str, name: str) -> dict[str, Any] | None:
        assert (namespace, name) == ("ns", "r")
        return {"data": {"spec": vm()["spec"]}}

    return Admission(lambda: config, find_vmi, find_revision)


async def test_a_good_vm_is_stored_as_its_owner_wrote_it() -> None:
    hooks = admission()
    assert await hooks.mutate(request(VMS, vm())) == AdmissionResponse()
    assert await hooks.validate(request(VMS, vm())) == AdmissionResponse()


async def test_every_cause_is_in_the_answer() -> None:
    bad = vm(sockets=0, runStrategy="Sometimes")
    response = await admission().validate(request(VMS, bad))
    assert (response.allowed, response.code, response.reason) == (False, 422, "Invalid")
    assert [cause.field for cause in response.causes] == [
        "spec.runStrategy",
        "spec.template.spec.domain.cpu.sockets",
    ]
    assert "spec.runStrategy: 'Sometimes' is not known" in response.message


async def test_fields_without_effect_give_one_warning() -> None:
    odd = vm()
    odd["spec"]["template"]["spec"]["evictionStrategy"] = "LiveMigrate"
    odd["spec"]["template"]["spec"]["domain"]["clock"] = {"utc": {}}
    response = await admission().validate(request(VMS, odd))
    assert response.allowed
    assert response.warnings == [
        "Hotvirt keeps these fields but does not act on them: domain.clock, evictionStrategy"
    ]


async def test_a_warning_is_never_longer_than_an_api_server_lets_through() -> None:
    odd = vm(instancetype={"name": "u1.nano"})
    odd["spec"]["template"]["spec"]["domain"]["devices"]["disks"] = [{"name": "root", "disk": {}, "tag": "x"}]
    odd["spec"]["template"]["spec"]["volumes"] += [
        {"name": f"v{index}", "emptyDisk": {"capacity": "1Gi"}} for index in range(20)
    ]
    odd["spec"]["template"]["spec"]["domain"]["devices"]["disks"] += [
        {"name": f"v{index}", "disk": {}, "tag": "x"} for index in range(20)
    ]
    (warning,) = (await admission().validate(request(VMS, odd))).warnings
    assert len(warning) <= 256
    assert warning.endswith(" more")


async def test_an_edit_of_a_running_vm_is_answered_with_its_plan() -> None:
    new = vm(sockets=2)
    new["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = 2
    response = await admission(vmi()).validate(request(VMS, new, vm()))
    assert response.allowed
    assert response.warnings == [
        "domain.cpu.sockets 1→2: live, +100m cpu",
        "domain.cpu.cores 1→2: needs a restart, it is fixed at start",
    ]


async def test_the_order_is_told_where_several_sizes_change() -> None:
    new = vm(sockets=2)
    new["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = "2Gi"
    warnings = (await admission(vmi()).validate(request(VMS, new, vm()))).warnings
    assert len(warnings) == 3
    assert warnings[2].startswith("in this order: Pod cpu 100m→200m, guest vCPUs 1→2, Pod memory ")


async def test_a_dry_run_is_answered_with_every_step() -> None:
    asked = dataclasses.replace(request(VMS, vm(sockets=2), vm()), dry_run=True)
    assert (await admission(vmi()).validate(asked)).warnings == [
        "domain.cpu.sockets 1→2: live, +100m cpu",
        "in this order: Pod cpu 100m→200m, guest vCPUs 1→2",
    ]


async def test_a_limit_below_the_guest_is_told() -> None:
    tight = vm()
    tight["spec"]["template"]["spec"]["domain"]["resources"] = {"limits": {"memory": "512Mi"}}
    response = await admission().validate(request(VMS, tight))
    assert response.allowed
    assert response.warnings == [
        "domain.resources.limits.memory 512Mi is less than the guest's memory: "
        "the Pod gets 1Gi and the overhead"
    ]


async def test_a_size_that_no_running_machine_can_have_is_refused() -> None:
    odd = vm()
    odd["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = "1025Mi"
    response = await admission(vmi()).validate(request(VMS, odd, vm()))
    assert (response.allowed, response.code) == (False, 422)
    assert "use 1Gi or 1026Mi" in response.message


async def test_an_edit_of_a_vm_that_does_not_run_needs_no_words() -> None:
    assert (await admission(None).validate(request(VMS, vm(sockets=2), vm()))).warnings == []


async def test_an_edit_outside_the_template_needs_no_plan() -> None:
    halted = vm(runStrategy="Halted")
    assert (await admission(vmi()).validate(request(VMS, halted, vm()))).warnings == []


async def test_a_lookup_that_fails_does_not_stop_the_edit() -> None:
    async def broken(namespace: str, name: str) -> dict[str, Any] | None:
        raise ApiError(503, "ServiceUnavailable", "try later", {})

    response = await Admission(lambda: CONFIG, broken).validate(request(VMS, vm(sockets=2), vm()))
    assert response.allowed
    assert "could not be looked at" in response.warnings[0]


async def test_a_lookup_that_takes_too_long_does_not_stop_the_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(namespace: str, name: str) -> dict[str, Any] | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(webhooks, "LOOK_WITHIN", 0.01)
    response = await Admission(lambda: CONFIG, silent).validate(request(VMS, vm(sockets=2), vm()))
    assert response.allowed
    assert "could not be looked at" in response.warnings[0]


async def test_what_never_changes_is_asked_for_once() -> None:
    there = {"first": {"a": 1}, "second": {"a": 2}}
    asked: list[str] = []

    async def find(namespace: str, name: str) -> dict[str, Any] | None:
        asked.append(name)
        return there.get(name)

    known = remembered(find, most=1)
    assert await known("ns", "first") == await known("ns", "first") == {"a": 1}
    assert await known("ns", "none") is await known("ns", "none") is None
    assert await known("ns", "second") == {"a": 2}
    assert await known("ns", "first") == {"a": 1}
    assert asked == ["first", "none", "none", "second", "first"]


async def test_a_write_that_leaves_the_spec_alone_is_not_checked_again() -> None:
    broken = vm(sockets=0)
    labelled = copy.deepcopy(broken)
    labelled["metadata"]["finalizers"] = []
    assert (await admission().validate(request(VMS, labelled, broken))).allowed


async def test_nothing_stops_an_object_on_its_way_out() -> None:
    leaving = vm(sockets=0)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert (await admission().validate(request(VMS, leaving, vm()))).allowed


async def test_a_vmi_gets_its_defaults() -> None:
    made = {"metadata": {"name": "a"}, "spec": vm()["spec"]["template"]["spec"]}
    response = await admission().mutate(request(VMIS, made, user=names.CONTROLLER_USER))
    assert response.object is not None
    spec = response.object["spec"]
    assert spec["domain"]["cpu"] == {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 4}
    assert spec["domain"]["memory"] == {"guest": "1Gi", "maxGuest": "4Gi"}
    assert spec["domain"]["devices"]["disks"] == [{"name": "root", "disk": {"bus": "virtio"}}]
    assert (await admission().validate(request(VMIS, response.object, user=names.CONTROLLER_USER))).allowed


async def test_a_vmi_with_a_wrong_type_is_refused_by_its_field() -> None:
    made = {"metadata": {"name": "a"}, "spec": {"domain": {"cpu": {"sockets": "two"}}}}
    assert (await admission().mutate(request(VMIS, made))).object is None
    response = await admission().validate(request(VMIS, made))
    assert [cause.field for cause in response.causes] == ["spec.domain.cpu.sockets"]


async def test_only_hotvirt_changes_the_spec_of_a_vmi() -> None:
    old, new = vmi(), vmi()
    new["spec"]["domain"]["cpu"]["sockets"] = 2
    response = await admission().validate(request(VMIS, new, old, user="jane"))
    assert (response.allowed, response.code) == (False, 403)
    assert "edit VirtualMachine a" in response.message
    for user in (names.CONTROLLER_USER, names.API_USER, names.NODE_USER):
        assert (await admission().validate(request(VMIS, new, old, user=user))).allowed
    relabelled = copy.deepcopy(old)
    relabelled["metadata"]["labels"] = {"a": "b"}
    assert (await admission().validate(request(VMIS, relabelled, old, user="jane"))).allowed


async def test_a_migration_is_refused_with_what_to_do_instead() -> None:
    response = await admission().validate(request(VMIMS, {"spec": {"vmiName": "a"}}))
    assert (response.allowed, response.code) == (False, 403)
    assert "in place" in response.message


async def test_cluster_settings() -> None:
    bad = {"spec": {"configuration": {"vmRolloutStrategy": "Later"}}}
    assert not (await admission().validate(request(KUBEVIRTS, bad))).allowed
    fine = {"spec": {"configuration": {"vmRolloutStrategy": "Stage", "cpuModel": "host-model"}}}
    response = await admission().validate(request(KUBEVIRTS, fine))
    assert response.warnings == [
        "Hotvirt keeps these fields but does not act on them: spec.configuration.cpuModel",
        "This object has no effect: Hotvirt reads kubevirt in namespace kubevirt.",
    ]


async def test_data_volumes_are_blank_and_stay_what_they_are() -> None:
    blank = {"spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}}}
    assert (await admission().validate(request(DATAVOLUMES, blank))).allowed
    imported = {"spec": blank["spec"] | {"source": {"http": {"url": "u"}}}}
    assert not (await admission().validate(request(DATAVOLUMES, imported))).allowed
    larger = {"spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "2Gi"}}}}}
    response = await admission().validate(request(DATAVOLUMES, larger, blank))
    assert (response.allowed, response.code) == (False, 403)


@pytest.mark.parametrize(
    "asked",
    [
        AdmissionRequest("CREATE", PODS.group_resource, object={"spec": {}}),
        AdmissionRequest("DELETE", VMS.group_resource, old_object={"spec": {}}),
        AdmissionRequest("UPDATE", VMS.group_resource, "status", object={"spec": 1}, old_object={"spec": 2}),
    ],
    ids=["other kinds", "deletions", "subresources"],
)
async def test_everything_else_passes(asked: AdmissionRequest) -> None:
    assert await admission().mutate(asked) == AdmissionResponse()
    assert await admission().validate(asked) == AdmissionResponse()


def asked_by_a_cluster(resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
    return {
        "request": {
            "uid": "u-1",
            "operation": "CREATE",
            "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
            "namespace": "ns",
            "name": "a",
            "userInfo": {"username": "jane", "groups": ["g"]},
            "object": obj,
            "oldObject": None,
            "dryRun": True,
        }
    }


async def test_a_cluster_is_answered_in_its_own_form() -> None:
    denied = await review(admission(), "validate", asked_by_a_cluster(VMS, vm(sockets=0)))
    assert denied["response"]["uid"] == "u-1"
    assert denied["response"]["allowed"] is False
    assert denied["response"]["status"]["code"] == 422
    assert denied["response"]["status"]["details"]["causes"] == [
        {
            "reason": "FieldValueInvalid",
            "field": "spec.template.spec.domain.cpu.sockets",
            "message": "0 is too few: it must be at least 1; leave it out for the default",
        }
    ]
    made = {"metadata": {"name": "a"}, "spec": vm()["spec"]["template"]["spec"]}
    filled = await review(admission(), "mutate", asked_by_a_cluster(VMIS, made))
    (operation,) = json.loads(base64.b64decode(filled["response"]["patch"]))
    assert (operation["op"], operation["path"]) == ("add", "/spec")
    assert operation["value"]["domain"]["cpu"]["maxSockets"] == 4
    fine = await review(admission(), "validate", asked_by_a_cluster(VMS, vm()))
    assert fine["response"] == {"uid": "u-1", "allowed": True}
