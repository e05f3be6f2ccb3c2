"""The status subresource, and what raises the generation."""

from __future__ import annotations

from .client import JSON_PATCH, Api
from .conftest import Namespace
from .objects import widget


async def test_status_is_written_through_its_subresource(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    changed = (await api.patch(f"{ns.widgets}/one/status", {"status": {"phase": "Ready"}})).ok()
    assert changed["status"] == {"phase": "Ready"}
    assert (await api.get(f"{ns.widgets}/one/status")).ok() == (await api.get(f"{ns.widgets}/one")).ok()


async def test_status_sent_to_the_object_is_ignored(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (await api.patch(f"{ns.widgets}/one/status", {"status": {"phase": "Ready"}})).ok()
    changed = (await api.patch(f"{ns.widgets}/one", {"status": {"phase": "Forged"}})).ok()
    assert changed["status"] == {"phase": "Ready"}


async def test_a_put_without_status_keeps_the_status(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    latest = (await api.patch(f"{ns.widgets}/one/status", {"status": {"phase": "Ready"}})).ok()
    del latest["status"]
    latest["spec"]["size"] = 2
    changed = (await api.put(f"{ns.widgets}/one", latest)).ok()
    assert changed["status"] == {"phase": "Ready"}


async def test_spec_sent_to_status_is_ignored(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    body = {"spec": {"size": 50}, "status": {"phase": "Ready"}}
    changed = (await api.patch(f"{ns.widgets}/one/status", body)).ok()
    assert changed["spec"] == made["spec"]


async def test_labels_sent_to_status_of_a_custom_resource_are_ignored(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    body = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Ready"}}
    changed = (await api.patch(f"{ns.widgets}/one/status", body)).ok()
    assert "labels" not in changed["metadata"]


async def test_status_is_replaced_by_put(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    made["status"] = {"phase": "Ready"}
    changed = (await api.put(f"{ns.widgets}/one/status", made)).ok()
    assert changed["status"] == {"phase": "Ready"}
    (await api.put(f"{ns.widgets}/one/status", made)).refused(409, "Conflict")


async def test_status_is_validated(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.patch(f"{ns.widgets}/one/status", {"status": {"phase": 7}})
    status = answer.refused(422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "status.phase"


async def test_status_is_pruned(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    body = {"status": {"phase": "Ready", "unknown": 1}}
    changed = (await api.patch(f"{ns.widgets}/one/status", body)).ok()
    assert changed["status"] == {"phase": "Ready"}


async def test_status_takes_json_patches(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    patch = [{"op": "add", "path": "/status", "value": {"phase": "Ready"}}]
    changed = (await api.patch(f"{ns.widgets}/one/status", patch, JSON_PATCH)).ok()
    assert changed["status"] == {"phase": "Ready"}


async def test_status_of_a_missing_object_is_not_found(api: Api, ns: Namespace) -> None:
    (await api.patch(f"{ns.widgets}/none/status", {"status": {}})).refused(404, "NotFound")


async def test_generation_follows_the_spec_alone(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    assert (await api.create(ns.widgets, widget()))["metadata"]["generation"] == 1
    labelled = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
    assert labelled["metadata"]["generation"] == 1
    finalized = (await api.patch(path, {"metadata": {"finalizers": ["hotvirt.io/test"]}})).ok()
    assert finalized["metadata"]["generation"] == 1
    reported = (await api.patch(f"{path}/status", {"status": {"phase": "Ready"}})).ok()
    assert reported["metadata"]["generation"] == 1
    changed = (await api.patch(path, {"spec": {"size": 2}})).ok()
    assert changed["metadata"]["generation"] == 2
    same = (await api.patch(path, {"spec": {"size": 2}})).ok()
    assert same["metadata"]["generation"] == 2
    (await api.patch(path, {"metadata": {"finalizers": None}})).ok()


async def test_every_change_has_a_larger_resource_version(api: Api, ns: Namespace) -> None:
    versions = [int((await api.create(ns.widgets, widget()))["metadata"]["resourceVersion"])]
    for size in (2, 3):
        changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"size": size}})).ok()
        versions.append(int(changed["metadata"]["resourceVersion"]))
    assert versions == sorted(set(versions))
