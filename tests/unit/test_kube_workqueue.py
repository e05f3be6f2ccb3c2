"""The queue's invariants, on generated histories and on the cases that are easy to get wrong."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotvirt.kube.rush import Priority, Rush
from hotvirt.kube.workqueue import FIRST_RETRY, LONGEST_RETRY, ShutDown, WorkQueue

Action = Priority | str
actions = st.lists(st.tuples(st.sampled_from([*Priority, "get", "done"]), st.integers(0, 3)), max_size=40)


@settings(max_examples=150)
@given(actions)
def test_nothing_is_lost_done_twice_at_once_or_waiting_twice(
    history: list[tuple[Action, int]],
) -> None:
    async def play() -> None:
        queue: WorkQueue[int] = WorkQueue()
        working: list[int] = []
        owed: set[int] = set()  # added since the last time work on it began
        for action, number in history:
            if isinstance(action, Priority):
                queue.add(number, action)
                owed.add(number)
            elif action == "get" and len(queue):
                key = await asyncio.wait_for(queue.get(), 60)
                assert key not in working
                assert key in owed
                owed.discard(key)
                working.append(key)
            elif action == "done" and working:
                queue.done(working.pop(number % len(working)))
            assert len(queue) == len(owed - set(working))
        for key in working:
            queue.done(key)
        left = set()
        while len(queue):
            key = await asyncio.wait_for(queue.get(), 60)
            left.add(key)
            queue.done(key)
        assert left == owed
        await asyncio.wait_for(queue.idle(), 60)

    asyncio.run(play())


async def test_a_users_change_goes_before_a_resync_and_lifts_a_key_that_waits() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key, Priority.RESYNC)
    queue.add("d")
    queue.add("c")
    assert len(queue) == 4
    assert [await queue.get() for _ in range(4)] == ["d", "c", "a", "b"]


async def test_a_key_added_while_it_is_worked_on_comes_once_more_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    getter = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not getter.done()
    queue.done("a")
    assert await asyncio.wait_for(getter, 60) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_delayed_key_comes_when_it_is_due_and_the_earlier_time_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3000)
    queue.add_after("a", 0.01)
    queue.add_after("a", 4000)
    assert len(queue) == 0
    assert await asyncio.wait_for(queue.get(), 60) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_backoff_doubles_per_key_up_to_the_longest_and_is_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.add_rate_limited("a") for _ in range(30)]
    assert delays[:4] == [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4, FIRST_RETRY * 8]
    assert delays[-1] == LONGEST_RETRY
    assert queue.add_rate_limited("b") == FIRST_RETRY
    queue.forget("a")
    assert queue.add_rate_limited("a") == FIRST_RETRY
    queue.shut_down()


async def test_a_getter_that_is_cancelled_does_not_swallow_a_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first = asyncio.ensure_future(queue.get())
    second = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 60) == "a"
    assert first.cancelled()


async def test_shut_down_hands_out_the_rest_and_then_says_so() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add_after("later", 60)
    queue.shut_down()
    queue.add("too late")
    assert await queue.get() == "a"
    queue.done("a")
    with pytest.raises(ShutDown):
        await queue.get()


async def test_the_metrics_have_client_gos_names() -> None:
    from prometheus_client import generate_latest

    queue: WorkQueue[str] = WorkQueue("metered")
    queue.add("a")
    queue.add("a")
    queue.done(await queue.get())
    text = generate_latest().decode()
    assert 'workqueue_adds_total{name="metered"} 1.0' in text
    assert 'workqueue_depth{name="metered"} 0.0' in text
    for name in ("queue_duration_seconds", "work_duration_seconds"):
        assert f'workqueue_{name}_count{{name="metered"}} 1.0' in text
    for name in ("retries_total", "unfinished_work_seconds", "longest_running_processor_seconds"):
        assert f'workqueue_{name}{{name="metered"}}' in text


async def test_reports_wait_for_what_is_to_be_done_in_any_queue_and_mirrors_for_reports() -> None:
    rush = Rush()
    one: WorkQueue[str] = WorkQueue(rush=rush)
    other: WorkQueue[str] = WorkQueue(rush=rush)
    one.add("mirror", Priority.MIRROR)
    other.add("report", Priority.REPORT)
    other.add("change")
    one.add("again", Priority.RESYNC)
    assert await one.get() == "again", "what is looked at for safety's sake is nobody else's business"
    mirror = asyncio.ensure_future(one.get())
    await asyncio.sleep(0)
    assert await other.get() == "change"
    await asyncio.sleep(0)
    assert not mirror.done(), "the report goes first"
    assert rush.is_on
    assert await other.get() == "report"
    assert await asyncio.wait_for(mirror, 60) == "mirror"
    assert not rush.is_on
    await asyncio.wait_for(rush.over(), 60)


async def test_every_worker_that_was_held_back_goes_on_when_the_rush_is_over() -> None:
    rush = Rush()
    one: WorkQueue[int] = WorkQueue(rush=rush)
    other: WorkQueue[str] = WorkQueue(rush=rush)
    other.add("change")
    workers = [asyncio.ensure_future(one.get()) for _ in range(3)]
    for number in range(3):
        one.add(number, Priority.REPORT)
    await asyncio.sleep(0)
    assert not any(worker.done() for worker in workers)
    await other.get()
    assert await asyncio.wait_for(asyncio.gather(*workers), 60) == [0, 1, 2]


async def test_a_report_that_waited_for_long_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotvirt.kube.workqueue.LONGEST_BEHIND", 0.02)
    rush = Rush()
    one: WorkQueue[str] = WorkQueue(rush=rush)
    other: WorkQueue[str] = WorkQueue(rush=rush)
    other.add("never taken")
    one.add("report", Priority.REPORT)
    one.add("mirror", Priority.MIRROR)
    assert {await asyncio.wait_for(one.get(), 10) for _ in range(2)} == {"report", "mirror"}
    assert len(other) == 1


async def test_a_key_that_becomes_more_urgent_stands_in_one_line_only() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", Priority.MIRROR)
    queue.add("b", Priority.REPORT)
    queue.add("a")
    queue.add("a", Priority.REPORT)
    assert [await queue.get() for _ in range(2)] == ["a", "b"]
    assert len(queue) == 0
