"""Structural schemas: what is dropped, filled in and refused, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.embedded.apiserver.crd_schema import schema_errors
from hotvirt.embedded.apiserver.schema import compile_schema, fill, prune
from hotvirt.embedded.apiserver.validation import validate

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 5},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "code": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
                "port": {"x-kubernetes-int-or-string": True},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "maybe": {"type": "string", "nullable": True},
                "parts": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "on": {"type": "boolean", "default": True},
                        },
                    },
                },
                "choice": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "inner": {"type": "object", "x-kubernetes-embedded-resource": True},
                "limit": {"type": "integer", "not": {"enum": [13]}},
                "any": {
                    "anyOf": [{"type": "integer"}, {"type": "boolean"}],
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        }
    },
}
NODE = compile_schema(SCHEMA)


def spec(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "x"}, "spec": {"size": 1, **fields}}


def errors(**fields: Any) -> list[str]:
    return [str(error) for error in validate(NODE, spec(**fields))]


def test_unknown_fields_are_dropped_and_named() -> None:
    unknown: list[str] = []
    obj = spec(extra=1, parts=[{"name": "a", "weight": 2}], free={"kept": {"too": 1}}, tags={"any": "name"})
    obj["more"] = True
    obj["metadata"]["colour"] = "x"
    prune(NODE, obj, unknown)
    assert sorted(unknown) == ["metadata.colour", "more", "spec.extra", "spec.parts[0].weight"]
    assert obj["spec"] == {
        "size": 1,
        "parts": [{"name": "a"}],
        "free": {"kept": {"too": 1}},
        "tags": {"any": "name"},
    }


def test_defaults_are_filled_in_also_in_lists() -> None:
    obj = spec(parts=[{"name": "a"}, {"name": "b", "on": False}])
    fill(NODE, obj)
    assert obj["spec"]["colour"] == "red"
    assert [part["on"] for part in obj["spec"]["parts"]] == [True, False]


def test_defaults_are_not_shared() -> None:
    node = compile_schema(
        {"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {}}}}
    )
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    fill(node, one)
    fill(node, other)
    one["spec"]["x"] = 1
    assert other == {"spec": {}}


def test_null_is_dropped_or_defaulted_unless_it_is_allowed() -> None:
    obj = spec(colour=None, tags=None, maybe=None)
    fill(NODE, obj)
    assert obj["spec"] == {"size": 1, "colour": "red", "maybe": None}
    assert errors(maybe=None) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"size": "1"},
            'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"',
        ),
        (
            {"size": True},
            'spec.size: Invalid value: "boolean": spec.size in body must be of type integer: "boolean"',
        ),
        ({"size": 9}, "spec.size: Invalid value: 9: spec.size in body should be less than or equal to 5"),
        ({"size": 0}, "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        ({"colour": "green"}, 'spec.colour: Unsupported value: "green": supported values: "red", "blue"'),
        ({"code": "A1b"}, "spec.code: Invalid value: \"A1b\": spec.code in body should match '^[a-z]+$'"),
        ({"code": "a"}, 'spec.code: Invalid value: "a": spec.code in body should be at least 2 chars long'),
        ({"code": "abcde"}, "spec.code: Too long: may not be more than 4 bytes"),
        (
            {"port": 1.5},
            'spec.port: Invalid value: "number": spec.port in body must be of type integer,string: "number"',
        ),
        ({"parts": [{"name": "a"}] * 2}, 'spec.parts[1]: Duplicate value: {"name":"a"}'),
        ({"parts": [{"name": n} for n in "abc"]}, "spec.parts: Too many: 3: must have at most 2 items"),
        (
            {"tags": {"a": 1}},
            'spec.tags.a: Invalid value: "integer": spec.tags.a in body must be of type string: "integer"',
        ),
    ],
)
def test_what_is_wrong_is_said_as_kubernetes_says_it(fields: dict[str, Any], said: str) -> None:
    assert errors(**fields) == [said]


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 2.0},
        {"port": 80},
        {"port": "http"},
        {"choice": {"a": "x"}},
        {"inner": {"apiVersion": "v1", "kind": "Pod"}},
        {"limit": 12},
        {"any": True},
    ],
)
def test_what_is_right_passes(fields: dict[str, Any]) -> None:
    assert errors(**fields) == []


def test_logic() -> None:
    assert "must validate one and only one schema (oneOf). Found none valid" in errors(choice={})[-1]
    assert "Found 2 valid alternatives" in errors(choice={"a": "x", "b": "y"})[-1]
    assert "must not validate the schema (not)" in errors(limit=13)[0]
    assert "must validate at least one schema (anyOf)" in errors(any="text")[0]


def test_an_embedded_resource_says_what_it_is() -> None:
    assert errors(inner={}) == [
        "spec.inner.apiVersion: Required value: must not be empty",
        "spec.inner.kind: Required value: must not be empty",
    ]


def test_what_is_required_is_asked_for() -> None:
    assert [str(error) for error in validate(NODE, {"spec": {}})] == ["spec.size: Required value"]


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "object", "properties": {"a": {}}}, "s.properties[a].type"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
            "s.properties[a].pattern",
        ),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "s.properties[a].items"),
        (
            {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}},
            "s.properties[a].default",
        ),
        ({"type": "string"}, "s.type"),
    ],
)
def test_a_schema_that_is_not_structural_is_refused(schema: dict[str, Any], field: str) -> None:
    assert [error.field for error in schema_errors(schema, "s")] == [field]
