"""The life of a process on a cluster: a part that ends ends it, it waits for a cluster, it says why not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from aiohttp import ClientSession, web

from hotvirt.api import names
from hotvirt.cluster.health import Health
from hotvirt.cluster.listener import open_socket
from hotvirt.cluster.process import PartFailed, end, first_failure, may_work
from hotvirt.cluster.refusal import OURS
from hotvirt.kube.client import Client

from .tiny_api import TinyApi


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise RuntimeError("no more room")


async def returns() -> None:
    return


async def test_a_part_that_fails_ends_the_process_with_its_error() -> None:
    tasks = [asyncio.create_task(for_ever()), asyncio.create_task(fails())]
    with pytest.raises(RuntimeError, match="no more room"):
        await first_failure(tasks, asyncio.Event())
    await end(tasks)
    assert all(task.done() for task in tasks)


async def test_a_part_that_merely_returns_is_a_failure_too() -> None:
    tasks = [asyncio.create_task(returns(), name="consoles")]
    with pytest.raises(PartFailed, match="consoles"):
        await first_failure(tasks, asyncio.Event())


async def test_the_wish_to_stop_is_no_failure() -> None:
    stopping = asyncio.Event()
    stopping.set()
    tasks = [asyncio.create_task(for_ever())]
    await first_failure(tasks, stopping)
    assert not tasks[0].done()
    await end(tasks)


def crd(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_PART_OF: names.PART_OF}}}


async def answer_version(request: web.Request) -> web.StreamResponse | None:
    if request.path == "/version":
        return web.json_response({"major": "1", "minor": "37", "gitVersion": "v1.37.1"})
    return None


async def test_a_cluster_without_our_crds_is_waited_for_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotvirt.cluster.process.LOOK_AGAIN", 0.01)
    api, health = TinyApi(), Health()
    api.interfere = answer_version
    async with api.running() as config, Client(config) as client, asyncio.timeout(10):
        waiting = asyncio.create_task(may_work(client, health, asyncio.Event()))
        await api.until(lambda: api.count("GET") > 8)
        (reason,) = health.reasons()
        assert "The CRD virtualmachines.kubevirt.io is missing" in reason
        for resource in OURS:
            await api.put("customresourcedefinitions", crd(resource.group_resource))
        assert await waiting is True
        assert health.reasons() == []


async def test_asked_to_stop_it_waits_no_longer() -> None:
    api, stopping = TinyApi(), asyncio.Event()
    async with api.running() as config, Client(config) as client, asyncio.timeout(10):
        waiting = asyncio.create_task(may_work(client, Health(), stopping))
        await api.until(lambda: api.count("GET") > 0)
        stopping.set()
        assert await waiting is False


async def test_health_tells_every_reason() -> None:
    health = Health()
    await health.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{health.port}"
    try:
        async with ClientSession() as session:
            async with session.get(f"{url}/readyz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            health.not_ready("cluster", "it is too old")
            health.unless("lease", lambda: None)
            async with session.get(f"{url}/readyz") as answer:
                assert (answer.status, await answer.text()) == (503, "cluster: it is too old\n")
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/metrics") as answer:
                assert "process_resident_memory_bytes" in await answer.text()
    finally:
        await health.stop()


def test_every_address_of_either_family() -> None:
    with contextlib.closing(open_socket("", 0)) as listening:
        port = listening.getsockname()[1]
        families = [(socket.AF_INET, "127.0.0.1")]
        if listening.family == socket.AF_INET6:
            families.append((socket.AF_INET6, "::1"))
        for family, address in families:
            with socket.socket(family) as connection:
                connection.connect((address, port))
