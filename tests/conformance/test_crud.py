"""Create, read and replace: what the server fills in, what it keeps, what it refuses."""

from __future__ import annotations

import re

import pytest

from .client import Api
from .conftest import Namespace
from .objects import GROUP, configmap, widget

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


async def test_create_answers_201_with_what_the_server_filled_in(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    metadata = made["metadata"]
    assert re.fullmatch(UUID, metadata["uid"])
    assert re.fullmatch(TIME, metadata["creationTimestamp"])
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["generation"] == 1
    assert metadata["namespace"] == ns.name
    assert (made["apiVersion"], made["kind"]) == (f"{GROUP}/v1", "Widget")


async def test_what_was_created_can_be_read(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    assert (await api.get(f"{ns.widgets}/one")).ok() == made


async def test_a_body_without_content_type_is_json(api: Api, ns: Namespace) -> None:
    made = (await api.post(ns.configmaps, configmap(), content_type=None)).ok(201)
    assert made["data"] == {"key": "value"}


async def test_a_body_may_be_yaml(api: Api, ns: Namespace) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: b}\n"
    made = (await api.post(ns.configmaps, body, content_type="application/yaml")).ok(201)
    assert made["data"] == {"a": "b"}


async def test_a_body_of_unknown_type_is_415(api: Api, ns: Namespace) -> None:
    answer = await api.post(ns.configmaps, b"<one/>", content_type="application/xml")
    status = answer.refused(415, "UnsupportedMediaType")
    assert "application/json" in status["message"]


async def test_a_body_that_is_not_json_is_400(api: Api, ns: Namespace) -> None:
    (await api.post(ns.configmaps, b"{nonsense")).refused(400, "BadRequest")


async def test_an_empty_body_is_400(api: Api, ns: Namespace) -> None:
    (await api.post(ns.configmaps, b"")).refused(400, "BadRequest")


async def test_generate_name_adds_five_characters(api: Api, ns: Namespace) -> None:
    body = configmap()
    body["metadata"] = {"generateName": "made-"}
    names = {(await api.create(ns.configmaps, body))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"made-[a-z0-9]{5}", name) for name in names)


