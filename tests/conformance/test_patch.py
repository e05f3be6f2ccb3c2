"""The patch types: merge, JSON, strategic merge."""

from __future__ import annotations

from typing import Any

import pytest

from .client import JSON, JSON_PATCH, MERGE, STRATEGIC, Api, causes
from .conftest import Namespace
from .objects import GROUP, OTHER_IMAGE, OURS, configmap, pod, widget


async def test_a_merge_patch_merges_objects(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(part={"weight": 7, "label": "a"}))
    changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"part": {"label": "b"}}})).ok()
    assert changed["spec"]["part"] == {"weight": 7, "label": "b"}


async def test_a_merge_patch_replaces_lists(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(parts=[{"name": "a"}, {"name": "b"}]))
    changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"parts": [{"name": "c"}]}})).ok()
    assert changed["spec"]["parts"] == [{"name": "c", "count": 1}]


async def test_a_null_in_a_merge_patch_removes(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(ratio=0.5))
    changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"ratio": None}})).ok()
    assert "ratio" not in changed["spec"]


async def test_a_default_comes_back_when_its_field_is_removed(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(color="blue"))
    changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"color": None}})).ok()
    assert changed["spec"]["color"] == "red"


@pytest.mark.parametrize("patch_type", [MERGE, JSON_PATCH, STRATEGIC])
async def test_a_patch_that_changes_nothing_writes_nothing(api: Api, ns: Namespace, patch_type: str) -> None:
    made = await api.create(ns.configmaps, configmap())
    patch: Any = {"data": {"key": "value"}}
    if patch_type == JSON_PATCH:
        patch = [{"op": "replace", "path": "/data/key", "value": "value"}]
    version = made["metadata"]["resourceVersion"]
    async with api.watch(ns.configmaps, resourceVersion=version, fieldSelector=OURS) as watch:
        same = (await api.patch(f"{ns.configmaps}/one", patch, patch_type)).ok()
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        await api.create(ns.configmaps, configmap("next"))
        await watch.expect("ADDED", "next")


