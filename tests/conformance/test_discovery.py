"""What a client learns before its first request: groups, versions, resources, health."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .client import Answer, Api
from .objects import GROUP

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
KUBECTL = f"{V2},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"


async def test_version_names_the_release_as_go_would(api: Api) -> None:
    version = (await api.get("/version")).ok()
    assert re.fullmatch(r"\d+", version["major"])
    assert re.fullmatch(r"\d+\+?", version["minor"])
    assert version["gitVersion"].startswith(f"v{version['major']}.{version['minor'].rstrip('+')}.")
    assert {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} <= set(version)


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz"])
async def test_health_is_the_word_ok(api: Api, path: str) -> None:
    answer = await api.get(path, accept="*/*")
    assert (answer.status, answer.text) == (200, "ok")
    assert answer.type.startswith("text/plain")


async def test_metrics_are_in_prometheus_text(api: Api) -> None:
    answer = await api.get("/metrics", accept="*/*")
    assert answer.status == 200
    assert answer.type.startswith("text/plain; version=0.0.4")
    assert "# TYPE apiserver_request_total counter" in answer.text


async def test_the_core_group_is_listed_by_api(api: Api) -> None:
    versions = (await api.get("/api")).ok()
    assert versions["kind"] == "APIVersions"
    assert versions["versions"] == ["v1"]
    assert versions["serverAddressByClientCIDRs"]


async def test_groups_are_listed_with_their_preferred_version(api: Api) -> None:
    groups = (await api.get("/apis")).ok()
    assert (groups["kind"], groups["apiVersion"]) == ("APIGroupList", "v1")
    by_name = {group["name"]: group for group in groups["groups"]}
    version = {"groupVersion": f"{GROUP}/v1", "version": "v1"}
    assert by_name[GROUP]["versions"] == [version]
    assert by_name[GROUP]["preferredVersion"] == version
    wanted = {"apps", "coordination.k8s.io", "storage.k8s.io", "apiextensions.k8s.io", "authorization.k8s.io"}
    assert wanted | {"authentication.k8s.io", "policy", "events.k8s.io"} <= set(by_name)


async def test_one_group_can_be_read(api: Api) -> None:
    group = (await api.get(f"/apis/{GROUP}")).ok()
    assert (group["kind"], group["apiVersion"], group["name"]) == ("APIGroup", "v1", GROUP)
    assert group["preferredVersion"]["version"] == "v1"


async def resources(api: Api, path: str) -> dict[str, dict[str, Any]]:
    listed = (await api.get(path)).ok()
    assert listed["kind"] == "APIResourceList"
    assert listed["groupVersion"] == path.removeprefix("/apis/").removeprefix("/api/")
    return {resource["name"]: resource for resource in listed["resources"]}


async def test_core_resources_are_listed_with_their_subresources(api: Api) -> None:
    core = await resources(api, "/api/v1")
    assert core["pods"]["namespaced"] is True
    assert core["pods"]["kind"] == "Pod"
    assert core["pods"]["singularName"] == "pod"
    assert core["pods"]["shortNames"] == ["po"]
    assert core["pods"]["categories"] == ["all"]
    assert core["nodes"]["namespaced"] is False
    assert core["pods/eviction"]["kind"] == "Eviction"
    assert (core["pods/eviction"]["group"], core["pods/eviction"]["version"]) == ("policy", "v1")
    wanted = {"pods/status", "pods/log", "pods/binding", "pods/resize", "configmaps", "secrets", "events"}
    wanted |= {"namespaces", "namespaces/status", "namespaces/finalize", "serviceaccounts", "nodes/status"}
    wanted |= {"persistentvolumes", "persistentvolumeclaims", "resourcequotas", "limitranges"}
    assert wanted <= set(core)


async def test_resources_name_their_verbs(api: Api) -> None:
    core = await resources(api, "/api/v1")
    every = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    assert sorted(core["configmaps"]["verbs"]) == every
    assert sorted(core["pods/status"]["verbs"]) == ["get", "patch", "update"]
    assert sorted(core["pods/binding"]["verbs"]) == ["create"]
    assert sorted(core["namespaces"]["verbs"]) == [verb for verb in every if verb != "deletecollection"]


async def test_a_custom_resource_is_listed_with_its_names(api: Api) -> None:
    listed = await resources(api, f"/apis/{GROUP}/v1")
    widgets = listed["widgets"]
    assert widgets["kind"] == "Widget"
    assert widgets["singularName"] == "widget"
    assert widgets["shortNames"] == ["wd"]
    assert widgets["categories"] == ["conformance"]
    assert widgets["namespaced"] is True
    assert sorted(listed["widgets/status"]["verbs"]) == ["get", "patch", "update"]


async def unchanged(api: Api, path: str, **options: Any) -> Answer:
    """The answer to who has the document already. A kind that an earlier test has deleted may still be going
    from it, which makes it another one.
    """
    known = (await api.get(path, **options)).headers["ETag"]
    for _ in range(20):
        answer = await api.get(path, headers={"If-None-Match": known}, **options)
        if answer.status != 200 or answer.headers["ETag"] == known:
            break
        known = answer.headers["ETag"]
    return answer


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_aggregated_discovery_says_its_own_type(api: Api, path: str) -> None:
    answer = await api.get(path, accept=KUBECTL, timeout="32s")
    assert answer.ok()["kind"] == "APIGroupDiscoveryList"
    assert answer.json["apiVersion"] == "apidiscovery.k8s.io/v2"
    assert answer.type == V2
    assert answer.headers["Vary"] == "Accept"
    assert answer.headers["Cache-Control"] == "public"
    assert answer.headers["ETag"]


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_aggregated_discovery_that_did_not_change_is_304(api: Api, path: str) -> None:
    answer = await unchanged(api, path, accept=KUBECTL)
    assert (answer.status, answer.raw) == (304, b"")


async def test_aggregated_discovery_has_every_resource(api: Api) -> None:
    core = (await api.get("/api", accept=KUBECTL)).ok()["items"]
    assert [item["metadata"].get("name", "") for item in core] == [""]
    (version,) = core[0]["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    pods = next(resource for resource in version["resources"] if resource["resource"] == "pods")
    assert pods["responseKind"]["kind"] == "Pod"
    assert pods["responseKind"]["version"] in ("", "v1")  # empty: that of the group
    assert (pods["scope"], pods["singularResource"]) == ("Namespaced", "pod")
    assert pods["shortNames"] == ["po"]
    subresources = {sub["subresource"]: sub for sub in pods["subresources"]}
    assert subresources["eviction"]["responseKind"] == {
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
    }
    assert subresources["status"]["verbs"] == ["get", "patch", "update"]


async def test_aggregated_discovery_has_custom_resources(api: Api) -> None:
    groups = (await api.get("/apis", accept=KUBECTL)).ok()["items"]
    mine = next(group for group in groups if group["metadata"]["name"] == GROUP)
    (version,) = mine["versions"]
    widgets = next(resource for resource in version["resources"] if resource["resource"] == "widgets")
    assert widgets["responseKind"] == {"group": GROUP, "version": "v1", "kind": "Widget"}
    assert widgets["categories"] == ["conformance"]
    assert widgets["shortNames"] == ["wd"]
    assert [sub["subresource"] for sub in widgets["subresources"]] == ["status"]


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/apis/no.such.group",
        "/apis/no.such.group/v1",
        "/apis/no.such.group/v1/things",
        f"/apis/{GROUP}/v1/gadgets",
        f"/apis/{GROUP}/v1/namespaces/default/gadgets/one",
    ],
)
async def test_a_path_that_is_not_there_is_plain_text(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.text.strip()) == (404, "404 page not found")
    assert answer.type.startswith("text/plain")


async def test_a_core_resource_that_is_not_there_is_a_status(api: Api) -> None:
    status = (await api.get("/api/v1/gadgets")).refused(404, "NotFound")
    assert status["message"] == "the server could not find the requested resource"


async def test_an_accept_that_nothing_matches_is_406(api: Api) -> None:
    status = (await api.get("/api/v1/namespaces", accept="image/png")).refused(406, "NotAcceptable")
    assert "application/json" in status["message"]
