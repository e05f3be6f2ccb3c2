"""Many writers at once: nothing is lost, nothing is done twice, every watcher sees the same order."""

from __future__ import annotations

import asyncio
from typing import Any

from .client import Api
from .conftest import Namespace
from .objects import widget

WRITERS = 12


async def test_of_many_creates_of_one_name_one_wins(api: Api, ns: Namespace) -> None:
    answers = await asyncio.gather(*(api.post(ns.widgets, widget(size=n + 1)) for n in range(WRITERS)))
    winners = [answer.json for answer in answers if answer.status == 201]
    assert len(winners) == 1
    assert {answer.json["reason"] for answer in answers if answer.status != 201} == {"AlreadyExists"}
    assert (await api.get(f"{ns.widgets}/one")).ok()["spec"] == winners[0]["spec"]


async def test_of_many_puts_of_one_version_one_wins(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())

    def changed(size: int) -> dict[str, Any]:
        return made | {"spec": made["spec"] | {"size": size}}

    answers = await asyncio.gather(*(api.put(f"{ns.widgets}/one", changed(n + 2)) for n in range(WRITERS)))
    winners = [answer.json for answer in answers if answer.status == 200]
    assert len(winners) == 1
    assert {answer.json["reason"] for answer in answers if answer.status != 200} == {"Conflict"}
    found = (await api.get(f"{ns.widgets}/one")).ok()
    assert found["spec"] == winners[0]["spec"]
    assert found["metadata"]["generation"] == 2


async def test_patches_without_a_version_all_get_in(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answers = await asyncio.gather(
        *(api.patch(f"{ns.widgets}/one", {"spec": {"tags": {f"t{n}": "x"}}}) for n in range(WRITERS))
    )
    assert {answer.status for answer in answers} == {200}
    found = (await api.get(f"{ns.widgets}/one")).ok()
    assert sorted(found["spec"]["tags"]) == sorted(f"t{n}" for n in range(WRITERS))
    assert found["metadata"]["generation"] == WRITERS + 1


async def test_every_write_has_a_resource_version_of_its_own(api: Api, ns: Namespace) -> None:
    made = await asyncio.gather(*(api.create(ns.widgets, widget(f"w{n}")) for n in range(WRITERS)))
    versions = {one["metadata"]["resourceVersion"] for one in made}
    assert len(versions) == WRITERS
    listed = (await api.get(ns.widgets)).ok()["metadata"]["resourceVersion"]
    assert int(listed) >= max(map(int, versions))


async def test_of_many_deletes_one_succeeds(api: Api, ns: Namespace) -> None:
    await api.create(ns.widgets, widget())
    answers = await asyncio.gather(*(api.delete(f"{ns.widgets}/one") for _ in range(WRITERS)))
    assert sorted(answer.status for answer in answers) == [200] + [404] * (WRITERS - 1)


async def test_a_list_and_a_watch_from_it_miss_nothing(api: Api, ns: Namespace) -> None:
    """Writers go on while a client lists and then watches from where the list was."""
    writing = asyncio.gather(*(api.create(ns.widgets, widget(f"w{n:02}")) for n in range(4 * WRITERS)))
    listed = (await api.get(ns.widgets)).ok()
    seen = [item["metadata"]["name"] for item in listed["items"]]
    async with api.watch(ns.widgets, resourceVersion=listed["metadata"]["resourceVersion"]) as watch:
        while len(seen) < 4 * WRITERS:
            event = await watch.next()
            assert event["type"] == "ADDED"
            seen.append(event["object"]["metadata"]["name"])
    await writing
    assert sorted(seen) == [f"w{n:02}" for n in range(4 * WRITERS)]


async def test_a_watch_has_the_changes_of_an_object_in_their_order(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.widgets, widget())
    async with api.watch(ns.widgets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        answers = await asyncio.gather(
            *(api.patch(f"{ns.widgets}/one", {"spec": {"size": n + 2}}) for n in range(WRITERS))
        )
        written = sorted((a.ok() for a in answers), key=lambda o: int(o["metadata"]["resourceVersion"]))
        for change in written:
            assert await watch.expect("MODIFIED", "one") == change


async def test_finalizers_taken_away_at_once_delete_once(api: Api, ns: Namespace) -> None:
    body = widget()
    body["metadata"]["finalizers"] = ["conformance.hotvirt.io/hold"]
    made = await api.create(ns.widgets, body)
    (await api.delete(f"{ns.widgets}/one")).ok()
    async with api.watch(ns.widgets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        await watch.expect("MODIFIED", "one")
        freed = {"metadata": {"finalizers": None}}
        answers = await asyncio.gather(*(api.patch(f"{ns.widgets}/one", freed) for _ in range(WRITERS)))
        assert {answer.status for answer in answers} <= {200, 404, 409}
        await watch.expect("DELETED", "one")
        await api.create(ns.widgets, widget("two"))
        await watch.expect("ADDED", "two")
