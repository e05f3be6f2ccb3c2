"""Watches: where they start, what they send, how they end."""

from __future__ import annotations

import pytest

from .client import Api
from .conftest import Namespace
from .objects import GROUP, OURS, configmap, widget

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


async def test_a_watch_sends_every_change_once(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version) as watch:
        made = await api.create(ns.widgets, widget())
        assert await watch.expect("ADDED", "one") == made
        changed = (await api.patch(f"{ns.widgets}/one", {"spec": {"size": 2}})).ok()
        assert await watch.expect("MODIFIED", "one") == changed
        (await api.delete(f"{ns.widgets}/one")).ok()
        gone = await watch.expect("DELETED", "one")
        assert gone["spec"] == changed["spec"]
        assert int(gone["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_objects_of_built_in_kinds_have_kind_and_version(api: Api, ns: Namespace) -> None:
    await api.create(ns.configmaps, configmap())
    async with api.watch(ns.configmaps, fieldSelector=OURS) as watch:
        found = await watch.expect("ADDED", "one")
        assert (found["kind"], found["apiVersion"]) == ("ConfigMap", "v1")


async def test_a_watch_is_a_stream_of_json(api: Api, ns: Namespace) -> None:
    async with api.watch(ns.widgets, resourceVersion="0") as watch:
        assert watch.headers["Content-Type"] in ("application/json", "application/json;stream=watch")
        assert watch.headers.get("Transfer-Encoding") == "chunked"


async def test_a_watch_without_a_version_starts_with_what_is_there(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget("a"))
    await api.create(ns.widgets, widget("b"))
    async with api.watch(ns.widgets) as watch:
        first = [await watch.next(), await watch.next()]
        assert {(event["type"], event["object"]["metadata"]["name"]) for event in first} == {
            ("ADDED", "a"),
            ("ADDED", "b"),
        }
        await api.create(ns.widgets, widget("c"))
        await watch.expect("ADDED", "c")


async def test_a_watch_from_zero_starts_with_what_is_there(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget("a"))
    # A list at this version: the server's caches have it now.
    (await api.get(ns.widgets, resourceVersion=made["metadata"]["resourceVersion"])).ok()
    async with api.watch(ns.widgets, resourceVersion="0") as watch:
        await watch.expect("ADDED", "a")


async def test_a_watch_from_a_version_has_what_came_after(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget("a"))
    await api.create(ns.widgets, widget("b"))
    (await api.delete(f"{ns.widgets}/a")).ok()
    async with api.watch(ns.widgets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        await watch.expect("ADDED", "b")
        await watch.expect("DELETED", "a")


async def test_a_watch_of_all_namespaces(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    everywhere = f"/apis/{GROUP}/v1/widgets"
    selector = f"metadata.namespace={ns.name}"
    async with api.watch(everywhere, resourceVersion=version, fieldSelector=selector) as watch:
        await api.create(ns.widgets, widget("a"))
        found = await watch.expect("ADDED", "a")
        assert found["metadata"]["namespace"] == ns.name


async def test_a_watch_of_one_namespace_hears_of_no_other(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.configmaps)).ok()["metadata"]["resourceVersion"]
    async with api.watch(ns.configmaps, resourceVersion=version, fieldSelector=OURS) as watch:
        await api.create(Namespace("default").configmaps, configmap(f"in-default-{ns.name}"))
        await api.create(ns.configmaps, configmap("mine"))
        await watch.expect("ADDED", "mine")
    await api.delete(f"{Namespace('default').configmaps}/in-default-{ns.name}")


async def test_a_watch_ends_after_its_time(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version, timeoutSeconds=1) as watch:
        await watch.ended(within=30)


async def test_a_watch_with_bookmarks_sends_one_before_it_ends(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with api.watch(
        ns.widgets, resourceVersion=version, allowWatchBookmarks=True, timeoutSeconds=6
    ) as watch:
        made = await api.create(ns.widgets, widget())
        event = await watch.next()
        while event["type"] == "BOOKMARK":  # on a slow machine they begin before the object is made
            event = await watch.next()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "one")
        event = await watch.next()
        assert event["type"] == "BOOKMARK"
        mark = event["object"]
        assert (mark["kind"], mark["apiVersion"]) == ("Widget", f"{GROUP}/v1")
        assert int(mark["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])
        assert not mark["metadata"].get("name")


async def test_send_initial_events_ends_them_with_a_bookmark(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget("a"))
    await api.create(ns.widgets, widget("b"))
    async with api.watch(
        ns.widgets,
        sendInitialEvents=True,
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks=True,
    ) as watch:
        first = [await watch.next(), await watch.next()]
        assert {event["object"]["metadata"]["name"] for event in first} == {"a", "b"}
        assert {event["type"] for event in first} == {"ADDED"}
        end = await watch.next()
        assert end["type"] == "BOOKMARK"
        assert end["object"]["metadata"]["annotations"] == {INITIAL_EVENTS_END: "true"}
        assert (end["object"]["kind"], end["object"]["apiVersion"]) == ("Widget", f"{GROUP}/v1")
        await api.create(ns.widgets, widget("c"))
        await watch.expect("ADDED", "c")


async def test_send_initial_events_of_nothing_is_the_bookmark_alone(api: Api, ns: Namespace) -> None:
    async with api.watch(
        ns.configmaps,
        sendInitialEvents=True,
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks=True,
        fieldSelector="metadata.name=none",
    ) as watch:
        end = await watch.next()
        assert end["type"] == "BOOKMARK"
        assert end["object"]["metadata"]["annotations"] == {INITIAL_EVENTS_END: "true"}
        assert end["object"]["kind"] == "ConfigMap"


async def test_send_initial_events_false_has_only_what_comes(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget("a"))
    async with api.watch(
        ns.widgets,
        sendInitialEvents=False,
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks=True,
    ) as watch:
        await api.create(ns.widgets, widget("b"))
        await watch.expect("ADDED", "b")


async def test_send_initial_events_needs_a_match(api: Api, ns: Namespace) -> None:
    answer = await api.get(ns.widgets, watch=True, sendInitialEvents=True, allowWatchBookmarks=True)
    status = answer.refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueForbidden", "resourceVersionMatch")


async def test_send_initial_events_is_for_watches(api: Api, ns: Namespace) -> None:
    answer = await api.get(ns.widgets, sendInitialEvents=True, resourceVersionMatch="NotOlderThan")
    status = answer.refused(422, "Invalid")
    assert "sendInitialEvents" in {cause["field"] for cause in status["details"]["causes"]}


async def test_a_match_is_for_send_initial_events(api: Api, ns: Namespace) -> None:
    answer = await api.get(ns.widgets, watch=True, resourceVersion="0", resourceVersionMatch="NotOlderThan")
    status = answer.refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueForbidden", "resourceVersionMatch")


@pytest.mark.parametrize("kind", ["widgets", "configmaps"])
async def test_a_forgotten_version_is_an_error_event(api: Api, ns: Namespace, kind: str) -> None:
    async with api.watch(getattr(ns, kind), resourceVersion="1") as watch:
        event = await watch.next()
        assert event["type"] == "ERROR"
        status = event["object"]
        assert (status["kind"], status["apiVersion"]) == ("Status", "v1")
        assert (status["code"], status["reason"], status["status"]) == (410, "Expired", "Failure")
        assert status["message"].startswith("too old resource version: 1 (")
        await watch.ended()


async def test_the_old_watch_path_works(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.configmaps)).ok()["metadata"]["resourceVersion"]
    old = ns.configmaps.replace("/api/v1/", "/api/v1/watch/")
    async with api.watch(old, resourceVersion=version, fieldSelector=OURS) as watch:
        await api.create(ns.configmaps, configmap())
        await watch.expect("ADDED", "one")


async def test_two_watches_see_the_same(api: Api, ns: Namespace) -> None:
    version = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    async with (
        api.watch(ns.widgets, resourceVersion=version) as first,
        api.watch(ns.widgets, resourceVersion=version) as second,
    ):
        for name in ("a", "b", "c"):
            await api.create(ns.widgets, widget(name))
        seen = [[(await watch.next())["object"] for _ in range(3)] for watch in (first, second)]
        assert seen[0] == seen[1]
        versions = [int(found["metadata"]["resourceVersion"]) for found in seen[0]]
        assert versions == sorted(versions)


async def test_a_watch_of_one_object(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget("a"))
    made = await api.create(ns.widgets, widget("b"))
    version = made["metadata"]["resourceVersion"]
    async with api.watch(ns.widgets, resourceVersion=version, fieldSelector="metadata.name=b") as watch:
        (await api.patch(f"{ns.widgets}/a", {"spec": {"size": 2}})).ok()
        (await api.patch(f"{ns.widgets}/b", {"spec": {"size": 2}})).ok()
        await watch.expect("MODIFIED", "b")


async def test_a_deletion_that_is_held_is_a_modification(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["finalizers"] = ["conformance.hotvirt.io/hold"]
    made = await api.create(ns.widgets, body)
    async with api.watch(ns.widgets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        (await api.delete(f"{ns.widgets}/one")).ok()
        marked = await watch.expect("MODIFIED", "one")
        assert marked["metadata"]["deletionTimestamp"]
        (await api.patch(f"{ns.widgets}/one", {"metadata": {"finalizers": None}})).ok()
        await watch.expect("DELETED", "one")
