"""Events as people see them: counted, combined, cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from hotvirt.api import meta
from hotvirt.api.core import ConfigMap
from hotvirt.api.meta import ObjectMeta
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.kube.rush import LONGEST_BEHIND, Rush
from hotvirt.kube.workqueue import WorkQueue

from .tiny_api import TinyApi, config_map, status

ABOUT = ConfigMap(metadata=ObjectMeta(name="one", namespace="ns", uid="u1", resource_version="7"))


class Awaited(Rush):
    """Tells when somebody waits for its end."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def over(self) -> None:
        self.waited_for.set()
        await super().over()


def events(api: TinyApi) -> list[dict[str, Any]]:
    return [obj for (plural, _, _), obj in api.objects.items() if plural == "events"]


async def test_an_event_says_who_what_and_about_what() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "hotvirt-controller", "host1")
        recorder.event(ABOUT, "Normal", "Started", "it started")
        await recorder.close()
    (event,) = events(api)
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "one",
        "namespace": "ns",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("one.")
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "Started", "it started")
    assert event["source"] == {"component": "hotvirt-controller", "host": "host1"}
    assert event["count"] == 1
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_the_same_event_again_is_counted_even_after_it_expired() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c")
        for _ in range(3):
            recorder.event(ABOUT, "Normal", "Again", "same")
        recorder.event(ABOUT, "Warning", "Again", "same")
        await recorder.flush()
        assert sorted(event["count"] for event in events(api)) == [1, 3]
        api.objects.clear()
        recorder.event(ABOUT, "Normal", "Again", "same")
        await recorder.close()
        assert [event["count"] for event in events(api)] == [1]


async def test_many_similar_events_become_one() -> None:
    api = TinyApi()
    now = 0.0
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c", clock=lambda: now)
        for number in range(20):
            recorder.event(ABOUT, "Normal", "Many", f"number {number}")
        await recorder.flush()
        assert len(events(api)) == 11
        combined = events(api)[-1]
        assert combined["message"] == "(combined from similar events): number 19"
        assert combined["count"] == 10
        await recorder.close()


async def test_an_object_that_floods_is_cut_off_and_others_are_not() -> None:
    api = TinyApi()
    now = 0.0
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c", clock=lambda: now)
        for _ in range(100):
            recorder.event(ABOUT, "Normal", "Flood", "same")
        recorder.event(config_map("other") | {"kind": "ConfigMap"}, "Normal", "Fine", "heard")
        await recorder.flush()
        counts = {event["reason"]: event["count"] for event in events(api)}
        assert counts == {"Flood": 25, "Fine": 1}
        now = 600.0
        recorder.event(ABOUT, "Normal", "Flood", "same")
        await recorder.close()
        assert {event["reason"]: event["count"] for event in events(api)}["Flood"] == 26


async def test_an_api_that_is_away_is_waited_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    api = TinyApi()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            api.interfere = None

    async def away(request: web.Request) -> web.StreamResponse:
        return status(503, "ServiceUnavailable", "away")

    async def forbid(request: web.Request) -> web.StreamResponse:
        return status(403, "Forbidden", "no events here")

    api.interfere = away
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c", sleep=sleep)
        recorder.event(ABOUT, "Normal", "Late", "heard in the end")
        await recorder.flush()
        assert [event["reason"] for event in events(api)] == ["Late"]
        assert len(waits) == 3
        api.interfere = forbid
        recorder.event(ABOUT, "Normal", "Lost", "nobody hears")
        await recorder.close()
        assert len(waits) == 3
    assert "Lost nobody hears" in caplog.text


async def test_events_wait_for_each_other_but_not_when_somebody_waits_for_them() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c")
        recorder.event(ABOUT, "Normal", "One", "one")
        recorder.event(ABOUT, "Normal", "Two", "two")
        assert events(api) == [], "what they tell of goes first"
        await recorder.flush()
        assert [event["reason"] for event in events(api)] == ["One", "Two"]
        await recorder.close()


async def test_events_wait_while_there_is_something_to_do() -> None:
    api = TinyApi()
    rush = Awaited()
    queue: WorkQueue[str] = WorkQueue(rush=rush)
    queue.add("work")
    async with api.running() as config, Client(config) as client, asyncio.timeout(10):
        recorder = Recorder(client, "c")
        recorder.go_behind(rush)
        recorder.event(ABOUT, "Normal", "First", "first")
        await rush.waited_for.wait()
        assert events(api) == []
        assert await queue.get() == "work"
        while not events(api):
            await api.requested.wait()
            api.requested.clear()
        queue.add("more work")
        recorder.event(ABOUT, "Normal", "Second", "second")
        await recorder.flush()
        assert [event["reason"] for event in events(api)] == ["First", "Second"]
        await recorder.close()


async def test_an_event_that_waited_for_long_is_sent_with_the_time_at_which_it_happened() -> None:
    api = TinyApi()
    rush = Rush()
    queue: WorkQueue[str] = WorkQueue(rush=rush)
    queue.add("never done")
    now = 0.0
    async with api.running() as config, Client(config) as client, asyncio.timeout(10):
        recorder = Recorder(client, "c", clock=lambda: now)
        recorder.go_behind(rush)
        recorder.event(ABOUT, "Normal", "Old", "old")
        now = LONGEST_BEHIND
        while not events(api):
            await api.requested.wait()
            api.requested.clear()
        (event,) = events(api)
        assert event["firstTimestamp"] == event["lastTimestamp"] <= meta.now()
        await recorder.close()


async def test_events_beyond_what_can_wait_are_counted_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotvirt.kube.events.QUEUE_SIZE", 2)
    api = TinyApi()
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client, "c")
        for number in range(5):
            recorder.event(ABOUT, "Normal", "Many", f"number {number}")
        await recorder.close()
    assert len(events(api)) == 2
    lines = [record.message for record in caplog.records]
    assert lines == [
        "the API takes no events: 2 wait, what comes now is left out",
        "the API takes events again; 3 were left out",
    ]
