"""Parts in the server's own process are answered as everybody else is, only sooner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hotvirt.api import names
from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS, NAMESPACES
from hotvirt.embedded.apiserver.server import ApiServer
from hotvirt.embedded.apiserver.store import Store
from hotvirt.embedded.inside import Inside, InsideTransport
from hotvirt.embedded.pki import Pki
from hotvirt.kube.client import Client
from hotvirt.kube.config import ClientConfig
from hotvirt.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Gone, NotFound
from hotvirt.kube.informer import Informer
from tests.inprocess import quick_folder


class World:
    def __init__(self, server: ApiServer, pki: Pki, audit: list[dict[str, Any]]) -> None:
        self.server, self.pki, self.inside = server, pki, Inside()
        self.audit = audit

    def client(self, user: str, *groups: str, token: str = "", patient: bool = False) -> Client:
        config = ClientConfig(
            unix_socket=self.server._socket, token=token or self.pki.token_for(user, groups)
        )
        return Client(config, transport=InsideTransport(self.inside, config, "test", patient))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with quick_folder() as folder:
        pki = Pki.open(folder / "pki")
        audit: list[dict[str, Any]] = []
        server = ApiServer(Store(folder / "api.db"), pki, socket=folder / "api.sock", on_audit=audit.append)
        await server.start(0)
        try:
            yield World(server, pki, audit)
        finally:
            await server.stop()


@pytest.mark.parametrize("there", [False, True])
async def test_the_same_answers_by_socket_and_inside(world: World, there: bool) -> None:
    world.inside.server = world.server if there else None
    async with world.client("one", names.MASTERS_GROUP) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "ns"}})
        body = {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}}
        made = await client.create(CONFIGMAPS, body, "ns", cls=ConfigMap)
        assert made.data == {"k": "v"}
        await client.create(CONFIGMAPS, {"metadata": {"name": "b"}}, "ns")
        listed = await client.list(CONFIGMAPS, "ns", label_selector="x=1")
        assert [each["metadata"]["name"] for each in listed.items] == ["a"]
        dry = await client.patch(CONFIGMAPS, "a", {"data": {"k": "dry"}}, "ns", dry_run=True)
        assert dry["data"] == {"k": "dry"}
        assert (await client.get(CONFIGMAPS, "a", "ns"))["data"] == {"k": "v"}
        with pytest.raises(AlreadyExists):
            await client.create(CONFIGMAPS, body, "ns")
        with pytest.raises(NotFound):
            await client.get(CONFIGMAPS, "none", "ns")
        with pytest.raises(Conflict):
            await client.patch(CONFIGMAPS, "a", {"metadata": {"resourceVersion": "1"}}, "ns")
        async for event in client.watch(CONFIGMAPS, "ns", resource_version=made.metadata.resource_version):
            assert event.object["metadata"]["name"] == "b"
            break
        await client.delete(CONFIGMAPS, "a", "ns")


@pytest.mark.parametrize("there", [False, True])
async def test_a_watch_by_socket_and_inside(world: World, there: bool) -> None:
    world.inside.server = world.server if there else None
    async with world.client("one", names.MASTERS_GROUP) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "ns"}})
        since = (await client.list(CONFIGMAPS, "ns")).resource_version
        watch = client.watch(CONFIGMAPS, "ns", resource_version=since, label_selector="x=1")
        first = asyncio.ensure_future(anext(watch))
        for name, labels in (("a", {}), ("b", {"x": "1"})):
            await client.create(CONFIGMAPS, {"metadata": {"name": name, "labels": labels}}, "ns")
        event = await first
        assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "b")
        await client.delete(CONFIGMAPS, "b", "ns")
        assert (await anext(watch)).type == "DELETED"
        assert (client.transport._session is None) == there
        await watch.aclose()
        if there:  # over a socket, the server hears of it a moment later
            assert not world.server.api.hub.count()
        world.server.store.compact(everything=True)
        with pytest.raises(Gone):
            await anext(client.watch(CONFIGMAPS, "ns", resource_version="1"))


@pytest.mark.parametrize("patient", [False, True])
async def test_a_copy_inside_is_current_when_the_write_is_answered(world: World, patient: bool) -> None:
    world.inside.server = world.server
    async with (
        world.client("one", names.MASTERS_GROUP) as client,
        world.client("two", names.MASTERS_GROUP, patient=patient) as other,
    ):
        await client.create(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"n": "0"}}, "default")
        copy = Informer(other, CONFIGMAPS, ConfigMap, namespace="default")
        told = asyncio.Queue[tuple[str, bool]]()
        answered = False

        def changed(old: ConfigMap | None, new: ConfigMap | None) -> None:
            assert new is not None
            told.put_nowait((new.data["n"], answered))

        copy.add_handler(changed)
        follows = asyncio.create_task(copy.run())
        async with asyncio.timeout(10):
            assert await told.get() == ("0", False)
            await client.patch(CONFIGMAPS, "a", {"data": {"n": "its watch is there"}}, "default")
            await told.get()
            for number in ("1", "2"):
                answered = False
                await client.patch(CONFIGMAPS, "a", {"data": {"n": number}}, "default")
                answered = True
                assert await told.get() == (number, patient)
            await client.delete(CONFIGMAPS, "a", "default")
            gone = copy.get("default", "a") is None
            assert gone is not patient
        follows.cancel()
        await asyncio.wait([follows])
        assert not world.server.api.hub.count()


async def test_a_watch_inside_ends_with_the_server(world: World) -> None:
    world.inside.server = world.server
    async with world.client("one", names.MASTERS_GROUP) as client:
        since = (await client.list(CONFIGMAPS, "default")).resource_version
        watch = client.watch(CONFIGMAPS, "default", resource_version=since)
        await client.create(CONFIGMAPS, {"metadata": {"name": "a"}}, "default")
        assert (await anext(watch)).type == "ADDED"
        world.server.api.hub.close()
        assert await anext(watch, None) is None


async def test_a_watch_inside_is_refused_as_any_other(world: World) -> None:
    world.inside.server = world.server
    async with world.client("stranger") as client:
        with pytest.raises(Forbidden):
            await anext(client.watch(CONFIGMAPS, "default", resource_version="0"))
    assert not world.server.api.hub.count()


async def test_inside_counts_who_one_is_and_is_written_down(world: World) -> None:
    world.inside.server = world.server
    async with world.client("stranger") as client:
        with pytest.raises(Forbidden):
            await client.create(NAMESPACES, {"metadata": {"name": "no"}})
    async with world.client("", token="wrong") as client:
        with pytest.raises(ApiError) as refused:
            await client.list(NAMESPACES)
        assert refused.value.code == 401
    async with world.client("one", names.MASTERS_GROUP) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "yes"}})
    written = [(each["user"], each["verb"], each["code"]) for each in world.audit]
    assert written[-2:] == [("stranger", "create", 403), ("one", "create", 201)]
