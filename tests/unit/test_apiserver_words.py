"""Selectors, JSONPaths, ages and Accept headers: the small languages that clients speak."""

from __future__ import annotations

import pytest

from hotvirt.embedded.apiserver.errors import StatusError
from hotvirt.embedded.apiserver.jsonpath import BadPath, JsonPath
from hotvirt.embedded.apiserver.negotiate import Form, negotiate
from hotvirt.embedded.apiserver.selectors import Selection, parse_fields, parse_labels, selector_matches
from hotvirt.embedded.apiserver.store import Entry
from hotvirt.embedded.apiserver.tables import human

LABELS = {"app": "web", "tier": "front", "weight": "5"}


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app!=web", False),
        ("other!=x", True),
        ("app in (web, api)", True),
        ("app notin (web)", False),
        ("other notin (web)", True),
        ("app", True),
        ("!app", False),
        ("!other", True),
        ("weight>4", True),
        ("weight<5", False),
        ("app in (web),tier in (back,front),!other", True),
        ("example.com/key=x", False),
    ],
)
def test_label_selectors(selector: str, holds: bool) -> None:
    assert all(requirement(LABELS) for requirement in parse_labels(selector)) is holds


@pytest.mark.parametrize("selector", ["app in web", "a b", "=x", "app=a=b", "app in (a", "-x=1", "a=b c"])
def test_broken_label_selectors_are_400(selector: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_labels(selector)
    assert refused.value.code == 400


def test_field_selectors() -> None:
    assert parse_fields("a=1,b!=2,c==3") == [("a", "1", True), ("b", "2", False), ("c", "3", True)]
    assert parse_fields(r"a=1\,2\=3") == [("a", "1,2=3", True)]
    with pytest.raises(StatusError):
        parse_fields("nothing")


def test_a_field_that_is_not_known_is_400() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.colour"):
        Selection("", "spec.colour=red", {}, True)


def test_fields_that_are_left_out_are_false_or_empty() -> None:
    entry = Entry(("pods", "ns", "a"), 1, b'{"metadata":{"name":"a"},"spec":{}}')
    known = {"spec.hostNetwork": ("spec", "hostNetwork"), "spec.nodeName": ("spec", "nodeName")}
    assert Selection("", "spec.hostNetwork=false,spec.nodeName=", known, True).matches(entry)
    assert not Selection("", "spec.nodeName!=", known, True).matches(entry)


def test_selectors_in_objects() -> None:
    terms = [
        {"key": "tier", "operator": "In", "values": ["front"]},
        {"key": "app", "operator": "Exists"},
        {"key": "x", "operator": "DoesNotExist"},
        {"key": "app", "operator": "NotIn", "values": ["api"]},
    ]
    assert selector_matches({"matchLabels": {"app": "web"}, "matchExpressions": terms}, LABELS)
    assert not selector_matches({"matchLabels": {"app": "api"}}, LABELS)


OBJECT = {
    "spec": {"size": 3, "names": ["a", "b"], "a.b": 1},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Paused", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.size", [3]),
        ("{.spec.size}", [3]),
        (".spec.names[1]", ["b"]),
        (".spec.names[*]", ["a", "b"]),
        (".spec.names[-1]", ["b"]),
        (".spec['a.b']", [1]),
        (r".spec.a\.b", [1]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Paused')].status", ["False"]),
        (".spec.nothing.deeper", []),
        (".spec.names[7]", []),
    ],
)
def test_json_paths(path: str, found: list[object]) -> None:
    assert JsonPath(path).find(OBJECT) == found


def test_a_path_that_cannot_be_read() -> None:
    with pytest.raises(BadPath):
        JsonPath(".spec[what]")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (2 * 86400 + 3600, "2d1h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_shown_as_kubectl_shows_them(seconds: int, shown: str) -> None:
    assert human(seconds) == shown


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form()),
        ("*/*", Form()),
        ("application/vnd.kubernetes.protobuf,application/json", Form()),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Form("table", "v1")),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Form()),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", Form("metadata", "v1")),
    ],
)
def test_the_first_form_that_can_be_given(accept: str, form: Form) -> None:
    assert negotiate(accept) == form


def test_what_cannot_be_given_is_406() -> None:
    with pytest.raises(StatusError) as refused:
        negotiate("image/png, application/vnd.kubernetes.protobuf")
    assert refused.value.code == 406
