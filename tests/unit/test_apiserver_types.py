"""The tables of built-in types: decoding by them, from JSON and from protobuf."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.embedded.apiserver import protobuf
from hotvirt.embedded.apiserver.kinds import builtin_kinds
from hotvirt.embedded.apiserver.openapi import document
from hotvirt.embedded.apiserver.types import WrongType, conform, object_fields, struct

POD = object_fields("core.Pod")


def test_every_type_that_is_named_is_there() -> None:
    from hotvirt.embedded.apiserver import types

    for name in types._lines():
        for field in struct(name).fields.values():
            inner = field.type
            while inner.element is not None:
                inner = inner.element
            assert inner.form == "scalar" or struct(inner.name).fields is not None


def test_unknown_fields_and_nulls_are_left_out() -> None:
    unknown: list[str] = []
    pod = {
        "apiVersion": "v1",
        "metadata": {"name": "a", "labels": None, "colour": "red"},
        "spec": {"containers": [{"name": "a", "imgae": "x", "resources": {"limits": {"cpu": 1}}}], "x": 1},
    }
    kept = conform(POD, pod, unknown)
    assert unknown == ["metadata.colour", "spec.containers[0].imgae", "spec.x"]
    assert kept["metadata"] == {"name": "a"}
    assert kept["spec"] == {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}


def test_quantities_are_written_canonically() -> None:
    quota = object_fields("core.ResourceQuota")
    kept = conform(quota, {"spec": {"hard": {"memory": "1024Mi", "cpu": "1000m"}}}, [])
    assert kept["spec"]["hard"] == {"memory": "1Gi", "cpu": "1"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"containers": {}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"hostNetwork": "yes"},
            "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        ({"priority": 2**40}, "cannot unmarshal number 1099511627776"),
        (
            {"containers": [{"resources": {"limits": {"cpu": "a lot"}}}]},
            "quantities must match the regular expression",
        ),
        (
            {"nodeSelector": {"a": 1}},
            "cannot unmarshal number into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
    ],
)
def test_a_wrong_type_is_said_as_go_says_it(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongType) as refused:
        conform(POD, {"spec": spec}, [])
    assert said in str(refused.value)


def test_times_and_bytes_are_checked() -> None:
    with pytest.raises(WrongType, match="parsing time"):
        conform(POD, {"metadata": {"creationTimestamp": "yesterday"}}, [])
    with pytest.raises(WrongType, match="illegal base64"):
        conform(object_fields("core.Secret"), {"data": {"a": "%%%"}}, [])


# Protobuf ------------------------------------------------------------------------------------------------


def field(tag: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([tag << 3, value])
    return bytes([tag << 3 | 2, len(value)]) + value


def test_a_config_map_in_protobuf() -> None:
    metadata = field(1, b"mine") + field(3, b"ns") + field(11, field(1, b"app") + field(2, b"x"))
    raw = field(1, metadata) + field(2, field(1, b"key") + field(2, b"value"))
    body = b"k8s\0" + field(1, field(1, b"v1") + field(2, b"ConfigMap")) + field(2, raw)
    api_version, kind, inner = protobuf.unwrap(body)
    assert (api_version, kind) == ("v1", "ConfigMap")
    assert protobuf.decode(object_fields("core.ConfigMap"), inner) == {
        "metadata": {"name": "mine", "namespace": "ns", "labels": {"app": "x"}},
        "data": {"key": "value"},
    }


def test_quantities_times_and_numbers_in_protobuf() -> None:
    hard = field(1, field(1, b"pods") + field(2, field(1, b"5")))
    quota = protobuf.decode(object_fields("core.ResourceQuota"), field(2, hard))
    assert quota == {"spec": {"hard": {"pods": "5"}}}
    token = protobuf.decode(
        object_fields("authentication.TokenRequest"), field(2, field(4, 60) + field(1, b"me"))
    )
    assert token == {"spec": {"expirationSeconds": 60, "audiences": ["me"]}}


def test_an_inlined_type_is_a_message_of_its_own() -> None:
    volume = protobuf.decode(struct("core.Volume"), field(1, b"run") + field(2, field(2, b"")))
    assert volume == {"name": "run", "emptyDir": {}} or volume == {"name": "run"}


@pytest.mark.parametrize("body", [b"{}", b"k8s\0\x0a\xff", b"k8s\0\x12\x7f", b"k8s\0" + b"\xff" * 12])
def test_broken_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(protobuf.BadProtobuf):
        protobuf.unwrap(body)


def test_openapi_refers_only_to_what_is_in_the_document() -> None:
    kinds = [kind for kind in builtin_kinds() if kind.group == ""]
    made = document(kinds)
    schemas = made["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            found = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
            return found.union(*(references(one) for one in value.values())) if value else found
        return set().union(*(references(one) for one in value)) if isinstance(value, list) else set()

    assert references(made) <= schemas.keys()
    assert "/api/v1/namespaces/{namespace}/pods/{name}" in made["paths"]


def test_what_is_known_is_copied_and_the_rest_conforms_as_ever() -> None:
    known = conform(POD, {"metadata": {"name": "a", "generation": 1}, "spec": {"nodeName": "n"}}, [])
    patched = {
        "metadata": {"name": "a", "generation": 1.0},
        "spec": {"nodeName": "m", "x": 1},
        "status": None,
    }
    unknown: list[str] = []
    found = conform(POD, patched, unknown, known)
    assert found == {"metadata": {"name": "a", "generation": 1}, "spec": {"nodeName": "m"}}
    assert isinstance(found["metadata"]["generation"], int)
    assert unknown == ["spec.x"]
    found["metadata"]["generation"] = 2
    assert known["metadata"]["generation"] == 1
