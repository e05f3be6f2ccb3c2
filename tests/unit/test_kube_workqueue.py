"""The queue's invariants, on generated histories and on the cases that are easy to get wrong."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotvirt.kube.workqueue import FIRST_RETRY, LONGEST_RETRY, Priority, ShutDown, WorkQueue

actions = st.lists(
    st.tuples(st.sampled_from(["add", "resync", "get", "done"]), st.integers(0, 3)), max_size=40
)


@settings(max_examples=150)
@given(actions)
def test_nothing_is_lost_done_twice_at_once_or_waiting_twice(history: list[tuple[str, int]]) -> None:
    async def play() -> None:
        queue: WorkQueue[int] = WorkQueue()
        working: list[int] = []
        owed: set[int] = set()  # added since the last time work on it began
        for action, number in history:
            if action == "add":
                queue.add(number)
                owed.add(number)
            elif action == "resync":
                queue.add(number, Priority.RESYNC)
                owed.add(number)
            elif action == "get" and len(queue):
                key = await asyncio.wait_for(queue.get(), 1)
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
            key = await asyncio.wait_for(queue.get(), 1)
            left.add(key)
            queue.done(key)
        assert left == owed
        await asyncio.wait_for(queue.idle(), 1)

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
    assert await asyncio.wait_for(getter, 1) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_delayed_key_comes_when_it_is_due_and_the_earlier_time_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 30)
    queue.add_after("a", 0.01)
    queue.add_after("a", 40)
    assert len(queue) == 0
    assert await asyncio.wait_for(queue.get(), 1) == "a"
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
    assert await asyncio.wait_for(second, 1) == "a"
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
