"""Label and field selectors, in lists and watches."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Api
from .conftest import Namespace
from .objects import GROUP, OURS, configmap, pod, widget


def names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("tier=front", ["a"]),
        ("tier==front", ["a"]),
        ("tier!=front", ["b", "c"]),
        ("tier", ["a", "b"]),
        ("!tier", ["c"]),
        ("tier in (front, back)", ["a", "b"]),
        ("tier notin (front)", ["b", "c"]),
        ("tier=front,app=x", ["a"]),
        ("tier=back,app=x", []),
        ("size>1", ["b"]),
        ("size<2", ["a"]),
        ("tier=", []),
        ("", ["a", "b", "c"]),
    ],
)
async def test_label_selectors(api: Api, ns: Namespace, selector: str, found: list[str]) -> None:
    labels = {"a": {"tier": "front", "app": "x", "size": "1"}, "b": {"tier": "back", "size": "2"}, "c": None}
    for name, those in labels.items():
        await api.create(ns.widgets, widget(name, labels=those))
    assert names((await api.get(ns.widgets, labelSelector=selector)).ok()) == found


@pytest.mark.parametrize("selector", ["a b", "=x", "tier in front", "size>big", "a=b=c"])
async def test_a_label_selector_that_is_none_is_400(api: Api, ns: Namespace, selector: str) -> None:
    (await api.get(ns.widgets, labelSelector=selector)).refused(400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name==a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("metadata.name=nobody", []),
    ],
)
@pytest.mark.parametrize("kind", ["widgets", "configmaps"])
async def test_every_kind_can_be_selected_by_name(
    api: Api, ns: Namespace, kind: str, selector: str, found: list[str]
) -> None:
    collection = getattr(ns, kind)
    for name in ("a", "b"):
        await api.create(collection, widget(name) if kind == "widgets" else configmap(name))
    assert names((await api.get(collection, fieldSelector=f"{selector},{OURS}")).ok()) == found


async def test_a_field_that_a_custom_resource_has_not_is_400(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.widgets, fieldSelector="spec.size=1")).refused(400, "BadRequest")
    assert status["message"].endswith("field label not supported: spec.size")


async def test_a_field_that_a_built_in_kind_has_not_is_400(api: Api, ns: Namespace) -> None:
    status = (await api.get(ns.pods, fieldSelector="foo=1")).refused(400, "BadRequest")
    assert status["message"].endswith("field label not supported: foo")


async def test_a_field_selector_that_is_none_is_400(api: Api, ns: Namespace) -> None:
    (await api.get(ns.widgets, fieldSelector="metadata.name")).refused(400, "BadRequest")


@pytest.mark.parametrize(
    "field",
    [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
)
async def test_pods_can_be_selected_by(api: Api, ns: Namespace, field: str) -> None:
    assert names((await api.get(ns.pods, fieldSelector=f"{field}=none-such")).ok()) == []


async def test_pods_are_selected_by_what_they_have(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod("bound", nodeName="somewhere"))
    await api.create(ns.pods, pod("free"))
    for selector, found in {
        "spec.nodeName=somewhere": ["bound"],
        "spec.nodeName=": ["free"],
        "spec.nodeName=somewhere,status.phase!=Succeeded,status.phase!=Failed": ["bound"],
        "status.phase=Pending": ["bound", "free"],
        "status.phase=Running": [],
        "spec.schedulerName=nobody,metadata.name=free": ["free"],
    }.items():
        assert names((await api.get(ns.pods, fieldSelector=selector)).ok()) == found, selector
    for name in ("bound", "free"):
        await api.delete(f"{ns.pods}/{name}", gracePeriodSeconds=0)


async def test_events_are_selected_by_their_object(api: Api, ns: Namespace) -> None:
    events = ns.path("events")
    for name, kind in (("one", "Widget"), ("two", "Gadget")):
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.1"},
            "involvedObject": {"kind": kind, "name": name, "namespace": ns.name, "uid": f"uid-{name}"},
            "reason": "Tested",
            "type": "Normal",
            "message": "It works.",
            "source": {"component": "suite"},
            "reportingComponent": "suite",
        }
        await api.create(events, body)
    selectors = {
        f"involvedObject.name=one,involvedObject.namespace={ns.name}": ["one.1"],
        "involvedObject.kind=Gadget": ["two.1"],
        "involvedObject.uid=uid-one,involvedObject.kind=Widget": ["one.1"],
        "reason=Tested": ["one.1", "two.1"],
        "type=Warning": [],
        "source=suite": ["one.1", "two.1"],
        "reportingComponent=suite": ["one.1", "two.1"],
        "involvedObject.apiVersion=v1": [],
    }
    for selector, found in selectors.items():
        assert names((await api.get(events, fieldSelector=selector)).ok()) == found, selector


async def test_namespaces_are_selected_by_phase(api: Api, ns: Namespace) -> None:
    selector = f"metadata.name={ns.name},status.phase=Active"
    assert names((await api.get("/api/v1/namespaces", fieldSelector=selector)).ok()) == [ns.name]


async def test_secrets_are_selected_by_type(api: Api, ns: Namespace) -> None:
    secrets = ns.path("secrets")
    await api.create(secrets, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}})
    assert names((await api.get(secrets, fieldSelector="type=Opaque")).ok()) == ["one"]
    assert names((await api.get(secrets, fieldSelector="type=kubernetes.io/tls")).ok()) == []


async def test_a_selector_of_a_crd_is_a_field_like_any(api: Api, ns: Namespace) -> None:
    path = f"/apis/{GROUP}/v1/widgets"
    await api.create(ns.widgets, widget("a"))
    listed = (await api.get(path, fieldSelector=f"metadata.namespace={ns.name},metadata.name=a")).ok()
    assert names(listed) == ["a"]


@pytest.mark.parametrize("selector", [{"labelSelector": "pick=yes"}, {"fieldSelector": "metadata.name=a"}])
async def test_a_watch_has_what_its_selector_picks(api: Api, ns: Namespace, selector: dict[str, str]) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version, **selector) as watch:
        await api.create(ns.widgets, widget("b"))
        await api.create(ns.widgets, widget("a", labels={"pick": "yes"}))
        await watch.expect("ADDED", "a")


async def test_an_object_that_comes_to_match_is_added(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    version = made["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version, labelSelector="pick=yes") as watch:
        (await api.patch(f"{ns.widgets}/one", {"metadata": {"labels": {"pick": "yes"}}})).ok()
        await watch.expect("ADDED", "one")


async def test_an_object_that_matches_no_longer_is_deleted(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget(labels={"pick": "yes"}))
    version = made["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version, labelSelector="pick=yes") as watch:
        changed = (await api.patch(f"{ns.widgets}/one", {"metadata": {"labels": {"pick": "no"}}})).ok()
        gone = await watch.expect("DELETED", "one")
        assert gone["metadata"]["labels"] == {"pick": "yes"}
        assert gone["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_a_pod_that_ends_leaves_the_watch_of_running_ones(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.pods, pod())
    version = made["metadata"]["resourceVersion"]
    selector = "status.phase!=Succeeded"
    async with api.watch(ns.pods, resourceVersion=version, fieldSelector=selector) as watch:
        (await api.patch(f"{ns.pods}/one/status", {"status": {"phase": "Running"}})).ok()
        await watch.expect("MODIFIED", "one")
        (await api.patch(f"{ns.pods}/one/status", {"status": {"phase": "Succeeded"}})).ok()
        await watch.expect("DELETED", "one")
