"""kill -9 of the API server amid concurrent writes: what it acknowledged is there, and only once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hotvirt.embedded.state import StateDir

TIMES = int(os.environ.get("HOTVIRT_SOAK") or 10)
WRITERS = 12
TOKEN = "crash"
CONFIGMAPS = "http://api/api/v1/namespaces/default/configmaps"
OPENS_WITHIN = 60.0
"""Python's own start on a busy machine; the store itself needs milliseconds."""
ANSWERS_WITHIN = 60.0


@dataclass
class Acknowledged:
    """What the server has said yes to."""

    counters: dict[str, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    in_flight_delete: set[str] = field(default_factory=set)
    newest: int = 0
    first_of_round: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    def __init__(self, folder: Path) -> None:
        self.state = StateDir(folder)
        self.state.prepare()
        self.state.pki.mkdir(mode=0o700)
        (self.state.pki / "tokens.csv").write_text(f'{TOKEN},crash,1,"system:masters"\n')
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; returns the seconds until it took requests."""
        command = [sys.executable, "-m", "hotvirt.embedded.apiserver", "--state-dir", str(self.state.path)]
        started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"https://"), "the server did not start"
        return time.monotonic() - started

    def kill(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.UnixConnector(str(self.state.socket), limit=0)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield session


def configmap(name: str, count: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"count": str(count), "padding": "x" * 2000},
    }


async def write(session: aiohttp.ClientSession, number: int, round_: int, known: Acknowledged) -> None:
    """Count one object up, make others and delete some of them, until the server is gone."""
    counter = f"counter-{number}"
    async with session.get(f"{CONFIGMAPS}/{counter}") as answer:
        current = await answer.json()
    if answer.status == 404:
        async with session.post(CONFIGMAPS, json=configmap(counter, 0)) as answer:
            assert answer.status == 201
            current = await answer.json()
            known.counters[counter] = 0
    for step in range(100_000):
        current["data"]["count"] = str(int(current["data"]["count"]) + 1)
        async with session.put(f"{CONFIGMAPS}/{counter}", json=current) as answer:
            assert answer.status == 200, await answer.text()
            current = await answer.json()
            known.counters[counter] = int(current["data"]["count"])
            known.newest = max(known.newest, int(current["metadata"]["resourceVersion"]))
        name = f"made-{round_}-{number}-{step}"
        async with session.post(CONFIGMAPS, json=configmap(name, step)) as answer:
            assert answer.status == 201, await answer.text()
            known.made.add(name)
            known.first_of_round.set()
        if step % 3 == 2:
            known.in_flight_delete.add(name)
            async with session.delete(f"{CONFIGMAPS}/{name}") as answer:
                assert answer.status == 200, await answer.text()
                known.deleted.add(name)


async def write_until_killed(server: Server, round_: int, known: Acknowledged, after: float) -> None:
    async with server.session() as session:
        known.first_of_round.clear()
        writers = [asyncio.create_task(write(session, number, round_, known)) for number in range(WRITERS)]
        async with asyncio.timeout(ANSWERS_WITHIN):
            await known.first_of_round.wait()
        # From here on the moment of the kill has to be arbitrary: nothing is waited for.
        await asyncio.sleep(after)
        server.kill()
        for result in await asyncio.gather(*writers, return_exceptions=True):
            assert isinstance(result, aiohttp.ClientError | OSError), result


async def check(server: Server, known: Acknowledged) -> None:
    async with server.session() as session, session.get(CONFIGMAPS) as answer:
        listed = await answer.json()
    found = {item["metadata"]["name"]: item for item in listed["items"]}
    for counter, count in known.counters.items():
        actual = int(found[counter]["data"]["count"])
        # At most the one write that was under way may have come through beside what was acknowledged.
        assert count <= actual <= count + 1, f"{counter}: {count} acknowledged, {actual} found"
        known.counters[counter] = actual
    lost = known.made - known.in_flight_delete - found.keys()
    assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
    assert not known.deleted & found.keys(), "deleted, acknowledged and back again"
    assert int(listed["metadata"]["resourceVersion"]) >= known.newest
    versions = [item["metadata"]["resourceVersion"] for item in listed["items"]]
    assert len(versions) == len(set(versions)), "one revision was given twice"


@pytest.mark.timeout(120 + 60 * TIMES)
async def test_kill_9_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    server, known, luck = Server(tmp_path / "state"), Acknowledged(), random.Random(2026)
    server.start()
    try:
        for round_ in range(TIMES):
            await write_until_killed(server, round_, known, after=luck.uniform(0.1, 0.6))
            assert server.start() < OPENS_WITHIN
            await check(server, known)
    finally:
        server.kill()
    assert known.newest > 0
    assert len(known.made) > TIMES
    with contextlib.closing(sqlite3.connect(server.state.database)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