async def test_generate_name_of_a_custom_resource(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"] = {"generateName": "made-"}
    made = await api.create(ns.widgets, body)
    assert re.fullmatch(r"made-[a-z0-9]{5}", made["metadata"]["name"])
    assert made["metadata"]["generateName"] == "made-"


async def test_neither_name_nor_generate_name_is_invalid(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"] = {}
    status = (await api.post(ns.widgets, body)).refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueRequired", "metadata.name")
    assert cause["message"] == "Required value: name or generateName is required"


async def test_create_of_an_existing_name_is_already_exists(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    message = f'widgets.{GROUP} "one" already exists'
    status = (await api.post(ns.widgets, widget())).refused(409, "AlreadyExists", message)
    assert status["details"] == {"name": "one", "group": GROUP, "kind": "widgets"}


async def test_a_missing_object_is_not_found(api: Api, ns: Namespace) -> None:
    status = (await api.get(f"{ns.widgets}/none")).refused(404, "NotFound")
    assert status["message"] == f'widgets.{GROUP} "none" not found'
    assert status["details"] == {"name": "none", "group": GROUP, "kind": "widgets"}


async def test_a_missing_core_object_has_no_group_in_its_name(api: Api, ns: Namespace) -> None:
    status = (await api.get(f"{ns.configmaps}/none")).refused(404, "NotFound")
    assert status["message"] == 'configmaps "none" not found'
    assert status["details"] == {"name": "none", "kind": "configmaps"}


async def test_what_the_server_owns_is_not_taken_from_the_body(api: Api, ns: Namespace) -> None:
    body = configmap()
    body["metadata"] |= {
        "uid": "00000000-0000-0000-0000-000000000000",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "selfLink": "/here",
    }
    metadata = (await api.create(ns.configmaps, body))["metadata"]
    assert metadata["uid"] != body["metadata"]["uid"]
    assert not metadata["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in metadata


async def test_create_with_a_resource_version_is_refused(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["resourceVersion"] = "1"
    status = (await api.post(ns.widgets, body)).json
    assert status["message"] == "resourceVersion should not be set on objects to be created"


async def test_another_namespace_in_the_body_is_400(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["namespace"] = "elsewhere"
    message = "the namespace of the provided object does not match the namespace sent on the request"
    (await api.post(ns.widgets, body)).refused(400, "BadRequest", message)


async def test_another_kind_in_the_body_is_400(api: Api, ns: Namespace) -> None:
    status = (await api.post(ns.configmaps, widget())).refused(400, "BadRequest")
    assert "does not match the expected" in status["message"] or "no kind" in status["message"]


async def test_create_in_a_namespace_that_is_not_there_is_404(api: Api, unique: str) -> None:
    nowhere = Namespace(unique)
    message = f'namespaces "{unique}" not found'
    status = (await api.post(nowhere.configmaps, configmap())).refused(404, "NotFound", message)
    assert status["details"] == {"name": unique, "kind": "namespaces"}
    (await api.post(nowhere.widgets, widget())).refused(404, "NotFound", message)


async def test_a_list_in_a_namespace_that_is_not_there_is_empty(api: Api, unique: str) -> None:
    assert (await api.get(Namespace(unique).widgets)).ok()["items"] == []


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "sla/sh", "a" * 254])
async def test_a_name_that_is_no_dns_name_is_invalid(api: Api, ns: Namespace, name: str) -> None:
    status = (await api.post(ns.configmaps, configmap(name))).refused(422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "metadata.name"
    assert status["message"].startswith(f'ConfigMap "{name}" is invalid: metadata.name: Invalid value: ')


async def test_labels_that_are_no_labels_are_invalid(api: Api, ns: Namespace) -> None:
    body = configmap(labels={"a b": "c", "fine": "not fine"})
    status = (await api.post(ns.configmaps, body)).refused(422, "Invalid")
    assert {cause["field"] for cause in status["details"]["causes"]} == {"metadata.labels"}
    assert len(status["details"]["causes"]) == 2


async def test_annotations_over_256_kib_are_invalid(api: Api, ns: Namespace) -> None:
    body = configmap()
    body["metadata"]["annotations"] = {"big": "x" * 262145}
    status = (await api.post(ns.configmaps, body)).refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "metadata.annotations"
    assert cause["message"] == "Too long: may not be more than 262144 bytes"


async def test_put_replaces_the_object(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.configmaps, configmap(labels={"a": "b"}))
    body = configmap(data={"other": "value"})
    changed = (await api.put(f"{ns.configmaps}/one", body)).ok()
    assert changed["data"] == {"other": "value"}
    assert "labels" not in changed["metadata"]
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert changed["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


async def test_put_with_a_stale_resource_version_is_a_conflict(api: Api, ns: Namespace) -> None:
    stale = await api.create(ns.widgets, widget())
    (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 2}})).ok()
    stale["spec"]["size"] = 3
    status = (await api.put(f"{ns.widgets}/one", stale)).refused(409, "Conflict")
    assert status["message"] == (
        f'Operation cannot be fulfilled on widgets.{GROUP} "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert status["details"] == {"name": "one", "group": GROUP, "kind": "widgets"}


async def test_put_of_a_custom_resource_needs_a_resource_version(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    status = (await api.put(f"{ns.widgets}/one", widget(size=2))).refused(422, "Invalid")
    assert status["message"] == (
        f'widgets.{GROUP} "one" is invalid: metadata.resourceVersion: Invalid value: 0: '
        "must be specified for an update"
    )


async def test_put_with_another_uid_is_a_conflict(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.configmaps, configmap())
    made["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    del made["metadata"]["resourceVersion"]
    status = (await api.put(f"{ns.configmaps}/one", made)).refused(409, "Conflict")
    assert "Precondition failed: UID in precondition: 00000000-" in status["message"]


async def test_put_with_another_name_is_400(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    message = "the name of the object (two) does not match the name on the URL (one)"
    (await api.put(f"{ns.configmaps}/one", configmap("two"))).refused(400, "BadRequest", message)


async def test_put_with_another_namespace_is_400(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.configmaps, configmap())
    made["metadata"]["namespace"] = "elsewhere"
    (await api.put(f"{ns.configmaps}/one", made)).refused(400, "BadRequest")


async def test_put_of_a_missing_custom_resource_is_404(api: Api, ns: Namespace) -> None:
    (await api.put(f"{ns.widgets}/one", widget())).refused(404, "NotFound")


async def test_put_of_what_is_there_already_keeps_the_resource_version(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    again = (await api.put(f"{ns.widgets}/one", made)).ok()
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_dry_run_answers_as_if_and_keeps_nothing(api: Api, ns: Namespace) -> None:
    made = (await api.post(ns.widgets, widget(), dryRun="All")).ok(201)
    assert re.fullmatch(UUID, made["metadata"]["uid"])
    assert made["spec"]["color"] == "red"
    (await api.get(f"{ns.widgets}/one")).refused(404, "NotFound")


async def test_dry_run_of_a_change_keeps_nothing(api: Api, ns: Namespace) -> None:
    before = await api.create(ns.widgets, widget())
    changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 9}}, dryRun="All")).ok()
    assert changed["spec"]["size"] == 9
    assert changed["metadata"]["generation"] == 2
    deleted = (await api.delete(f"{ns.widgets}/one", dryRun="All")).ok()
    assert deleted["status"] == "Success"
    assert (await api.get(f"{ns.widgets}/one")).ok() == before


async def test_dry_run_still_refuses(api: Api, ns: Namespace) -> None:
    (await api.post(ns.widgets, widget(size=1000), dryRun="All")).refused(422, "Invalid")
    await api.create(ns.widgets, widget())
    (await api.post(ns.widgets, widget(), dryRun="All")).refused(409, "AlreadyExists")


async def test_dry_run_knows_only_all(api: Api, ns: Namespace) -> None:
    status = (await api.post(ns.widgets, widget(), dryRun="Foo")).refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueNotSupported", "dryRun")


async def test_a_verb_that_a_resource_has_not_is_405(api: Api, ns: Namespace) -> None:
    status = (await api.put(ns.configmaps, configmap())).refused(405, "MethodNotAllowed")
    assert status["message"] == "the server does not allow this method on the requested resource"


async def test_status_and_generation_of_a_new_object_are_the_servers(api: Api, ns: Namespace) -> None:
    body = widget() | {"status": {"phase": "Forged"}}
    made = await api.create(ns.widgets, body)
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
