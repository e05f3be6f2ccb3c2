"""Informers against a real HTTP server that ends, breaks, repeats and forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS
from hotvirt.kube.backoff import Backoff
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informer, Informers

from .tiny_api import TinyApi, config_map, status

Change = tuple[str | None, str | None]


class Watched:
    """An informer of ConfigMaps, with what its handler was told."""

    def __init__(self, api: TinyApi, client: Client, **options: Any) -> None:
        self.api = api
        self.changes: list[tuple[ConfigMap | None, ConfigMap | None]] = []
        self.changed = asyncio.Event()
        quick = Backoff(initial=0.001, maximum=0.01)
        self.informer = Informer(client, CONFIGMAPS, ConfigMap, backoff=quick, **options)
        self.informer.add_handler(self._handle)

    def _handle(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.changes.append((old, new))
        self.changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    def data(self, name: str) -> dict[str, str] | None:
        found = self.informer.get("default", name)
        return None if found is None else dict(found.data)


@asynccontextmanager
async def watched(api: TinyApi, **options: Any) -> AsyncIterator[Watched]:
    async with api.running() as config, Client(config) as client:
        it = Watched(api, client, **options)
        task = asyncio.create_task(it.informer.run())
        try:
            async with asyncio.timeout(60):
                await it.informer.synced()
            yield it
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_it_lists_in_pages_then_follows() -> None:
    api = TinyApi()
    for number in range(7):
        await api.put("configmaps", config_map(f"c{number}", n=str(number)))
    async with watched(api, page_size=3) as it:
        assert len(it.informer.list()) == 7
        assert api.count("GET", limit="3") == 3
        await api.put("configmaps", config_map("c0", n="changed"))
        await api.put("configmaps", config_map("new"))
        await api.remove("configmaps", "default", "c1")
        await it.until(lambda: it.data("c1") is None)
        assert it.data("c0") == {"n": "changed"}
        assert it.data("new") == {}
        names = [(old and old.metadata.name, new and new.metadata.name) for old, new in it.changes[7:]]
        assert names == [("c0", "c0"), (None, "new"), ("c1", None)]
        old, new = it.changes[7]
        assert old and new and (old.data, new.data) == ({"n": "0"}, {"n": "changed"})


async def test_the_whole_object_is_there_with_what_the_view_does_not_know() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one") | {"unknown": {"kept": None}})
    async with watched(api) as it:
        raw = it.informer.raw("default", "one")
        assert raw and raw["unknown"] == {"kept": None}
        assert (raw["apiVersion"], raw["kind"]) == ("v1", "ConfigMap")
        raw["data"] = {"mine": "now"}
        assert it.data("one") == {}
        assert it.informer.raw("default", "nothing") is None
        assert it.informer.get("default", "one") is it.informer.get("default", "one")


async def test_a_watch_that_ends_is_resumed_where_it_was() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    async with watched(api) as it:
        await api.put("configmaps", config_map("two"))
        await it.until(lambda: it.data("two") == {})
        version = str(api.version)
        await api.end_watches()
        await api.until(lambda: api.count("GET", watch="1", resourceVersion=version) == 1)
        await api.put("configmaps", config_map("three"))
        await it.until(lambda: it.data("three") == {})
        assert api.count("GET", limit="500") == 1


async def test_bookmarks_move_the_place_to_resume_at() -> None:
    api = TinyApi()
    async with watched(api) as it:
        api.version = 900
        await api.send("BOOKMARK", "configmaps", {"metadata": {"resourceVersion": "900"}})
        await api.put("configmaps", config_map("after"))
        await it.until(lambda: it.data("after") == {})
        assert len(it.changes) == 1
        api.version = 1000
        await api.send("BOOKMARK", "configmaps", {"metadata": {"resourceVersion": "1000"}})
        await api.end_watches()
        await api.until(lambda: api.count("GET", watch="1") >= 2)
        assert api.requests[-1].query["resourceVersion"] == "1000"
        assert api.requests[-1].query["allowWatchBookmarks"] == "true"


async def test_a_watch_too_old_is_listed_anew_and_the_difference_told() -> None:
    api = TinyApi()
    for name in ("stays", "changes", "goes"):
        await api.put("configmaps", config_map(name))
    async with watched(api) as it:
        refused = asyncio.Event()

        async def down(request: web.Request) -> web.StreamResponse:
            refused.set()
            return status(500, "InternalError", "down")

        api.interfere = down
        await api.end_watches()
        await refused.wait()
        api.objects[("configmaps", "default", "changes")]["data"] = {"x": "1"}
        api.objects[("configmaps", "default", "changes")]["metadata"]["resourceVersion"] = "150"
        del api.objects[("configmaps", "default", "goes")]
        api.version = 200
        api.forget_history()
        api.interfere = None
        await it.until(lambda: it.data("changes") == {"x": "1"})
        assert it.data("goes") is None
        told = [(old and old.metadata.name, new and new.metadata.name) for old, new in it.changes[3:]]
        assert told == [("goes", None), ("changes", "changes")]


async def test_a_resource_that_is_not_served_has_no_objects_until_it_is() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))

    async def unknown(request: web.Request) -> web.StreamResponse:
        return status(404, "NotFound", "the server could not find the requested resource")

    api.interfere = unknown
    async with watched(api, optional=True) as it:
        assert it.informer.list() == []
        api.interfere = None
        await it.until(lambda: it.data("one") == {})
        api.interfere = unknown
        await api.end_watches()
        await it.until(lambda: it.informer.list() == [])


async def test_a_connection_that_is_silent_for_too_long_is_dropped() -> None:
    api = TinyApi()
    silent = asyncio.Event()

    async def half_open(request: web.Request) -> web.StreamResponse | None:
        if request.query.get("watch") and not silent.is_set():
            silent.set()
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        return None

    api.interfere = half_open
    async with watched(api, inactivity=0.05) as it:
        await silent.wait()
        await api.put("configmaps", config_map("unseen by the dead connection"))
        await it.until(lambda: it.data("unseen by the dead connection") == {})
        assert api.count("GET", limit="500") == 1


async def test_a_watch_cut_off_in_the_middle_of_an_event_loses_nothing() -> None:
    api = TinyApi()
    cut = asyncio.Event()

    async def cut_off(request: web.Request) -> web.StreamResponse | None:
        if request.query.get("watch") and not cut.is_set():
            cut.set()
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"ha')
            return response
        return None

    api.interfere = cut_off
    async with watched(api) as it:
        await cut.wait()
        await api.put("configmaps", config_map("whole"))
        await it.until(lambda: it.data("whole") == {})
        assert [item.metadata.name for item in it.informer.list()] == ["whole"]


async def test_events_twice_or_late_change_nothing() -> None:
    api = TinyApi()
    async with watched(api) as it:
        first = msgspec.json.decode(
            msgspec.json.encode(await api.put("configmaps", config_map("one", v="1")))
        )
        second = msgspec.json.decode(
            msgspec.json.encode(await api.put("configmaps", config_map("one", v="2")))
        )
        await it.until(lambda: it.data("one") == {"v": "2"})
        await api.send("MODIFIED", "configmaps", second)
        await api.send("MODIFIED", "configmaps", first)
        await api.send("DELETED", "configmaps", first)
        await api.put("configmaps", config_map("mark"))
        await it.until(lambda: it.data("mark") == {})
        assert it.data("one") == {"v": "2"}
        assert len(it.changes) == 3


async def test_one_unreadable_object_does_not_stop_the_others() -> None:
    api = TinyApi()
    await api.put(
        "configmaps", {"metadata": {"name": "bad", "namespace": "default"}, "data": ["not", "a", "map"]}
    )
    await api.put("configmaps", config_map("good"))
    async with watched(api) as it:
        assert [item.metadata.name for item in it.informer.list()] == ["good"]


async def test_indexes_follow_every_change() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("a", owner="x"))
    await api.put("configmaps", config_map("b", owner="x"))

    def by_owner(item: ConfigMap) -> list[str]:
        return [item.data["owner"]] if "owner" in item.data else []

    async with watched(api, indexes={"owner": by_owner}) as it:

        def owned(owner: str) -> list[str]:
            return sorted(item.metadata.name for item in it.informer.by_index("owner", owner))

        assert owned("x") == ["a", "b"]
        await api.put("configmaps", config_map("a", owner="y"))
        await it.until(lambda: it.data("a") == {"owner": "y"})
        assert (owned("x"), owned("y")) == (["b"], ["a"])
        await api.remove("configmaps", "default", "b")
        await it.until(lambda: it.data("b") is None)
        assert (owned("x"), owned("y"), owned("z")) == ([], ["a"], [])


async def test_a_handler_that_comes_late_hears_of_what_is_there_and_one_that_fails_harms_nobody() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))

    def broken(old: ConfigMap | None, new: ConfigMap | None) -> None:
        raise RuntimeError("broken handler")

    async with watched(api) as it:
        late: list[Change] = []
        it.informer.add_handler(broken)
        it.informer.add_handler(
            lambda old, new: late.append((old and old.metadata.name, new and new.metadata.name))
        )
        assert late == [(None, "one")]
        await api.put("configmaps", config_map("two"))
        await it.until(lambda: it.data("two") == {})
        assert late == [(None, "one"), (None, "two")]


async def test_selectors_and_the_servers_time_out_are_sent() -> None:
    api = TinyApi()
    async with watched(api, namespace="default", label_selector="a=b", field_selector="metadata.name=x"):
        await api.until(lambda: api.count("GET", watch="1") == 1)
        for request in api.requests:
            assert request.path == "/api/v1/namespaces/default/configmaps"
            assert request.query["labelSelector"] == "a=b"
            assert request.query["fieldSelector"] == "metadata.name=x"
        assert 300 <= int(api.requests[-1].query["timeoutSeconds"]) <= 600


async def test_informers_are_shared() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one", owner="x"))
    async with api.running() as config, Client(config) as client:
        informers = Informers(client)
        one = informers.of(CONFIGMAPS, ConfigMap)
        two = informers.of(CONFIGMAPS, ConfigMap, indexes={"owner": lambda item: [item.data["owner"]]})
        assert one is two
        assert informers.of(CONFIGMAPS, ConfigMap, namespace="other") is not one
        task = asyncio.create_task(informers.run())
        async with asyncio.timeout(60):
            await informers.synced()
        assert [item.metadata.name for item in one.by_index("owner", "x")] == ["one"]
        task.cancel()
        await asyncio.wait([task])


def test_backoff_grows_to_its_maximum_with_jitter() -> None:
    backoff = Backoff(initial=1, maximum=8, jitter=0.5, rng=lambda: 0.5)
    assert [backoff.next() for _ in range(5)] == [1.25, 2.5, 5, 10, 10]
    backoff.reset()
    assert backoff.next() == 1.25


async def test_a_server_that_refuses_is_not_hammered() -> None:
    api = TinyApi()

    async def refuse(request: web.Request) -> web.StreamResponse:
        return status(403, "Forbidden", "no")

    api.interfere = refuse
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            enough.set()
            await asyncio.Event().wait()

    async with api.running() as config, Client(config) as client:
        informer = Informer(client, CONFIGMAPS, ConfigMap, sleep=sleep, rng=lambda: 0.0)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            await enough.wait()
        task.cancel()
        await asyncio.wait([task])
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])


async def test_what_a_write_was_answered_with_is_there_before_the_watch_has_it() -> None:
    api = TinyApi()
    first = await api.put("configmaps", config_map("one", text="old"))
    async with watched(api) as it:
        known = it.informer.get("default", "one")
        assert known is not None
        ahead = msgspec.structs.replace(
            known,
            data={"text": "mine"},
            metadata=msgspec.structs.replace(
                known.metadata, resource_version=str(int(first["metadata"]["resourceVersion"]) + 1)
            ),
        )
        it.informer.learn(ahead)
        assert it.data("one") == {"text": "mine"}
        it.informer.learn(known)
        assert it.data("one") == {"text": "mine"}, "an older answer changes nothing"
        await api.put("configmaps", config_map("one", text="newer"))
        await it.until(lambda: it.data("one") == {"text": "newer"})
        it.informer.learn(ahead)
        assert it.data("one") == {"text": "newer"}, "the watch knows as much"
        it.informer.learn(
            msgspec.structs.replace(ahead, metadata=msgspec.structs.replace(ahead.metadata, uid="x"))
        )
        await api.remove("configmaps", "default", "one")
        await it.until(lambda: it.data("one") is None)
        it.informer.learn(ahead)
        assert it.data("one") is None, "what is gone does not come back"
