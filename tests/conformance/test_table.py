"""Tables: what `kubectl get` prints."""

from __future__ import annotations

from typing import Any

import pytest

from .client import TABLE, Api
from .conftest import Namespace
from .objects import configmap, pod, widget

KUBECTL = f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"


def columns(table: dict[str, Any]) -> list[tuple[str, int]]:
    return [(column["name"], column["priority"]) for column in table["columnDefinitions"]]


async def test_a_list_can_be_a_table(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(color="blue"))
    answer = await api.get(ns.widgets, accept=KUBECTL, limit=500)
    table = answer.ok()
    assert answer.type.startswith("application/json")
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(table["metadata"]["resourceVersion"]) > 0
    (row,) = table["rows"]
    assert row["cells"][:3] == ["one", 1, "blue"]


async def test_the_columns_of_a_custom_resource(api: Api, ns: Namespace) -> None:
    table = (await api.get(ns.widgets, accept=TABLE)).ok()
    assert columns(table) == [("Name", 0), ("Size", 0), ("Color", 0), ("Phase", 1), ("Ready", 0), ("Age", 0)]
    name, size, color, *_ = table["columnDefinitions"]
    assert (name["type"], name["format"]) == ("string", "name")
    assert name["description"].startswith("Name must be unique within a namespace.")
    assert (size["type"], size["format"]) == ("integer", "")
    assert color["description"] == "What it looks like."


