"""The schema of a custom resource at work: refusing, defaulting, pruning; and fieldValidation."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api, causes
from .conftest import Namespace
from .objects import GROUP, configmap, widget


@pytest.mark.parametrize(
    ("spec", "reason", "field", "message"),
    [
        (
            {"size": "big"},
            "FieldValueTypeInvalid",
            "spec.size",
            'Invalid value: "string": spec.size in body must be of type integer: "string"',
        ),
        (
            {"size": 0},
            "FieldValueInvalid",
            "spec.size",
            "Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            {"size": 101},
            "FieldValueInvalid",
            "spec.size",
            "Invalid value: 101: spec.size in body should be less than or equal to 100",
        ),
        (
            {"color": "pink"},
            "FieldValueNotSupported",
            "spec.color",
            'Unsupported value: "pink": supported values: "red", "green", "blue"',
        ),
        (
            {"nick": "ABC"},
            "FieldValueInvalid",
            "spec.nick",
            "Invalid value: \"ABC\": spec.nick in body should match '^[a-z]*$'",
        ),
        (
            {"nick": "abcdefghijk"},
            "FieldValueTooLong",
            "spec.nick",
            "Too long: may not be more than 10 bytes",
        ),
        (
            {"on": "yes"},
            "FieldValueTypeInvalid",
            "spec.on",
            'Invalid value: "string": spec.on in body must be of type boolean: "string"',
        ),
        (
            {"parts": [{"name": "a"}, {}]},
            "FieldValueRequired",
            "spec.parts[1].name",
            "Required value",
        ),
        (
            {"parts": {}},
            "FieldValueTypeInvalid",
            "spec.parts",
            'Invalid value: "object": spec.parts in body must be of type array: "object"',
        ),
        (
            {"parts": [{"name": str(n)} for n in range(4)]},
            "FieldValueTooMany",
            "spec.parts",
            "Too many: 4: must have at most 3 items",
        ),
        (
            {"tags": {"a": 1}},
            "FieldValueTypeInvalid",
            "spec.tags.a",
            'Invalid value: "integer": spec.tags.a in body must be of type string: "integer"',
        ),
        (
            {"port": 1.5},
            "FieldValueTypeInvalid",
            "spec.port",
            'Invalid value: "number": spec.port in body must be of type integer,string: "number"',
        ),
        (
            {"due": "tomorrow"},
            "FieldValueTypeInvalid",
            "spec.due",
            'Invalid value: "tomorrow": spec.due in body must be of type date-time: "tomorrow"',
        ),
    ],
)
async def test_a_wrong_value_is_refused_by_its_field(
    api: Api, ns: Namespace, spec: dict[str, Any], reason: str, field: str, message: str
) -> None:
    status = (await api.post(ns.widgets, widget(**spec))).refused(422, "Invalid")
    assert status["details"]["causes"] == [{"reason": reason, "message": message, "field": field}]
    assert status["message"] == f'Widget.{GROUP} "one" is invalid: {field}: {message}'
    assert status["details"]["name"] == "one"
    assert status["details"]["group"] == GROUP
    assert status["details"]["kind"] == "Widget"


async def test_a_missing_field_is_refused(api: Api, ns: Namespace) -> None:
    body = widget()
    body["spec"] = {}
    status = (await api.post(ns.widgets, body)).refused(422, "Invalid")
    assert causes(status) == {("FieldValueRequired", "spec.size")}
    assert status["message"] == f'Widget.{GROUP} "one" is invalid: spec.size: Required value'


async def test_every_cause_is_named(api: Api, ns: Namespace) -> None:
    body = widget(size=0, nick="ABC", on=1)
    status = (await api.post(ns.widgets, body)).refused(422, "Invalid")
    assert {field for _, field in causes(status)} == {"spec.size", "spec.nick", "spec.on"}
    assert status["message"].startswith(f'Widget.{GROUP} "one" is invalid: [')


async def test_a_spec_may_be_absent(api: Api, ns: Namespace) -> None:
    body = widget()
    del body["spec"]
    made = await api.create(ns.widgets, body)
    assert "spec" not in made


async def test_int_or_string_takes_both(api: Api, ns: Namespace) -> None:
    assert (await api.create(ns.widgets, widget("a", port=80)))["spec"]["port"] == 80
    assert (await api.create(ns.widgets, widget("b", port="http")))["spec"]["port"] == "http"


async def test_a_whole_number_is_a_number(api: Api, ns: Namespace) -> None:
    assert (await api.create(ns.widgets, widget(ratio=2)))["spec"]["ratio"] == 2


async def test_a_number_without_fraction_is_an_integer(api: Api, ns: Namespace) -> None:
    body = b'{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"one"},"spec":{"size":2.0}}'
    made = (await api.post(ns.widgets, body % GROUP.encode())).ok(201)
    assert made["spec"]["size"] == 2


async def test_defaults_are_filled_in(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(part={}, parts=[{"name": "a"}]))
    assert made["spec"] == {
        "size": 1,
        "color": "red",
        "part": {"weight": 5},
        "parts": [{"name": "a", "count": 1}],
    }


async def test_a_default_in_an_absent_object_is_not_filled_in(api: Api, ns: Namespace) -> None:
    assert "part" not in (await api.create(ns.widgets, widget()))["spec"]


async def test_a_null_is_dropped_for_the_default(api: Api, ns: Namespace) -> None:
    assert (await api.create(ns.widgets, widget(color=None)))["spec"]["color"] == "red"


async def test_a_null_without_default_is_dropped(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(part=None, nick=None))
    assert made["spec"] == {"size": 1, "color": "red"}


async def test_a_nullable_null_is_kept(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(nullable=None))
    assert made["spec"]["nullable"] is None
    assert (await api.get(f"{ns.widgets}/one")).ok()["spec"]["nullable"] is None


async def test_unknown_fields_are_pruned(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(unknown=1, part={"weight": 1, "odd": {"deep": True}}))
    assert made["spec"] == {"size": 1, "color": "red", "part": {"weight": 1}}


async def test_unknown_fields_are_kept_where_the_schema_says_so(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(anything={"a": {"b": [1, None]}, "c": None}))
    assert made["spec"]["anything"] == {"a": {"b": [1, None]}, "c": None}


async def test_unknown_metadata_is_pruned(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["unknown"] = 1
    assert "unknown" not in (await api.create(ns.widgets, body))["metadata"]


async def test_strict_refuses_every_unknown_field(api: Api, ns: Namespace) -> None:
    body = widget(unknown=1, part={"odd": 2})
    body["extra"] = True
    status = (await api.post(ns.widgets, body, fieldValidation="Strict")).refused(400, "BadRequest")
    message = status["message"]
    assert "strict decoding error: " in message
    for field in ("spec.unknown", "spec.part.odd", "extra"):
        assert f'unknown field "{field}"' in message


async def test_strict_refuses_unknown_metadata(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["unknown"] = 1
    status = (await api.post(ns.widgets, body, fieldValidation="Strict")).refused(400, "BadRequest")
    assert 'unknown field "metadata.unknown"' in status["message"]


async def test_strict_refuses_fields_given_twice(api: Api, ns: Namespace) -> None:
    body = b'{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"one"},"spec":{"size":1,"size":2}}'
    answer = await api.post(ns.widgets, body % GROUP.encode(), fieldValidation="Strict")
    assert 'duplicate field "spec.size"' in answer.refused(400, "BadRequest")["message"]


async def test_strict_takes_what_is_right(api: Api, ns: Namespace) -> None:
    body = widget(anything={"what": "ever"}, tags={"a": "b"})
    assert (await api.post(ns.widgets, body, fieldValidation="Strict")).warnings == []


async def test_strict_refuses_in_a_patch(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answer = await api.patch(f"{ns.widgets}/one", {"spec": {"unknown": 1}}, fieldValidation="Strict")
    assert 'unknown field "spec.unknown"' in answer.json["message"]
    assert answer.status in (400, 422)


async def test_warn_is_the_default_and_warns(api: Api, ns: Namespace) -> None:
    for name, options in (("a", {}), ("b", {"fieldValidation": "Warn"})):
        answer = await api.post(ns.widgets, widget(name, unknown=1, part={"odd": 2}), **options)
        answer.ok(201)
        assert sorted(answer.warnings) == [
            '299 - "unknown field \\"spec.part.odd\\""',
            '299 - "unknown field \\"spec.unknown\\""',
        ]


async def test_ignore_is_silent(api: Api, ns: Namespace) -> None:
    answer = await api.post(ns.widgets, widget(unknown=1), fieldValidation="Ignore")
    assert (answer.status, answer.warnings) == (201, [])


async def test_an_unknown_field_validation_is_refused(api: Api, ns: Namespace) -> None:
    status = (await api.post(ns.widgets, widget(), fieldValidation="Maybe")).refused(422, "Invalid")
    assert causes(status) == {("FieldValueNotSupported", "fieldValidation")}


async def test_built_in_kinds_know_field_validation_too(api: Api, ns: Namespace) -> None:
    body = configmap() | {"datum": {}}
    status = (await api.post(ns.configmaps, body, fieldValidation="Strict")).refused(400, "BadRequest")
    assert 'strict decoding error: unknown field "datum"' in status["message"]
    answer = await api.post(ns.configmaps, body)
    assert "datum" not in answer.ok(201)
    assert answer.warnings == ['299 - "unknown field \\"datum\\""']


async def test_a_wrong_type_in_a_built_in_kind_is_400(api: Api, ns: Namespace) -> None:
    body = configmap() | {"data": {"a": 1}}
    status = (await api.post(ns.configmaps, body)).refused(400, "BadRequest")
    assert "cannot unmarshal number into Go struct field ConfigMap.data of type string" in status["message"]
