"""The API's description of itself, as far as kubectl reads it."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api
from .objects import GROUP
from .test_discovery import unchanged

V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


async def document(api: Api, group_version: str) -> dict[str, Any]:
    index = (await api.get("/openapi/v3")).ok()
    answer = await api.get(index["paths"][group_version]["serverRelativeURL"].split("?")[0])
    found: dict[str, Any] = answer.ok()
    return found


def schema_of(doc: dict[str, Any], group: str, kind: str) -> dict[str, Any]:
    wanted = {"group": group, "version": "v1", "kind": kind}
    (found,) = [
        schema
        for schema in doc["components"]["schemas"].values()
        if wanted in schema.get("x-kubernetes-group-version-kind", [])
    ]
    schema: dict[str, Any] = found
    return schema


@pytest.mark.parametrize("group_version", ["api/v1", f"apis/{GROUP}/v1", "apis/apps/v1"])
async def test_the_index_names_each_groups_document_by_its_hash(api: Api, group_version: str) -> None:
    index = (await api.get("/openapi/v3")).ok()
    url = index["paths"][group_version]["serverRelativeURL"]
    assert url.startswith(f"/openapi/v3/{group_version}?hash=")


async def test_a_document_says_what_it_is(api: Api) -> None:
    doc = await document(api, f"apis/{GROUP}/v1")
    assert doc["openapi"].startswith("3.0")
    assert {"title", "version"} <= set(doc["info"])


async def test_a_document_has_the_schema_of_each_kind(api: Api) -> None:
    widget = schema_of(await document(api, f"apis/{GROUP}/v1"), GROUP, "Widget")
    assert widget["description"] == "Widget is what the suite creates, changes and deletes."
    spec = widget["properties"]["spec"]["properties"]
    assert spec["size"]["type"] == "integer"
    assert spec["size"]["description"] == "How large the widget is."
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= set(widget["properties"])


async def test_built_in_kinds_are_described(api: Api) -> None:
    pod = schema_of(await document(api, "api/v1"), "", "Pod")
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= set(pod["properties"])


@pytest.mark.parametrize(
    ("group_version", "path", "gvk"),
    [
        (
            f"apis/{GROUP}/v1",
            f"/apis/{GROUP}/v1/namespaces/{{namespace}}/widgets/{{name}}",
            {"group": GROUP, "version": "v1", "kind": "Widget"},
        ),
        (
            "api/v1",
            "/api/v1/namespaces/{namespace}/configmaps/{name}",
            {"group": "", "version": "v1", "kind": "ConfigMap"},
        ),
        ("api/v1", "/api/v1/nodes/{name}", {"group": "", "version": "v1", "kind": "Node"}),
    ],
)
async def test_a_document_has_the_path_that_kubectl_looks_for(
    api: Api, group_version: str, path: str, gvk: dict[str, str]
) -> None:
    patch = (await document(api, group_version))["paths"][path]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == gvk
    names = {parameter.get("name") for parameter in patch["parameters"]}
    assert {"fieldValidation", "dryRun"} <= names


async def test_a_document_that_did_not_change_is_304(api: Api) -> None:
    index = (await api.get("/openapi/v3")).ok()
    url = index["paths"][f"apis/{GROUP}/v1"]["serverRelativeURL"].split("?")[0]
    assert (await unchanged(api, url)).status == 304


async def test_an_unknown_group_has_no_document(api: Api) -> None:
    assert (await api.get("/openapi/v3/apis/no.such.group/v1")).status == 404


async def test_version_two_is_there_for_old_kubectl(api: Api) -> None:
    answer = await api.get("/openapi/v2", accept=V2_PROTOBUF)
    assert answer.status == 200
    assert answer.type.startswith("application/com.github.proto-openapi.spec.v2")
    assert answer.raw.startswith(b"\x0a\x032.0")
