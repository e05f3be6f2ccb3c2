"""CustomResourceDefinitions: made, checked, served, changed, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.targets.target import wait_until

from .client import Api, causes
from .conftest import Namespace
from .objects import GROUP, WIDGETS_CRD, crd, widget

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def words(unique: str) -> tuple[str, str]:
    """A plural and a kind that no other test has."""
    tail = unique.rsplit("-", 1)[1]
    return f"x{tail}s", f"X{tail}"


async def wait_for(api: Api, path: str, status: int) -> None:
    """Poll: discovery of a CRD has no event."""
    wait_until(lambda: api.target.request("GET", path)[0] == status, f"{path} to answer {status}")


def conditions(definition: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in definition["status"].get("conditions") or []}


async def test_an_established_crd_says_so(api: Api) -> None:
    found = (await api.get(f"{CRDS}/{WIDGETS_CRD}")).ok()
    assert conditions(found)["Established"] == "True"
    assert conditions(found)["NamesAccepted"] == "True"
    assert found["status"]["acceptedNames"] == found["spec"]["names"]
    assert found["status"]["storedVersions"] == ["v1"]


async def test_names_are_defaulted(api: Api, words: tuple[str, str]) -> None:
    plural, kind = words
    body = crd(plural, kind)
    del body["spec"]["names"]["singular"], body["spec"]["names"]["listKind"]
    made = await api.create(CRDS, body, dryRun="All")
    assert made["spec"]["names"]["singular"] == kind.lower()
    assert made["spec"]["names"]["listKind"] == f"{kind}List"
    assert made["spec"]["conversion"] == {"strategy": "None"}


async def test_a_new_crd_is_served_and_a_deleted_one_is_gone(
    api: Api, ns: Namespace, words: tuple[str, str]
) -> None:
    plural, kind = words
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await api.create(CRDS, crd(plural, kind))
    await wait_for(api, path, 200)
    body = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "one"}}
    await api.create(path, body)
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()
    await wait_for(api, path, 404)


async def test_a_cluster_scoped_kind_has_no_namespaces(api: Api, words: tuple[str, str]) -> None:
    plural, kind = words
    body = crd(plural, kind)
    body["spec"]["scope"] = "Cluster"
    await api.create(CRDS, body)
    path = f"/apis/{GROUP}/v1/{plural}"
    await wait_for(api, path, 200)
    made = await api.create(path, {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "one"}})
    assert "namespace" not in made["metadata"]
    assert (await api.get(f"/apis/{GROUP}/v1/namespaces/default/{plural}/one")).status == 404
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()


async def test_without_a_status_subresource_status_is_a_field(
    api: Api, ns: Namespace, words: tuple[str, str]
) -> None:
    plural, kind = words
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await api.create(CRDS, crd(plural, kind, schema))
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await wait_for(api, path, 200)
    body = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "one"}, "status": {"a": 1}}
    made = await api.create(path, body)
    assert made["status"] == {"a": 1}
    assert (await api.get(f"{path}/one/status")).status == 404
    changed = (await api.patch(f"{path}/one", {"status": {"a": 2}})).ok()
    assert changed["metadata"]["generation"] == 2
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()


async def test_a_changed_schema_holds_for_what_comes(api: Api, ns: Namespace, words: tuple[str, str]) -> None:
    plural, kind = words
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await api.create(CRDS, crd(plural, kind, open_schema))
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await wait_for(api, path, 200)
    closed = crd(plural, kind, {"type": "object", "properties": {"a": {"type": "integer"}}})
    (await api.patch(f"{CRDS}/{plural}.{GROUP}", {"spec": {"versions": closed["spec"]["versions"]}})).ok()
    body = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "one"}, "a": "text"}
    wait_until(
        lambda: api.target.request("POST", f"{path}?dryRun=All", body)[0] == 422,
        "the new schema to hold",
    )
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()


async def refused(api: Api, body: dict[str, Any]) -> set[str]:
    """The fields for which this CRD is refused."""
    status = (await api.post(CRDS, body, dryRun="All")).refused(422, "Invalid")
    return {field for _, field in causes(status)}


async def test_the_name_is_plural_and_group(api: Api, words: tuple[str, str]) -> None:
    body = crd(*words)
    body["metadata"]["name"] = "other.example.com"
    status = (await api.post(CRDS, body, dryRun="All")).refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "metadata.name"
    assert cause["message"].endswith('must be spec.names.plural+"."+spec.group')


async def test_a_version_needs_a_schema(api: Api, words: tuple[str, str]) -> None:
    body = crd(*words)
    del body["spec"]["versions"][0]["schema"]
    assert await refused(api, body) == {"spec.versions[0].schema.openAPIV3Schema"}


async def test_the_schema_is_structural(api: Api, words: tuple[str, str]) -> None:
    body = crd(*words, {"type": "object", "properties": {"spec": {"properties": {}}}})
    fields = await refused(api, body)
    assert fields == {"spec.validation.openAPIV3Schema.properties[spec].type"}


async def test_one_version_is_stored(api: Api, words: tuple[str, str]) -> None:
    body = crd(*words, storage=False)
    assert "spec.versions" in await refused(api, body)


async def test_a_default_fits_its_schema(api: Api, words: tuple[str, str]) -> None:
    wrong = {"type": "integer", "default": "text"}
    body = crd(
        *words, {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": wrong}}}}
    )
    (field,) = await refused(api, body)
    assert field.endswith("properties[a].default")


async def test_scope_is_checked(api: Api, words: tuple[str, str]) -> None:
    body = crd(*words)
    body["spec"]["scope"] = "Galaxy"
    assert await refused(api, body) == {"spec.scope"}


async def test_a_stored_crd_is_a_kind_with_generation(api: Api) -> None:
    found = (await api.get(f"{CRDS}/{WIDGETS_CRD}")).ok()
    assert found["kind"] == "CustomResourceDefinition"
    assert found["metadata"]["generation"] >= 1


async def test_selectable_fields_can_be_selected(api: Api, ns: Namespace, words: tuple[str, str]) -> None:
    plural, kind = words
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}}}},
    }
    body = crd(plural, kind, schema, selectableFields=[{"jsonPath": ".spec.color"}])
    await api.create(CRDS, body)
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await wait_for(api, path, 200)
    for name in ("red", "blue"):
        one = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": {"color": name}}
        await api.create(path, one)
    found = (await api.get(path, fieldSelector="spec.color=red")).ok()["items"]
    assert [item["metadata"]["name"] for item in found] == ["red"]
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()


async def test_a_schema_forbids_what_one_of_rules_out(
    api: Api, ns: Namespace, words: tuple[str, str]
) -> None:
    plural, kind = words
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            }
        },
    }
    await api.create(CRDS, crd(plural, kind, schema))
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await wait_for(api, path, 200)
    body = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "one"}}
    await api.create(path, body | {"spec": {"a": "x"}}, dryRun="All")
    both = await api.post(path, body | {"spec": {"a": "x", "b": "y"}})
    assert "oneOf" in both.refused(422, "Invalid")["message"]
    (await api.delete(f"{CRDS}/{plural}.{GROUP}")).ok()


async def test_a_crd_can_be_watched(api: Api, words: tuple[str, str]) -> None:
    plural, kind = words
    version = (await api.get(CRDS)).ok()["metadata"]["resourceVersion"]
    name = f"{plural}.{GROUP}"
    selector = f"metadata.name={name}"
    async with api.watch(CRDS, resourceVersion=version, fieldSelector=selector) as watch:
        await api.create(CRDS, crd(plural, kind))
        seen = await watch.expect("ADDED", name)
        while conditions(seen).get("Established") != "True":
            seen = await watch.expect("MODIFIED", name)
    (await api.delete(f"{CRDS}/{name}")).ok()


async def test_a_kind_that_is_not_namespaced_here_is_found_there(api: Api, ns: Namespace) -> None:
    """A custom resource of a namespace cannot be made outside of one."""
    answer = await api.post(f"/apis/{GROUP}/v1/widgets", widget())
    assert answer.status in (404, 405), answer.text


async def served(api: Api, ns: Namespace, words: tuple[str, str], schema: dict[str, Any]) -> str:
    """The collection of a new kind whose spec has this schema."""
    plural, kind = words
    await api.create(CRDS, crd(plural, kind, {"type": "object", "properties": {"spec": schema}}))
    path = f"/apis/{GROUP}/v1/namespaces/{ns.name}/{plural}"
    await wait_for(api, path, 200)
    return path


async def test_lists_that_are_sets_or_maps_have_nothing_twice(
    api: Api, ns: Namespace, words: tuple[str, str]
) -> None:
    named = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "words": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "named": {
                "type": "array",
                "items": named,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    }
    path = await served(api, ns, words, schema)
    twice = {"words": ["a", "b", "a"], "named": [{"name": "x"}, {"name": "x"}]}
    body = {"apiVersion": f"{GROUP}/v1", "kind": words[1], "metadata": {"name": "one"}, "spec": twice}
    status = (await api.post(path, body)).refused(422, "Invalid")
    assert causes(status) == {
        ("FieldValueDuplicate", "spec.words[2]"),
        ("FieldValueDuplicate", "spec.named[1]"),
    }
    (await api.delete(f"{CRDS}/{words[0]}.{GROUP}")).ok()


async def test_any_of_and_not_are_checked(api: Api, ns: Namespace, words: tuple[str, str]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "not": {"required": ["a", "b"]},
    }
    path = await served(api, ns, words, schema)
    body = {"apiVersion": f"{GROUP}/v1", "kind": words[1], "metadata": {"name": "one"}}
    (await api.post(path, body | {"spec": {}})).refused(422, "Invalid")
    (await api.post(path, body | {"spec": {"a": 1, "b": "x"}})).refused(422, "Invalid")
    (await api.post(path, body | {"spec": {"b": "x"}})).ok(201)
    (await api.delete(f"{CRDS}/{words[0]}.{GROUP}")).ok()


async def test_a_kind_can_have_two_versions(api: Api, ns: Namespace, words: tuple[str, str]) -> None:
    plural, kind = words
    group = f"{plural}.hotvirt.io"  # of its own: other tests look at all versions of theirs
    body = crd(plural, kind, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, group=group)
    (first,) = body["spec"]["versions"]
    body["spec"]["versions"].append(first | {"name": "v1beta1", "storage": False})
    await api.create(CRDS, body)
    for version in ("v1", "v1beta1"):
        await wait_for(api, f"/apis/{group}/{version}/namespaces/{ns.name}/{plural}", 200)
    path = f"/apis/{group}/v1/namespaces/{ns.name}/{plural}"
    made = await api.create(
        path, {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "one"}, "spec": {"a": 1}}
    )
    older = (await api.get(f"{path}/one".replace("/v1/", "/v1beta1/"))).ok()
    assert older == made | {"apiVersion": f"{group}/v1beta1"} | {"metadata": older["metadata"]}
    assert older["metadata"]["uid"] == made["metadata"]["uid"]
    (await api.delete(f"{CRDS}/{plural}.{group}")).ok()
