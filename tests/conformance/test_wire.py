"""What clients of all ages put on the wire, and expect to be taken."""

from __future__ import annotations

from typing import Any

import pytest

from .client import JSON_PATCH, Api, causes
from .conftest import Namespace
from .objects import GROUP, configmap, widget


async def test_what_go_clients_send_along_is_no_unknown_field(api: Api, ns: Namespace) -> None:
    body = widget() | {"status": {}}
    body["metadata"]["creationTimestamp"] = None
    answer = await api.post(ns.widgets, body, fieldValidation="Strict")
    assert answer.status == 201, answer.text
    assert answer.warnings == []


async def test_parameters_that_mean_nothing_are_ignored(api: Api, ns: Namespace) -> None:
    extra = {"fieldManager": "kubectl-edit", "timeout": "10s", "foo": "bar"}
    await api.create(ns.widgets, widget(), **extra)
    assert (await api.get(f"{ns.widgets}/one", **extra)).status == 200


@pytest.mark.parametrize("word", ["1", "true"])
async def test_a_watch_can_be_asked_for_with(api: Api, ns: Namespace, word: str) -> None:
    await api.create(ns.widgets, widget())
    async with api.watch(ns.widgets, watch=word) as watch:
        await watch.expect("ADDED", "one")


@pytest.mark.parametrize("word", ["0", "false"])
async def test_a_watch_can_be_declined_with(api: Api, ns: Namespace, word: str) -> None:
    assert (await api.get(ns.widgets, watch=word)).ok()["kind"] == "WidgetList"


@pytest.mark.parametrize("accept", ["*/*", "application/json, */*", "text/html, application/json"])
async def test_json_is_given_to_who_takes_it(api: Api, ns: Namespace, accept: str) -> None:
    answer = await api.get(ns.configmaps, accept=accept)
    assert answer.ok()["kind"] == "ConfigMapList"
    assert answer.type == "application/json"


async def test_who_prefers_protobuf_takes_json_too(api: Api, ns: Namespace) -> None:
    """For custom resources there is no protobuf: the next best is given."""
    accept = "application/vnd.kubernetes.protobuf,application/json"
    assert (await api.get(ns.widgets, accept=accept)).ok()["kind"] == "WidgetList"


async def test_large_whole_numbers_stay_as_they_are(api: Api, ns: Namespace) -> None:
    number = 2**53 + 1
    made = await api.create(ns.widgets, widget(anything={"n": number}))
    assert made["spec"]["anything"]["n"] == number
    assert (await api.get(f"{ns.widgets}/one")).ok()["spec"]["anything"]["n"] == number


async def test_text_is_kept_to_the_letter(api: Api, ns: Namespace) -> None:
    text = "zwölf Boxkämpfer \u2028 <&> \U0001f600 \t\n\"'"
    made = await api.create(ns.configmaps, configmap(data={"text": text}))
    assert made["data"]["text"] == text
    assert (await api.get(f"{ns.configmaps}/one")).ok()["data"]["text"] == text


async def test_empty_maps_and_lists_of_a_custom_resource_stay(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(parts=[], tags={}, anything={"a": [], "b": {}}))
    assert made["spec"]["parts"] == []
    assert made["spec"]["tags"] == {}
    assert made["spec"]["anything"] == {"a": [], "b": {}}


async def test_empty_labels_and_annotations_do_not(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"] |= {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    metadata = (await api.create(ns.widgets, body))["metadata"]
    assert not {"labels", "annotations", "finalizers", "ownerReferences"} & set(metadata)


async def test_a_body_of_several_megabytes_is_too_large(api: Api, ns: Namespace) -> None:
    body = configmap(data={"big": "x" * (4 * 1024 * 1024)})
    (await api.post(ns.configmaps, body)).refused(413, "RequestEntityTooLarge")


async def test_a_configmap_has_less_than_a_mebibyte(api: Api, ns: Namespace) -> None:
    body = configmap(data={"big": "x" * (1024 * 1024 + 1)})
    status = (await api.post(ns.configmaps, body)).refused(422, "Invalid")
    assert {reason for reason, _ in causes(status)} == {"FieldValueTooLong"}
    kept = configmap(data={"big": "x" * (900 * 1024)})
    assert (await api.create(ns.configmaps, kept))["metadata"]["name"] == "one"


async def test_a_patch_of_too_many_operations_is_too_large(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/spec/size", "value": 1}] * 10001
    answer = await api.patch(f"{ns.widgets}/one", patch, JSON_PATCH)
    answer.refused(413, "RequestEntityTooLarge")


async def test_a_body_must_have_kind_and_version(api: Api, ns: Namespace) -> None:
    body = {"metadata": {"name": "one"}, "spec": {"size": 1}}
    (await api.post(ns.widgets, body)).refused(400, "BadRequest")


async def test_another_version_in_the_body_is_400(api: Api, ns: Namespace) -> None:
    body = widget() | {"apiVersion": f"{GROUP}/v2"}
    (await api.post(ns.widgets, body)).refused(400, "BadRequest")


async def test_a_newer_event_is_seen_as_an_older_one(api: Api, ns: Namespace) -> None:
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "one"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "conformance.hotvirt.io/suite",
        "reportingInstance": "one",
        "action": "Testing",
        "reason": "Tested",
        "type": "Normal",
        "note": "It works.",
        "regarding": {"kind": "Widget", "name": "w", "namespace": ns.name},
    }
    await api.create(ns.path("events", "events.k8s.io/v1"), body)
    older = (await api.get(f"{ns.path('events')}/one")).ok()
    assert older["message"] == "It works."
    assert older["involvedObject"]["name"] == "w"
    assert older["reportingComponent"] == "conformance.hotvirt.io/suite"
    assert older["eventTime"] == "2026-01-01T00:00:00.000000Z"
