"""Watches: who hears of what, in which words."""

from __future__ import annotations

import asyncio

from hotvirt.embedded.apiserver.hub import Alarm, Hub, Watch, with_revision
from hotvirt.embedded.apiserver.store import ADDED, DELETED, MODIFIED, Change, Entry


def entry(name: str, revision: int, colour: str = "", namespace: str = "ns") -> Entry:
    data = b'{"metadata":{"name":"%s","resourceVersion":"%d","labels":{"colour":"%s"}}}'
    return Entry(("things", namespace, name), revision, data % (name.encode(), revision, colour.encode()))


def render(type_: str, one: Entry) -> bytes:
    return f"{type_} {one.name} {one.labels.get('colour')}@{one.rev};".encode()


def watch(match: bool = True, namespace: str = "", backlog: int = 100) -> Watch:
    red = (lambda one: one.labels.get("colour") == "red") if match else None
    return Watch("things", namespace, red, "form", render, backlog)


async def heard(one: Watch) -> str:
    return (await one.take(0)).decode()


async def test_an_object_that_comes_into_the_selection_is_added() -> None:
    one = watch()
    one.offer(Change(MODIFIED, entry("a", 1, "blue"), entry("a", 2, "red"), 0))
    assert await heard(one) == "ADDED a red@2;"


async def test_an_object_that_leaves_it_is_deleted_as_it_was() -> None:
    one = watch()
    one.offer(Change(MODIFIED, entry("a", 1, "red"), entry("a", 2, "blue"), 0))
    assert await heard(one) == "DELETED a red@2;"


async def test_inside_it_changes_are_changes() -> None:
    one = watch()
    one.offer(Change(ADDED, None, entry("a", 1, "red"), 0))
    one.offer(Change(MODIFIED, entry("a", 1, "red"), entry("a", 2, "red"), 0))
    one.offer(Change(DELETED, entry("a", 2, "red"), entry("a", 3, "red"), 0))
    assert await heard(one) == "ADDED a red@1;MODIFIED a red@2;DELETED a red@3;"


async def test_outside_of_it_nothing_is_heard() -> None:
    one = watch()
    one.offer(Change(ADDED, None, entry("a", 1, "blue"), 0))
    one.offer(Change(MODIFIED, entry("a", 1, "blue"), entry("a", 2, "green"), 0))
    one.offer(Change(DELETED, entry("a", 2, "green"), entry("a", 3, "green"), 0))
    assert await heard(one) == ""


async def test_another_namespace_is_not_heard() -> None:
    one = watch(match=False, namespace="mine")
    one.offer(Change(ADDED, None, entry("a", 1, namespace="other"), 0))
    one.offer(Change(ADDED, None, entry("b", 2, namespace="mine"), 0))
    assert await heard(one) == "ADDED b @2;"


async def test_each_event_is_rendered_once_for_all() -> None:
    times = 0

    def counted(type_: str, one: Entry) -> bytes:
        nonlocal times
        times += 1
        return b"x"

    hub = Hub()
    watches = [Watch("things", "", None, "form", counted) for _ in range(5)]
    for one in watches:
        hub.add(one)
    hub.publish(Change(ADDED, None, entry("a", 1), 0))
    assert [await heard(one) for one in watches] == ["x"] * 5
    assert times == 1


async def test_who_is_too_slow_is_closed() -> None:
    hub, slow = Hub(), watch(match=False, backlog=3)
    hub.add(slow)
    for revision in range(1, 6):
        hub.publish(Change(ADDED, None, entry(f"n{revision}", revision), 0))
    assert slow.closed
    assert (await heard(slow)).count(";") == 3, "what it had taken before is still sent"


async def test_a_closed_hub_ends_all_watches_now_and_later() -> None:
    hub, now, later = Hub(), watch(), watch()
    hub.add(now)
    hub.close()
    hub.add(later)
    assert now.closed
    assert later.closed
    assert await heard(now) == ""


def test_the_object_that_leaves_has_the_revision_of_its_leaving() -> None:
    assert b'"resourceVersion":"7"' in with_revision(entry("a", 3), 7).data


async def test_a_watch_that_cannot_show_a_change_does_not_keep_it_from_the_others() -> None:
    def broken(type_: str, one: Entry) -> bytes:
        raise ValueError("no such column")

    hub, bad, good = Hub(), Watch("things", "", None, "table", broken), watch(match=False)
    hub.add(bad)
    hub.add(good)
    hub.publish(Change(ADDED, None, entry("a", 1), 0))
    assert bad.closed
    assert await heard(good) == "ADDED a @1;"


async def test_who_has_something_to_send_is_behind() -> None:
    one = watch(match=False)
    assert not one.behind
    one.offer(Change(ADDED, None, entry("a", 1), 0))
    assert one.behind
    await heard(one)
    assert not one.behind


async def test_a_part_hears_at_once_and_in_order_what_happens() -> None:
    hub, told = Hub(), list[str]()
    part, outside = watch(match=False), watch(match=False)
    hub.add(part)
    hub.add(outside)
    hub.publish(Change(ADDED, None, entry("a", 1), 0))
    part.hear(lambda event: told.append(event.decode()))
    hub.publish(Change(ADDED, None, entry("b", 2), 0))
    assert told == [], "something waits before it"
    assert await heard(part) == "ADDED a @1;ADDED b @2;"
    outside_had = list[bool]()
    part.hear(lambda event: (told.append(event.decode()), outside_had.append(outside.behind)))
    await heard(outside)
    hub.publish(Change(ADDED, None, entry("c", 3), 0))
    assert told == ["ADDED c @3;"]
    assert outside_had == [True], "who is outside has the longer way, and is woken first"
    assert not part.behind
    assert part.revision == 3


async def test_a_part_that_fails_at_a_change_comes_again() -> None:
    hub, part, other = Hub(), watch(match=False), watch(match=False)
    part.hear(lambda event: 1 / 0)
    hub.add(part)
    hub.add(other)
    hub.publish(Change(ADDED, None, entry("a", 1), 0))
    assert part.closed
    assert await heard(other) == "ADDED a @1;"


async def test_those_who_have_patience_hear_of_many_changes_together() -> None:
    alarm = Alarm(1000)
    first, second = (Watch("things", "", None, "form", render, alarm=alarm) for _ in range(2))
    one, other = asyncio.ensure_future(first.take(10)), asyncio.ensure_future(second.take(10))
    for number in range(1, 4):
        first.offer(Change(ADDED, None, entry(f"n{number}", number), 0))
        await asyncio.sleep(0)
        assert not one.done()
        assert first.behind
    second.offer(Change(ADDED, None, entry("n4", 4), 0))
    alarm._ring()
    assert (await one).count(b";") == 3
    assert (await other).count(b";") == 1


async def test_what_comes_behind_the_alarm_waits_for_the_next() -> None:
    """Else whoever reads last would know more than the others."""
    alarm = Alarm(0.01)
    first, second = (Watch("things", "", None, "form", render, alarm=alarm) for _ in range(2))
    for number, each in enumerate((first, second), 1):
        each.offer(Change(ADDED, None, entry(f"n{number}", number), 0))
    alarm._ring()
    assert await first.take(10) == b"ADDED n1 @1;"
    second.offer(Change(ADDED, None, entry("n3", 3), 0))
    assert await second.take(10) == b"ADDED n2 @2;"
    assert second.behind
    assert await second.take(10) == b"ADDED n3 @3;", "it rings by itself"
    assert not second.behind
