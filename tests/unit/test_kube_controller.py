"""A controller on real informers: what is worked on, when again, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from hotvirt.api.core import ConfigMap
from hotvirt.api.resources import CONFIGMAPS
from hotvirt.kube.client import Client
from hotvirt.kube.controller import Controller
from hotvirt.kube.errors import Conflict, ServerError
from hotvirt.kube.informer import Informer, Key

from .tiny_api import TinyApi, config_map


@asynccontextmanager
async def running(
    api: TinyApi,
    reconcile: Callable[[Key], Awaitable[float | None]],
    workers: int = 4,
    resync: float | None = None,
) -> AsyncIterator[Controller]:
    async with api.running() as config, Client(config) as client:
        informer = Informer(client, CONFIGMAPS, ConfigMap)
        controller = Controller("test", reconcile, workers=workers, resync=resync)
        controller.watch(informer, lambda item: [item.metadata.key])
        tasks = [asyncio.create_task(informer.run()), asyncio.create_task(controller.run())]
        try:
            async with asyncio.timeout(60):
                yield controller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_everything_there_and_everything_that_changes_is_reconciled() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    seen: asyncio.Queue[Key] = asyncio.Queue()

    async def reconcile(key: Key) -> None:
        seen.put_nowait(key)

    async with running(api, reconcile) as controller:
        assert await seen.get() == ("default", "one")
        await controller.settled()
        await api.put("configmaps", config_map("two"))
        assert await seen.get() == ("default", "two")
        await api.remove("configmaps", "default", "one")
        assert await seen.get() == ("default", "one")


async def test_failures_and_conflicts_are_retried_and_a_number_means_again_later() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    outcomes = [Conflict(409), ServerError(500), RuntimeError("bug"), 0.01]
    finished = asyncio.Event()

    async def reconcile(key: Key) -> float | None:
        if outcomes:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finished.set()
        return None

    async with running(api, reconcile) as controller:
        await finished.wait()
        await controller.settled()
        assert controller.queue.failures(("default", "one")) == 0


async def test_one_key_is_never_worked_on_by_two() -> None:
    api = TinyApi()
    working: set[Key] = set()
    by_two: list[Key] = []
    rounds = 0
    last = asyncio.Event()

    async def reconcile(key: Key) -> None:
        nonlocal rounds
        if key in working:
            by_two.append(key)  # a failure in here would only be tried again
        working.add(key)
        await asyncio.sleep(0.002)
        working.discard(key)
        rounds += 1
        if api.objects.get(("configmaps", "default", "one"), {}).get("data") == {"n": "19"}:
            last.set()

    async with running(api, reconcile) as controller:
        for number in range(20):
            await api.put("configmaps", config_map("one", n=str(number)))
            await asyncio.sleep(0)
        await last.wait()
        await controller.settled()
        assert by_two == []
        assert 1 <= rounds <= 20


async def test_resync_looks_at_everything_again() -> None:
    api = TinyApi()
    await api.put("configmaps", config_map("one"))
    seen: asyncio.Queue[Key] = asyncio.Queue()

    async def reconcile(key: Key) -> None:
        seen.put_nowait(key)

    async with running(api, reconcile, resync=0.01):
        for _ in range(3):
            assert await seen.get() == ("default", "one")


async def test_changes_that_may_wait_are_reconciled_together() -> None:
    api = TinyApi()
    seen: asyncio.Queue[Key] = asyncio.Queue()

    async def reconcile(key: Key) -> None:
        seen.put_nowait(key)

    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        informer = Informer(client, CONFIGMAPS, ConfigMap)
        controller = Controller("test", reconcile)
        controller.watch(
            informer, lambda item: [item.metadata.key], lambda old, new: 0.5 if old and new else 0.0
        )
        tasks = [asyncio.create_task(informer.run()), asyncio.create_task(controller.run())]
        await informer.synced()
        await api.put("configmaps", config_map("one"))
        await seen.get()
        for number in range(3):
            await api.put("configmaps", config_map("one", text=str(number)))
        await api.put("configmaps", config_map("two"))
        assert await seen.get() == ("default", "two")
        assert await seen.get() == ("default", "one")
        await controller.settled()
        assert seen.empty()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
