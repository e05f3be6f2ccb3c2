"""Delete: what comes back, what holds an object, what goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api, causes
from .conftest import Namespace
from .objects import GROUP, configmap, widget

FINALIZER = "conformance.hotvirt.io/hold"


def held(name: str = "one") -> dict[str, Any]:
    body = widget(name)
    body["metadata"]["finalizers"] = [FINALIZER]
    return body


async def release(api: Api, path: str) -> None:
    (await api.patch(path, {"metadata": {"finalizers": None}})).ok()


@pytest.mark.parametrize("kind", ["widgets", "configmaps"])
async def test_delete_answers_with_a_success_and_the_uid(api: Api, ns: Namespace, kind: str) -> None:
    collection = getattr(ns, kind)
    made = await api.create(collection, widget() if kind == "widgets" else configmap())
    status = (await api.delete(f"{collection}/one")).ok()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Success")
    details = {"name": "one", "kind": kind, "uid": made["metadata"]["uid"]}
    assert status["details"] == details | ({"group": GROUP} if kind == "widgets" else {})
    (await api.get(f"{collection}/one")).refused(404, "NotFound")


async def test_delete_of_a_missing_object_is_not_found(api: Api, ns: Namespace) -> None:
    (await api.delete(f"{ns.widgets}/none")).refused(404, "NotFound")


async def test_a_finalizer_holds_the_object(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    made = await api.create(ns.widgets, held())
    deleted = (await api.delete(path)).ok()
    assert deleted["kind"] == "Widget"
    assert deleted["metadata"]["deletionTimestamp"]
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    assert deleted["metadata"]["generation"] == made["metadata"]["generation"] + 1
    assert (await api.get(path)).ok()["metadata"]["deletionTimestamp"]
    await release(api, path)
    (await api.get(path)).refused(404, "NotFound")


async def test_removing_the_last_finalizer_answers_with_the_object(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    (await api.delete(path)).ok()
    last = (await api.patch(path, {"metadata": {"finalizers": None}})).ok()
    assert "finalizers" not in last["metadata"]
    assert last["kind"] == "Widget"


async def test_a_second_delete_changes_nothing(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    first = (await api.delete(path)).ok()
    second = (await api.delete(path)).ok()
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert second["metadata"]["deletionTimestamp"] == first["metadata"]["deletionTimestamp"]
    await release(api, path)


async def test_a_deleted_object_takes_no_new_finalizers(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    (await api.delete(path)).ok()
    patch = {"metadata": {"finalizers": [FINALIZER, "conformance.hotvirt.io/more"]}}
    status = (await api.patch(path, patch)).refused(422, "Invalid")
    assert causes(status) == {("FieldValueForbidden", "metadata.finalizers")}
    assert "no new finalizers can be added if the object is being deleted" in status["message"]
    await release(api, path)


async def test_a_deleted_object_can_still_be_changed(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    (await api.delete(path)).ok()
    assert (await api.patch(path, {"spec": {"size": 3}})).ok()["spec"]["size"] == 3
    await release(api, path)


async def test_the_deletion_mark_cannot_be_taken_back(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    marked = (await api.delete(path)).ok()["metadata"]["deletionTimestamp"]
    answer = await api.patch(path, {"metadata": {"deletionTimestamp": None, "labels": {"a": "b"}}})
    assert answer.ok()["metadata"]["deletionTimestamp"] == marked
    await release(api, path)


async def test_a_name_is_taken_until_its_object_is_gone(api: Api, ns: Namespace) -> None:
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    (await api.delete(path)).ok()
    status = (await api.post(ns.widgets, widget())).refused(409, "AlreadyExists")
    assert status["message"] == f'object is being deleted: widgets.{GROUP} "one" already exists'
    await release(api, path)
    await api.create(ns.widgets, widget())


async def test_a_finalizer_needs_a_domain(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["finalizers"] = ["plain"]
    answer = await api.post(ns.widgets, body)
    assert answer.status == 201, answer.text
    assert answer.warnings == [
        '299 - "metadata.finalizers: \\"plain\\": prefer a domain-qualified finalizer name '
        'to avoid accidental conflicts with other finalizer writers"'
    ]
    await release(api, f"{ns.widgets}/one")


async def test_a_wrong_uid_precondition_is_a_conflict(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    other = "00000000-0000-0000-0000-000000000000"
    answer = await api.delete(f"{ns.widgets}/one", {"preconditions": {"uid": other}})
    status = answer.refused(409, "Conflict")
    uid = made["metadata"]["uid"]
    assert status["message"] == (
        f'Operation cannot be fulfilled on Widget.{GROUP} "one": the UID in the precondition ({other}) '
        f"does not match the UID in record ({uid}). The object might have been deleted and then recreated"
    )
    (await api.get(f"{ns.widgets}/one")).ok()


async def test_a_wrong_resource_version_precondition_is_a_conflict(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.delete(f"{ns.widgets}/one", {"preconditions": {"resourceVersion": "1"}})
    status = answer.refused(409, "Conflict")
    assert "the ResourceVersion in the precondition (1) does not match" in status["message"]


async def test_right_preconditions_let_it_go(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    right = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
    assert (await api.delete(f"{ns.widgets}/one", {"preconditions": right})).ok()["status"] == "Success"


async def test_delete_options_may_have_kind_and_version(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert (await api.delete(f"{ns.configmaps}/one", options)).ok()["status"] == "Success"


async def test_delete_options_may_be_in_the_query(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    deleted = (await api.delete(f"{ns.widgets}/one", propagationPolicy="Foreground")).ok()
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_an_unknown_propagation_policy_is_invalid(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.delete(f"{ns.widgets}/one", {"propagationPolicy": "Sideways"})
    status = answer.refused(422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "propagationPolicy"


@pytest.mark.parametrize(
    ("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]
)
async def test_foreground_and_orphan_are_finalizers(
    api: Api, ns: Namespace, policy: str, finalizer: str
) -> None:
    await api.create(ns.widgets, held())
    path = f"{ns.widgets}/one"
    deleted = (await api.delete(path, {"propagationPolicy": policy})).ok()
    assert set(deleted["metadata"]["finalizers"]) == {FINALIZER, finalizer}
    assert deleted["metadata"]["deletionTimestamp"]
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    await release(api, path)


async def test_background_after_foreground_lets_it_go(api: Api, ns: Namespace) -> None:
    """A later delete with another policy takes the finalizer of the earlier one away."""
    path = f"{ns.widgets}/one"
    await api.create(ns.widgets, held())
    (await api.delete(path, {"propagationPolicy": "Orphan"})).ok()
    again = (await api.delete(path, {"propagationPolicy": "Background"})).ok()
    assert again["metadata"]["finalizers"] == [FINALIZER]
    await release(api, path)


async def test_an_old_client_may_send_orphan_dependents(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, held())
    path = f"{ns.widgets}/one"
    deleted = (await api.delete(path, {"orphanDependents": True})).ok()
    assert "orphan" in deleted["metadata"]["finalizers"]
    await release(api, path)


async def test_a_collection_is_deleted_with_a_selector(api: Api, ns: Namespace) -> None:
    for name in ("a", "b"):
        await api.create(ns.widgets, widget(name, labels={"go": "yes"}))
    await api.create(ns.widgets, widget("c"))
    deleted = (await api.delete(ns.widgets, labelSelector="go=yes")).ok()
    assert deleted["kind"] == "WidgetList"
    assert {item["metadata"]["name"] for item in deleted["items"]} == {"a", "b"}
    left = (await api.get(ns.widgets)).ok()["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


async def test_a_collection_of_built_ins_is_deleted(api: Api, ns: Namespace) -> None:
    for name in ("a", "b"):
        await api.create(ns.configmaps, configmap(name))
    deleted = (await api.delete(ns.configmaps, fieldSelector="metadata.name=a")).ok()
    assert deleted["kind"] == "ConfigMapList"
    assert (await api.get(f"{ns.configmaps}/b")).status == 200
    (await api.get(f"{ns.configmaps}/a")).refused(404, "NotFound")


async def test_delete_of_a_collection_leaves_what_is_held(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, held("a"))
    await api.create(ns.widgets, widget("b"))
    (await api.delete(ns.widgets)).ok()
    (left,) = (await api.get(ns.widgets)).ok()["items"]
    assert left["metadata"]["name"] == "a"
    assert left["metadata"]["deletionTimestamp"]
    await release(api, f"{ns.widgets}/a")


async def test_unknown_fields_in_delete_options_are_ignored(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    assert (await api.delete(f"{ns.configmaps}/one", {"unknown": 1})).ok()["status"] == "Success"