async def test_a_value_that_is_missing_is_null(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (row,) = (await api.get(ns.widgets, accept=TABLE)).ok()["rows"]
    assert row["cells"][3:5] == [None, None]


async def test_a_column_may_pick_from_a_list(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    body = {"status": {"phase": "Up", "conditions": [{"type": "Ready", "status": "True"}]}}
    (await api.patch(f"{ns.widgets}/one/status", body)).ok()
    (row,) = (await api.get(ns.widgets, accept=TABLE)).ok()["rows"]
    assert row["cells"][3:5] == ["Up", "True"]


async def test_a_date_is_an_age(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (row,) = (await api.get(ns.widgets, accept=TABLE)).ok()["rows"]
    assert row["cells"][5].endswith("s")


async def test_a_row_has_the_metadata(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(labels={"a": "b"}))
    (row,) = (await api.get(ns.widgets, accept=TABLE)).ok()["rows"]
    part = row["object"]
    assert (part["kind"], part["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert part["metadata"]["uid"] == made["metadata"]["uid"]
    assert part["metadata"]["labels"] == {"a": "b"}
    assert "spec" not in part


async def test_include_object_gives_the_whole(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    (row,) = (await api.get(ns.widgets, accept=TABLE, includeObject="Object")).ok()["rows"]
    assert row["object"] == made


async def test_include_none_gives_no_object(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (row,) = (await api.get(ns.widgets, accept=TABLE, includeObject="None")).ok()["rows"]
    assert not row.get("object")


async def test_include_anything_else_is_400(api: Api, ns: Namespace) -> None:
    (await api.get(ns.widgets, accept=TABLE, includeObject="Some")).refused(400, "BadRequest")


async def test_one_object_can_be_a_table(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    table = (await api.get(f"{ns.widgets}/one", accept=KUBECTL)).ok()
    assert len(table["rows"]) == 1
    assert table["rows"][0]["cells"][0] == "one"
    assert table["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_refusal_is_a_status_and_no_table(api: Api, ns: Namespace) -> None:
    (await api.get(f"{ns.widgets}/none", accept=KUBECTL)).refused(404, "NotFound")


async def test_tables_come_in_pages(api: Api, ns: Namespace) -> None:
    for name in ("a", "b", "c"):
        await api.create(ns.widgets, widget(name))
    first = (await api.get(ns.widgets, accept=TABLE, limit=2)).ok()
    assert [row["cells"][0] for row in first["rows"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 1
    more = {"limit": 2, "continue": first["metadata"]["continue"]}
    rest = (await api.get(ns.widgets, accept=TABLE, **more)).ok()
    assert [row["cells"][0] for row in rest["rows"]] == ["c"]


async def test_a_watch_can_be_of_tables(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, accept=KUBECTL, resourceVersion=version) as watch:
        made = await api.create(ns.widgets, widget())
        first = await watch.next()
        assert first["type"] == "ADDED"
        table = first["object"]
        assert table["kind"] == "Table"
        assert table["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        assert table["columnDefinitions"][0]["name"] == "Name"
        assert table["rows"][0]["cells"][:2] == ["one", 1]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 2}})).ok()
        second = await watch.next()
        assert second["type"] == "MODIFIED"
        assert second["object"]["columnDefinitions"] is None
        assert second["object"]["rows"][0]["cells"][:2] == ["one", 2]


BUILT_IN_COLUMNS = {
    "/api/v1/pods": "Name, Ready, Status, Restarts, Age, IP*, Node*, Nominated Node*, Readiness Gates*",
    "/api/v1/nodes": "Name, Status, Roles, Age, Version, Internal-IP*, External-IP*, OS-Image*, "
    "Kernel-Version*, Container-Runtime*",
    "/api/v1/events": "Last Seen, Type, Reason, Object, Subobject*, Source*, Message, First Seen*, "
    "Count*, Name*",
    "/api/v1/persistentvolumeclaims": "Name, Status, Volume, Capacity, Access Modes, StorageClass, "
    "VolumeAttributesClass, Age, VolumeMode*",
    "/api/v1/persistentvolumes": "Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, "
    "VolumeAttributesClass, Reason, Age, VolumeMode*",
    "/api/v1/resourcequotas": "Name, Request, Limit, Age",
    "/apis/storage.k8s.io/v1/storageclasses": "Name, Provisioner, ReclaimPolicy, VolumeBindingMode, "
    "AllowVolumeExpansion, Age",
    "/apis/coordination.k8s.io/v1/leases": "Name, Holder, Age",
    "/apis/apps/v1/controllerrevisions": "Name, Controller, Revision, Age",
    "/api/v1/configmaps": "Name, Data, Age",
    "/api/v1/secrets": "Name, Type, Data, Age",
    "/api/v1/namespaces": "Name, Status, Age",
    "/api/v1/serviceaccounts": "Name, Age",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": "Name, Scope, Versions, Created At, Group*, "
    "Kind*, ShortNames*, Established*",
}
COLUMNS_OF_1_34 = {
    "/api/v1/serviceaccounts": "Name, Secrets, Age",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": "Name, Created At",
}


@pytest.mark.parametrize("path", BUILT_IN_COLUMNS)
async def test_the_columns_of(api: Api, path: str) -> None:
    """A star marks what only `-o wide` shows."""
    table = (await api.get(path, accept=TABLE)).ok()
    found = [name + "*" * (priority > 0) for name, priority in columns(table)]
    expected = BUILT_IN_COLUMNS | (COLUMNS_OF_1_34 if api.target.minor == 34 else {})
    assert ", ".join(found) == expected[path]


async def cells(api: Api, path: str) -> list[Any]:
    (row,) = (await api.get(path, accept=TABLE)).ok()["rows"]
    found: list[Any] = row["cells"]
    return found


async def test_the_row_of_a_new_pod(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    name, ready, status, restarts, age, *rest = await cells(api, f"{ns.pods}/one")
    assert (name, ready, status, str(restarts)) == ("one", "0/1", "Pending", "0")
    assert age.endswith("s")
    assert rest == ["<none>", "<none>", "<none>", "<none>"]


async def test_the_row_of_a_pod_that_runs(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName="somewhere"))
    started = "2026-01-01T00:00:00Z"
    status = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "restartCount": 0,
                "image": "i",
                "imageID": "i",
                "state": {"running": {"startedAt": started}},
            }
        ],
    }
    (await api.patch(f"{ns.pods}/one/status", {"status": status})).ok()
    name, ready, phase, _, _, ip, node, *_ = await cells(api, f"{ns.pods}/one")
    assert (name, ready, phase, ip, node) == ("one", "1/1", "Running", "10.1.2.3", "somewhere")
    (await api.delete(f"{ns.pods}/one")).ok()
    assert (await cells(api, f"{ns.pods}/one"))[2] == "Terminating"
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_the_row_of_a_pod_that_waits_says_why(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName="somewhere"))
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    container = {"name": "main", "ready": False, "restartCount": 2, "image": "i", "imageID": ""}
    body = {
        "status": {"phase": "Pending", "containerStatuses": [container | {"state": {"waiting": waiting}}]}
    }
    (await api.patch(f"{ns.pods}/one/status", body)).ok()
    row = await cells(api, f"{ns.pods}/one")
    assert row[1:3] == ["0/1", "ErrImagePull"]
    assert str(row[3]) == "2"
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_the_rows_of_data(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap(data={"a": "1", "b": "2"}))
    assert (await cells(api, f"{ns.configmaps}/one"))[:2] == ["one", 2]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}, "stringData": {"a": "1"}}
    await api.create(ns.path("secrets"), secret)
    assert (await cells(api, f"{ns.path('secrets')}/one"))[:3] == ["one", "Opaque", 1]


async def test_the_row_of_a_namespace(api: Api, ns: Namespace) -> None:
    assert (await cells(api, f"/api/v1/namespaces/{ns.name}"))[:2] == [ns.name, "Active"]


async def test_the_row_of_a_claim(api: Api, ns: Namespace) -> None:
    claims = ns.path("persistentvolumeclaims")
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "one"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none-such",
        },
    }
    await api.create(claims, body)
    row = await cells(api, f"{claims}/one")
    assert row[:4] == ["one", "Pending", "", ""]
    assert row[5] == "none-such"


async def test_metadata_alone_can_be_asked_for(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    found = (await api.get(f"{ns.widgets}/one", accept=accept)).ok()
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert found["metadata"] == made["metadata"]
    assert "spec" not in found
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listed = (await api.get(ns.widgets, accept=accept)).ok()
    assert listed["kind"] == "PartialObjectMetadataList"
    assert listed["items"][0]["metadata"]["uid"] == made["metadata"]["uid"]
