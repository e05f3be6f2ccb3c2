"""The store: order, durability, history, and what happens when the disk is full."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hotvirt.embedded.apiserver.store import (
    ADDED,
    DELETED,
    FIRST_REVISION,
    MODIFIED,
    TURN,
    Change,
    Entry,
    OutOfSpace,
    Store,
    StoreError,
)


def body(text: str = "") -> bytes:
    return b'{"metadata":{"labels":{"text":"%s"}}}' % text.encode()


async def put(
    store: Store, name: str, text: str = "", namespace: str = "ns", *, durable: bool = True
) -> Entry:
    key = ("things", namespace, name)
    async with store.lock(key):
        return await store.write(key, lambda revision: body(text), durable=durable)


async def delete(store: Store, name: str, namespace: str = "ns") -> Entry:
    key = ("things", namespace, name)
    async with store.lock(key):
        return await store.write(key, lambda revision: body("last"), delete=True)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(tmp_path / "api.db", window_events=100)
    opened.start()
    yield opened
    await opened.close()


def names(store: Store, namespace: str = "") -> list[str]:
    return [entry.name for entry in store.entries("things", namespace)]


async def test_a_new_store_starts_above_one(store: Store) -> None:
    assert store.revision == store.compacted == FIRST_REVISION


async def test_each_write_has_the_next_revision(store: Store) -> None:
    first, second = await put(store, "a"), await put(store, "b")
    assert (first.rev, second.rev) == (FIRST_REVISION + 1, FIRST_REVISION + 2)
    assert store.revision == second.rev


async def test_entries_are_in_order_of_namespace_and_name(store: Store) -> None:
    for namespace, name in (("b", "1"), ("a", "2"), ("a", "1"), ("ab", "0")):
        await put(store, name, namespace=namespace)
    assert [(one.namespace, one.name) for one in store.entries("things")] == [
        ("a", "1"),
        ("a", "2"),
        ("ab", "0"),
        ("b", "1"),
    ]
    assert names(store, "a") == ["1", "2"]


async def test_a_deleted_object_is_gone_and_its_last_state_is_told(store: Store) -> None:
    told: list[Change] = []
    store.on_change = told.append
    made = await put(store, "a", "first")
    await put(store, "a", "second")
    await delete(store, "a")
    assert names(store) == []
    assert [change.type for change in told] == [ADDED, MODIFIED, DELETED]
    assert told[1].old is made
    assert told[2].new.labels == {"text": "last"}


async def test_what_was_acknowledged_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "api.db"
    store = Store(path)
    store.start()
    await asyncio.gather(*(put(store, f"n{number:03d}", str(number)) for number in range(200)))
    await delete(store, "n007")
    revision = store.revision
    await store.close()
    again = Store(path)
    again.start()
    assert again.revision == revision
    assert len(names(again)) == 199
    assert "n007" not in names(again)
    await again.close()


async def test_revisions_that_a_power_cut_may_have_taken_back_are_not_given_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "api.db")
    store.start()
    assert not store.lost
    last = await put(store, "a")
    await store.close()
    again = Store(tmp_path / "api.db")
    again.start()
    assert last.rev not in again.lost and last.rev + 1 in again.lost
    assert (await put(again, "next")).rev == again.lost[-1] + 1
    await again.close()


async def test_a_write_that_does_not_wait_for_the_disk_outlives_the_process(
    store: Store, tmp_path: Path
) -> None:
    await put(store, "quick", durable=False)
    left = tmp_path / "left"
    left.mkdir()
    for file in tmp_path.glob("api.db*"):  # as a process that is killed now leaves them
        shutil.copy(file, left)
    opened = Store(left / "api.db")
    assert names(opened) == ["quick"]
    await opened.close()


async def test_writes_that_wait_together_are_committed_together(store: Store) -> None:
    await asyncio.gather(*(put(store, str(number)) for number in range(100)))
    assert store.commits < 50


async def test_all_see_one_order_whoever_waits_for_the_disk(store: Store, tmp_path: Path) -> None:
    seen: list[int] = []
    store.on_change = lambda change: seen.append(change.new.rev)
    for number in range(20):
        together = [put(store, f"{number}-{each}", durable=each in (0, 2)) for each in range(4)]
        await asyncio.gather(*together, put(store, "same", str(number), durable=False))
        await put(store, f"{number}-alone", durable=False)
    assert len(seen) == 20 * 6 and seen == sorted(seen)
    await store.close()
    again = Store(tmp_path / "api.db")
    same = again.get(("things", "ns", "same"))
    assert len(names(again)) == 20 * 5 + 1 and same is not None and same.labels["text"] == "19"
    await again.close()


async def test_a_writer_that_waits_for_nobody_leaves_others_their_turn(store: Store) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    for number in range(100):
        await put(store, str(number), durable=False)
    other.cancel()
    assert turns >= 100 // TURN


async def test_the_log_is_moved_into_the_file_again_and_again(store: Store, tmp_path: Path) -> None:
    megabyte = "x" * (1 << 20)
    for number in range(24):
        await put(store, "large", megabyte, durable=number % 2 == 0)
    assert (tmp_path / "api.db-wal").stat().st_size < 12 << 20


async def test_changes_since_a_revision(store: Store) -> None:
    await put(store, "a")
    from_here = store.revision
    await put(store, "b")
    await delete(store, "a")
    assert [(change.type, change.new.name) for change in store.since(from_here)] == [
        (ADDED, "b"),
        (DELETED, "a"),
    ]


async def test_a_list_as_it_was(store: Store) -> None:
    await put(store, "a", "old")
    await put(store, "b")
    then = store.revision
    await put(store, "a", "new")
    await delete(store, "b")
    await put(store, "c")
    before = store.list_at("things", "ns", then)
    assert [(one.name, one.labels["text"]) for one in before] == [("a", "old"), ("b", "")]


async def test_history_survives_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "api.db"
    store = Store(path)
    store.start()
    await put(store, "a", "old")
    then = store.revision
    await put(store, "a", "new")
    await store.close()
    again = Store(path)
    (change,) = again.since(then)
    assert change.type == MODIFIED
    assert change.old is not None and change.old.labels == {"text": "old"}
    await again.close()


async def test_forgotten_history_leaves_the_objects(tmp_path: Path) -> None:
    path = tmp_path / "api.db"
    store = Store(path, window_events=10)
    store.start()
    for number in range(50):
        await put(store, "a", str(number))
    await put(store, "gone")
    await delete(store, "gone")
    newest = store.revision
    store.compact(everything=True)
    assert store.compacted == newest
    await store.close()
    again = Store(path)
    rows = again._db.execute("SELECT count(*) FROM log").fetchone()[0]
    assert rows == 1, "replaced and deleted rows are gone"
    assert [entry.labels["text"] for entry in again.entries("things")] == ["49"]
    assert (again.revision, again.compacted) == (newest, newest), (
        "revisions go on, although the rows are gone"
    )
    await again.close()


async def test_the_window_is_bounded(store: Store) -> None:
    for number in range(150):
        await put(store, "a", str(number))
    assert len(store.window) <= 101
    assert store.compacted > FIRST_REVISION


async def test_a_full_disk_refuses_and_writes_nothing(store: Store) -> None:
    await put(store, "before")
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OutOfSpace):
        await put(store, "too-much", "x" * 100_000)
    assert names(store) == ["before"]
    store._db.execute("PRAGMA max_page_count = 1000000")
    await put(store, "after")
    assert names(store) == ["after", "before"]


async def test_one_that_is_too_large_does_not_take_the_others_with_it(store: Store) -> None:
    await put(store, "before")
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 4}")
    results = await asyncio.gather(
        put(store, "small"), put(store, "large", "x" * 500_000), return_exceptions=True
    )
    assert isinstance(results[0], Entry)
    assert isinstance(results[1], OutOfSpace)
    assert names(store) == ["before", "small"]


async def test_a_client_that_goes_away_does_not_stop_its_write(store: Store) -> None:
    key = ("things", "ns", "a")

    async def write() -> None:
        async with store.lock(key):
            await store.write(key, lambda revision: body())

    task = asyncio.create_task(write())
    await asyncio.sleep(0)  # one turn of the loop: the write is queued and not yet committed
    task.cancel()
    await asyncio.wait([task])
    async with store.lock(key):
        assert names(store) == ["a"], "whoever has the lock next sees the write"


async def test_two_processes_cannot_have_it(store: Store, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from hotvirt.embedded.apiserver.store import Store; "
    code += f"Store(Path({str(store.path)!r}))"
    second = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert "is in use by another process" in second.stderr


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "api.db"
    path.write_text("this is not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(StoreError, match="is not a Hotvirt database"):
        Store(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "api.db"
    store = Store(path)
    store._db.execute("PRAGMA user_version = 99")
    store._db.close()
    with pytest.raises(StoreError, match="has format 99"):
        Store(path)