async def test_a_patch_with_a_stale_resource_version_is_a_conflict(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 2}})).ok()
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"size": 3}}
    status = (await api.patch(f"{ns.widgets}/one", stale)).refused(409, "Conflict")
    assert status["message"] == (
        f'Operation cannot be fulfilled on widgets.{GROUP} "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_patch_may_not_change_the_uid(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    other = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "spec": {"size": 3}}
    status = (await api.patch(f"{ns.widgets}/one", other)).refused(422, "Invalid")
    assert causes(status) == {("FieldValueInvalid", "metadata.uid")}


async def test_a_patch_of_a_missing_object_is_not_found(api: Api, ns: Namespace) -> None:
    (await api.patch(f"{ns.widgets}/none", {"spec": {"size": 2}})).refused(404, "NotFound")


async def test_a_patch_may_not_rename(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.patch(f"{ns.widgets}/one", {"metadata": {"name": "two"}})
    status = answer.refused(400, "BadRequest")
    assert status["message"] == "the name of the object (two) does not match the name on the URL (one)"


async def test_a_merge_patch_that_is_no_object_is_400(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (await api.patch(f"{ns.widgets}/one", b"[1, 2]")).refused(400, "BadRequest")


async def test_a_patch_of_plain_json_is_415(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    answer = await api.patch(f"{ns.configmaps}/one", {}, JSON)
    answer.refused(415, "UnsupportedMediaType")


async def test_a_strategic_patch_of_a_custom_resource_is_415(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    status = (await api.patch(f"{ns.widgets}/one", {}, STRATEGIC)).refused(415, "UnsupportedMediaType")
    assert "application/json-patch+json, application/merge-patch+json" in status["message"]
    assert "strategic" not in status["message"]


async def test_a_json_patch_does_its_operations_in_order(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget(parts=[{"name": "a"}, {"name": "b"}]))
    patch = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "replace", "path": "/spec/size", "value": 2},
        {"op": "add", "path": "/spec/parts/-", "value": {"name": "c"}},
        {"op": "remove", "path": "/spec/parts/0"},
        {"op": "add", "path": "/spec/tags", "value": {"a/b": "c"}},
        {"op": "copy", "from": "/spec/tags/a~1b", "path": "/spec/tags/copied"},
        {"op": "move", "from": "/spec/tags/a~1b", "path": "/spec/tags/moved"},
    ]
    changed = (await api.patch(f"{ns.widgets}/one", patch, JSON_PATCH)).ok()
    assert changed["spec"]["size"] == 2
    assert [part["name"] for part in changed["spec"]["parts"]] == ["b", "c"]
    assert changed["spec"]["tags"] == {"copied": "c", "moved": "c"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/size", "value": 99},
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "add", "path": "/spec/nothing/deeper", "value": 1},
    ],
)
async def test_a_json_patch_that_does_not_apply_is_invalid(
    api: Api, ns: Namespace, operation: dict[str, Any]
) -> None:
    made = await api.create(ns.widgets, widget())
    answer = await api.patch(f"{ns.widgets}/one", [operation], JSON_PATCH)
    message = "the server rejected our request due to an error in our request"
    status = answer.refused(422, "Invalid", message)
    assert not status.get("details")  # kubectl prints causes instead of the message, if there are any
    assert (await api.get(f"{ns.widgets}/one")).ok() == made


async def test_a_json_patch_may_replace_what_is_not_there(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    patch = [{"op": "replace", "path": "/spec/ratio", "value": 0.5}]
    assert (await api.patch(f"{ns.widgets}/one", patch, JSON_PATCH)).ok()["spec"]["ratio"] == 0.5


async def test_a_json_patch_with_an_unknown_operation_is_invalid(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.patch(f"{ns.widgets}/one", [{"op": "jump", "path": "/spec"}], JSON_PATCH)
    answer.refused(422, "Invalid")


async def test_a_json_patch_that_is_no_list_is_400(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    (await api.patch(f"{ns.widgets}/one", {"op": "add"}, JSON_PATCH)).refused(400, "BadRequest")


async def test_a_patched_object_is_validated(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    status = (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 0}})).refused(422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "spec.size"


async def test_a_strategic_patch_merges_lists_by_their_key(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    body = {"spec": {"containers": [{"name": "main", "image": OTHER_IMAGE}]}}
    changed = (await api.patch(f"{ns.pods}/one", body, STRATEGIC)).ok()
    (container,) = changed["spec"]["containers"]
    assert container["image"] == OTHER_IMAGE
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "64Mi"}}


async def status_of(api: Api, ns: Namespace, *patches: dict[str, Any]) -> dict[str, Any]:
    """The status of a new Pod after these strategic patches."""
    await api.create(ns.pods, pod())
    for patch in patches:
        changed = (await api.patch(f"{ns.pods}/one/status", {"status": patch}, STRATEGIC)).ok()
    status: dict[str, Any] = changed["status"]
    return status


def condition(kind: str, value: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": value} | more


async def test_a_strategic_patch_merges_conditions_by_type(api: Api, ns: Namespace) -> None:
    status = await status_of(
        api,
        ns,
        {"conditions": [condition("A", "True", reason="Kept"), condition("B", "True")]},
        {"conditions": [condition("A", "False")]},
    )
    by_type = {one["type"]: one for one in status["conditions"]}
    assert by_type["A"]["status"] == "False"
    assert by_type["A"]["reason"] == "Kept"
    assert by_type["B"]["status"] == "True"


async def test_patch_delete_takes_one_out_of_a_list(api: Api, ns: Namespace) -> None:
    status = await status_of(
        api,
        ns,
        {"conditions": [condition("A", "True"), condition("B", "True")]},
        {"conditions": [{"$patch": "delete", "type": "A"}]},
    )
    assert [one["type"] for one in status["conditions"]] == ["B"]


async def test_patch_replace_replaces_a_whole_list(api: Api, ns: Namespace) -> None:
    status = await status_of(
        api,
        ns,
        {"conditions": [condition("A", "True"), condition("B", "True")]},
        {"conditions": [condition("C", "True"), {"$patch": "replace"}]},
    )
    assert [one["type"] for one in status["conditions"]] == ["C"]


async def test_set_element_order_orders_a_list(api: Api, ns: Namespace) -> None:
    status = await status_of(
        api,
        ns,
        {"conditions": [condition("A", "True"), condition("B", "True")]},
        {
            "$setElementOrder/conditions": [{"type": "C"}, {"type": "B"}, {"type": "A"}],
            "conditions": [condition("C", "True")],
        },
    )
    assert [one["type"] for one in status["conditions"]] == ["C", "B", "A"]


async def test_patch_replace_replaces_a_map(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap(data={"a": "1", "b": "2"}))
    body = {"data": {"$patch": "replace", "c": "3"}}
    assert (await api.patch(f"{ns.configmaps}/one", body, STRATEGIC)).ok()["data"] == {"c": "3"}


async def test_patch_delete_empties_a_map(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap(data={"a": "1"}, labels={"x": "y"}))
    body = {"metadata": {"labels": {"$patch": "delete"}}}
    changed = (await api.patch(f"{ns.configmaps}/one", body, STRATEGIC)).ok()
    assert "labels" not in changed["metadata"]


async def test_a_null_in_a_strategic_patch_removes(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap(data={"a": "1", "b": "2"}))
    changed = (await api.patch(f"{ns.configmaps}/one", {"data": {"a": None}}, STRATEGIC)).ok()
    assert changed["data"] == {"b": "2"}


async def test_finalizers_merge_as_a_set_of_words(api: Api, ns: Namespace) -> None:
    path = f"{ns.configmaps}/one"
    body = configmap()
    body["metadata"]["finalizers"] = ["hotvirt.io/a"]
    await api.create(ns.configmaps, body)
    both = (await api.patch(path, {"metadata": {"finalizers": ["hotvirt.io/b"]}}, STRATEGIC)).ok()
    assert sorted(both["metadata"]["finalizers"]) == ["hotvirt.io/a", "hotvirt.io/b"]
    without = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["hotvirt.io/a"]}}
    assert (await api.patch(path, without, STRATEGIC)).ok()["metadata"]["finalizers"] == ["hotvirt.io/b"]
    (await api.patch(path, {"metadata": {"finalizers": None}})).ok()


async def test_owner_references_merge_by_uid(api: Api, ns: Namespace) -> None:
    owners = [await api.create(ns.configmaps, configmap(name)) for name in ("a", "b")]
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
        for o in owners
    ]
    body = configmap()
    body["metadata"]["ownerReferences"] = [references[0]]
    await api.create(ns.configmaps, body)
    path = f"{ns.configmaps}/one"
    both = (await api.patch(path, {"metadata": {"ownerReferences": [references[1]]}}, STRATEGIC)).ok()
    assert {ref["name"] for ref in both["metadata"]["ownerReferences"]} == {"a", "b"}
    gone = {"$patch": "delete", "uid": owners[0]["metadata"]["uid"]}
    one = (await api.patch(path, {"metadata": {"ownerReferences": [gone]}}, STRATEGIC)).ok()
    assert [ref["name"] for ref in one["metadata"]["ownerReferences"]] == ["b"]


async def test_retain_keys_drops_the_other_members_of_a_union(api: Api, ns: Namespace, unique: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": unique},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
        },
    }
    await api.create("/api/v1/persistentvolumes", claim)
    body = {"spec": {"$retainKeys": ["capacity", "accessModes", "hostPath"], "capacity": {"storage": "2Gi"}}}
    path = f"/api/v1/persistentvolumes/{unique}"
    changed = (await api.patch(path, body, STRATEGIC, dryRun="All")).ok()
    assert changed["spec"]["capacity"] == {"storage": "2Gi"}
    assert changed["spec"]["hostPath"]["path"] == "/nowhere"
    await api.delete(path)


async def test_a_list_without_a_merge_key_is_replaced(api: Api, ns: Namespace) -> None:
    body = pod(tolerations=[{"key": "a", "operator": "Exists"}])
    await api.create(ns.pods, body)
    made = (await api.get(f"{ns.pods}/one")).ok()
    more = [*made["spec"]["tolerations"], {"key": "b", "operator": "Exists"}]
    changed = (await api.patch(f"{ns.pods}/one", {"spec": {"tolerations": more}}, STRATEGIC)).ok()
    assert changed["spec"]["tolerations"] == more
