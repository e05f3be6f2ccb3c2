"""The built-in kinds that Hotvirt stands on: what each adds to plain storage."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from .client import STRATEGIC, Api, causes
from .conftest import Namespace
from .objects import configmap


def thing(kind: str, name: str = "one", api_version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}} | fields


async def test_a_configmap_has_text_and_bytes(api: Api, ns: Namespace) -> None:
    body = configmap(data={"a": "text"}) | {"binaryData": {"b": "AP8="}}
    made = await api.create(ns.configmaps, body)
    assert (made["data"], made["binaryData"]) == ({"a": "text"}, {"b": "AP8="})


async def test_keys_of_a_configmap_are_checked(api: Api, ns: Namespace) -> None:
    status = (await api.post(ns.configmaps, configmap(data={"a b": "c"}))).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "data[a b]")}


async def test_an_immutable_configmap_stays(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap() | {"immutable": True})
    status = (await api.patch(f"{ns.configmaps}/one", {"data": {"key": "x"}})).refused(422, "Invalid")
    assert causes(status) == {("FieldValueForbidden", "data")}
    assert "field is immutable when `immutable` is set" in status["message"]


async def test_string_data_of_a_secret_becomes_data(api: Api, ns: Namespace) -> None:
    data = {"a": base64.b64encode(b"old").decode(), "b": "Yg=="}
    body = thing("Secret", data=data, stringData={"a": "new"})
    made = await api.create(ns.path("secrets"), body)
    assert made["data"] == {"a": base64.b64encode(b"new").decode(), "b": "Yg=="}
    assert "stringData" not in made
    assert made["type"] == "Opaque"


async def test_string_data_of_a_patch_too(api: Api, ns: Namespace) -> None:
    secrets = ns.path("secrets")
    await api.create(secrets, thing("Secret", stringData={"a": "1"}))
    changed = (await api.patch(f"{secrets}/one", {"stringData": {"a": "2"}})).ok()
    assert changed["data"] == {"a": "Mg=="}
    assert "stringData" not in changed


async def test_the_type_of_a_secret_is_fixed(api: Api, ns: Namespace) -> None:
    secrets = ns.path("secrets")
    await api.create(secrets, thing("Secret"))
    status = (await api.patch(f"{secrets}/one", {"type": "other/type"})).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "type")}


async def test_data_of_a_secret_is_base64(api: Api, ns: Namespace) -> None:
    body = thing("Secret", data={"a": "not base64!"})
    status = (await api.post(ns.path("secrets"), body)).refused(400, "BadRequest")
    assert "illegal base64 data" in status["message"]


async def test_an_immutable_secret_stays(api: Api, ns: Namespace) -> None:
    secrets = ns.path("secrets")
    await api.create(secrets, thing("Secret", immutable=True, stringData={"a": "1"}))
    status = (await api.patch(f"{secrets}/one", {"stringData": {"a": "2"}})).refused(422, "Invalid")
    assert causes(status) == {("FieldValueForbidden", "data")}


async def test_a_service_account(api: Api, ns: Namespace) -> None:
    accounts = ns.path("serviceaccounts")
    made = await api.create(accounts, thing("ServiceAccount", automountServiceAccountToken=False))
    assert made["automountServiceAccountToken"] is False


def event(ns: Namespace, **fields: Any) -> dict[str, Any]:
    involved = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": ns.name, "uid": "u"}
    return thing("Event", "p.1", involvedObject=involved, reason="Tested", type="Normal", **fields)


async def test_an_event_is_seen_in_both_groups(api: Api, ns: Namespace) -> None:
    body = event(ns, message="It works.", count=3, source={"component": "suite"})
    made = await api.create(ns.path("events"), body)
    assert made["count"] == 3
    newer = (await api.get(f"{ns.path('events', 'events.k8s.io/v1')}/p.1")).ok()
    assert (newer["kind"], newer["apiVersion"]) == ("Event", "events.k8s.io/v1")
    assert newer["note"] == "It works."
    assert newer["regarding"]["name"] == "p"
    assert newer["deprecatedCount"] == 3
    assert newer["deprecatedSource"] == {"component": "suite"}


async def test_an_event_belongs_to_the_namespace_of_its_object(api: Api, ns: Namespace) -> None:
    body = event(ns)
    body["involvedObject"]["namespace"] = "elsewhere"
    status = (await api.post(ns.path("events"), body)).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "involvedObject.namespace")}


async def test_an_event_can_be_counted_up(api: Api, ns: Namespace) -> None:
    events = ns.path("events")
    await api.create(events, event(ns, count=1))
    patch = {"count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"}
    changed = (await api.patch(f"{events}/p.1", patch, STRATEGIC)).ok()
    assert changed["count"] == 2


async def test_a_lease_changes_hands(api: Api, ns: Namespace) -> None:
    leases = ns.path("leases", "coordination.k8s.io/v1")
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.123456Z",
    }
    made = await api.create(leases, thing("Lease", api_version="coordination.k8s.io/v1", spec=spec))
    assert made["spec"] == spec
    made["spec"]["holderIdentity"] = "b"
    assert (await api.put(f"{leases}/one", made)).ok()["spec"]["holderIdentity"] == "b"
    made["spec"]["holderIdentity"] = "c"
    (await api.put(f"{leases}/one", made)).refused(409, "Conflict")


async def test_a_lease_lasts(api: Api, ns: Namespace) -> None:
    leases = ns.path("leases", "coordination.k8s.io/v1")
    body = thing("Lease", api_version="coordination.k8s.io/v1", spec={"leaseDurationSeconds": 0})
    status = (await api.post(leases, body)).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "spec.leaseDurationSeconds")}


async def test_a_controller_revision_keeps_its_data(api: Api, ns: Namespace) -> None:
    revisions = ns.path("controllerrevisions", "apps/v1")
    data = {"spec": {"any": ["thing", None]}}
    made = await api.create(
        revisions, thing("ControllerRevision", api_version="apps/v1", revision=1, data=data)
    )
    assert (made["data"], made["revision"]) == (data, 1)
    status = (await api.patch(f"{revisions}/one", {"data": {"other": 1}})).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "data")}


def claim(**spec: Any) -> dict[str, Any]:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return thing("PersistentVolumeClaim", spec=wanted | {"storageClassName": "none-such"} | spec)


async def test_a_new_claim_is_pending_with_defaults(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.path("persistentvolumeclaims"), claim())
    assert made["status"] == {"phase": "Pending"}
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"accessModes": []}, "spec.accessModes"),
        ({"resources": {}}, "spec.resources[storage]"),
        ({"volumeMode": "Tape"}, "spec.volumeMode"),
    ],
)
async def test_a_claim_is_checked(api: Api, ns: Namespace, spec: dict[str, Any], field: str) -> None:
    status = (await api.post(ns.path("persistentvolumeclaims"), claim(**spec))).refused(422, "Invalid")
    assert field in {one for _, one in causes(status)}


async def test_a_claim_is_fixed_but_for_its_size(api: Api, ns: Namespace) -> None:
    claims = ns.path("persistentvolumeclaims")
    await api.create(claims, claim())
    answer = await api.patch(f"{claims}/one", {"spec": {"accessModes": ["ReadWriteMany"]}})
    assert causes(answer.refused(422, "Invalid")) == {("FieldValueForbidden", "spec")}


async def test_a_volume_is_bound_to_its_claim(api: Api, unique: str) -> None:
    volumes = "/api/v1/persistentvolumes"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": "nobody", "name": "nothing"},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "none-such",
    }
    made = await api.create(volumes, thing("PersistentVolume", unique, spec=spec))
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    bound = (await api.patch(f"{volumes}/{unique}/status", {"status": {"phase": "Bound"}})).ok()
    assert bound["status"]["phase"] == "Bound"
    (await api.delete(f"{volumes}/{unique}")).ok()
    await api.patch(f"{volumes}/{unique}", {"metadata": {"finalizers": None}})


async def test_a_volume_has_one_source(api: Api, unique: str) -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    answer = await api.post("/api/v1/persistentvolumes", thing("PersistentVolume", unique, spec=spec))
    assert causes(answer.refused(422, "Invalid")) == {("FieldValueRequired", "spec")}


async def test_a_storage_class_has_its_defaults(api: Api, unique: str) -> None:
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    body = thing("StorageClass", unique, "storage.k8s.io/v1", provisioner="example.com/none")
    made = await api.create(classes, body)
    assert made["reclaimPolicy"] == "Delete"
    assert made["volumeBindingMode"] == "Immediate"
    status = (await api.patch(f"{classes}/{unique}", {"provisioner": "other"})).refused(422, "Invalid")
    reason = "FieldValueForbidden" if api.target.minor == 34 else "FieldValueInvalid"
    assert causes(status) == {(reason, "provisioner")}
    (await api.delete(f"{classes}/{unique}")).ok()


async def test_a_quota_and_its_status(api: Api, ns: Namespace) -> None:
    quotas = ns.path("resourcequotas")
    hard = {"pods": "5", "requests.cpu": "2", "requests.memory": "1024Mi"}
    made = await api.create(quotas, thing("ResourceQuota", spec={"hard": hard}))
    assert made["spec"]["hard"] == {"pods": "5", "requests.cpu": "2", "requests.memory": "1Gi"}
    used = {"status": {"hard": {"pods": "5"}, "used": {"pods": "1"}}}
    assert (await api.patch(f"{quotas}/one/status", used)).ok()["status"]["used"]["pods"] == "1"


async def test_a_limit_range(api: Api, ns: Namespace) -> None:
    limit = {"type": "Container", "default": {"cpu": "1"}, "max": {"cpu": "2"}}
    made = await api.create(ns.path("limitranges"), thing("LimitRange", spec={"limits": [limit]}))
    (found,) = made["spec"]["limits"]
    assert found["max"] == {"cpu": "2"}
    assert found["defaultRequest"] == {"cpu": "1"}


async def test_a_node_and_its_status(api: Api, unique: str) -> None:
    nodes = "/api/v1/nodes"
    labels = {"kubernetes.io/hostname": unique}
    body = thing("Node", unique)
    body["metadata"]["labels"] = labels
    made = await api.create(nodes, body)
    assert made["metadata"]["labels"] == labels
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [ready],
        "nodeInfo": {"kubeletVersion": "v1.37.0"},
    }
    changed = (await api.patch(f"{nodes}/{unique}/status", {"status": status}, STRATEGIC)).ok()
    assert changed["status"]["capacity"]["cpu"] == "4"
    disk = {"type": "DiskPressure", "status": "False"}
    more = await api.patch(f"{nodes}/{unique}/status", {"status": {"conditions": [disk]}}, STRATEGIC)
    assert {one["type"] for one in more.ok()["status"]["conditions"]} == {"Ready", "DiskPressure"}
    cordoned = (await api.patch(f"{nodes}/{unique}", {"spec": {"unschedulable": True}}, STRATEGIC)).ok()
    assert cordoned["spec"]["unschedulable"] is True
    (await api.delete(f"{nodes}/{unique}")).ok()
    (await api.get(f"{nodes}/{unique}")).refused(404, "NotFound")


async def test_owner_references_are_checked(api: Api, ns: Namespace) -> None:
    body = configmap()
    body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]
    status = (await api.post(ns.configmaps, body)).refused(422, "Invalid")
    if api.target.minor == 34:
        assert causes(status) == {("FieldValueInvalid", "metadata.ownerReferences.uid")}
    else:
        assert causes(status) == {("FieldValueRequired", "metadata.ownerReferences[0].uid")}


async def test_one_owner_controls(api: Api, ns: Namespace) -> None:
    references = [
        {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
        for name in ("a", "b")
    ]
    body = configmap()
    body["metadata"]["ownerReferences"] = references
    status = (await api.post(ns.configmaps, body)).refused(422, "Invalid")
    assert {field for _, field in causes(status)} == {"metadata.ownerReferences"}
    assert "Only one reference can have Controller set to true" in status["message"]


async def test_put_makes_a_lease_that_is_not_there(api: Api, ns: Namespace) -> None:
    leases = ns.path("leases", "coordination.k8s.io/v1")
    body = thing("Lease", api_version="coordination.k8s.io/v1", spec={"holderIdentity": "a"})
    made = (await api.put(f"{leases}/one", body)).ok(201)
    assert made["metadata"]["uid"]


async def test_put_makes_no_configmap(api: Api, ns: Namespace) -> None:
    (await api.put(f"{ns.configmaps}/one", configmap())).refused(404, "NotFound")
