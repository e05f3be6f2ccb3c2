"""Our client, informers, events and leases against a real kube-apiserver and against the embedded one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS, EVENTS, LEASES, NAMESPACES
from hotvirt.kube.backoff import Backoff
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer
from hotvirt.kube.lease import Election
from tests.targets.target import Target


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig(target.kubeconfig)) as client:
        yield client


@pytest.fixture
async def place(client: Client) -> AsyncIterator[str]:
    name = f"client-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await client.delete(NAMESPACES, name)


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_the_verbs_and_their_refusals(client: Client, place: str) -> None:
    made = await client.create(CONFIGMAPS, config_map("one", a="1"), place, cls=ConfigMap)
    with pytest.raises(AlreadyExists):
        await client.create(CONFIGMAPS, config_map("one"), place)
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"a": "3"}}
    patched = await client.patch(CONFIGMAPS, "one", {"data": {"a": "2"}}, place)
    assert patched["data"] == {"a": "2"}
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, "one", stale, place)
    with pytest.raises(Invalid) as invalid:
        await client.create(CONFIGMAPS, config_map("Not A Name"), place)
    assert invalid.value.details["causes"][0]["field"] == "metadata.name"
    add = [{"op": "add", "path": "/data/b", "value": "4"}]
    assert (await client.patch(CONFIGMAPS, "one", add, place, kind="json"))["data"] == {"a": "2", "b": "4"}
    labels = {"metadata": {"labels": {"x": "y"}}}
    dry = await client.patch(CONFIGMAPS, "one", labels, place, kind="strategic", dry_run=True)
    assert dry["metadata"]["labels"] == {"x": "y"}
    whole = await client.get(CONFIGMAPS, "one", place)
    assert "labels" not in whole["metadata"]
    whole["data"] = {"c": "5"}
    assert (await client.update(CONFIGMAPS, whole, place))["data"] == {"c": "5"}
    with pytest.raises(Conflict):
        await client.delete(CONFIGMAPS, "one", place, uid="00000000-0000-0000-0000-000000000000")
    await client.delete(CONFIGMAPS, "one", place, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "one", place)


async def test_pages_and_selectors(client: Client, place: str) -> None:
    for number in range(7):
        labelled = config_map(f"c{number}")
        labelled["metadata"] = {"name": f"c{number}", "labels": {"odd": str(number % 2)}}
        await client.create(CONFIGMAPS, labelled, place)
    found = await client.list(CONFIGMAPS, place, cls=ConfigMap, label_selector="odd=1", limit=2)
    assert [item.metadata.name for item in found.items] == ["c1", "c3", "c5"]
    found = await client.list(CONFIGMAPS, place, cls=ConfigMap, field_selector="metadata.name=c4")
    assert [item.metadata.name for item in found.items] == ["c4"]


async def test_an_informer_follows(client: Client, place: str) -> None:
    await client.create(CONFIGMAPS, config_map("before", n="0"), place)
    changed = asyncio.Event()
    informer = Informer(client, CONFIGMAPS, ConfigMap, namespace=place, backoff=Backoff(initial=0.01))
    informer.add_handler(lambda old, new: changed.set())
    task = asyncio.create_task(informer.run())

    async def until(n: str | None) -> None:
        async with asyncio.timeout(60):
            while (found := informer.get(place, "before")) is None or found.data.get("n") != n:
                if n is None and found is None:
                    return
                changed.clear()
                await changed.wait()

    try:
        await until("0")
        await client.patch(CONFIGMAPS, "before", {"data": {"n": "1"}}, place)
        await until("1")
        await client.delete(CONFIGMAPS, "before", place)
        await until(None)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_watch_from_long_ago_is_gone(client: Client, place: str) -> None:
    with pytest.raises(Gone):
        async for _ in client.watch(CONFIGMAPS, place, resource_version="1"):
            raise AssertionError("an event from before history")


async def test_events_are_counted(client: Client, place: str) -> None:
    about = await client.create(CONFIGMAPS, config_map("about"), place)
    recorder = Recorder(client, "test", "here")
    for _ in range(3):
        recorder.event(about, "Normal", "Happened", "it happened")
    await recorder.close()
    (event,) = (await client.list(EVENTS, place, field_selector="involvedObject.name=about")).items
    assert (event["reason"], event["count"], event["source"]["component"]) == ("Happened", 3, "test")


async def test_one_leads(client: Client, place: str) -> None:
    led: list[str] = []
    begun = asyncio.Event()

    async def work(name: str, then: asyncio.Event) -> None:
        led.append(name)
        begun.set()
        await then.wait()

    first_ends, second_ends = asyncio.Event(), asyncio.Event()
    options = {"retry": 0.05, "renew_within": 20.0, "duration": 30.0}
    first = Election(client, place, "lead", "first", **options)
    second = Election(client, place, "lead", "second", **options)
    one = asyncio.create_task(first.run(lambda: work("first", first_ends)))
    async with asyncio.timeout(120):
        await begun.wait()
        two = asyncio.create_task(second.run(lambda: work("second", second_ends)))
        first_ends.set()
        await one
        second_ends.set()
        await two
    assert led == ["first", "second"]
    lease = await client.get(LEASES, "lead", place)
    assert not lease["spec"].get("holderIdentity")
