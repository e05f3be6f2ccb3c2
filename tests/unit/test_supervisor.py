"""Parts that crash come back, and stopping stops them all."""

from __future__ import annotations

import asyncio

import pytest

from hotvirt.embedded.supervisor import Supervisor


async def test_a_part_that_crashes_is_started_again_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    starts = 0
    steady = asyncio.Event()
    stopped = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def part() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise RuntimeError("first time unlucky")
        if starts == 2:
            return
        steady.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    supervisor = Supervisor(sleep)
    supervisor.start("part", part)
    async with asyncio.timeout(60):
        await steady.wait()
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]
    assert "first time unlucky" in caplog.text
    assert "part ended" in caplog.text
    await supervisor.stop()
    assert stopped.is_set()
    assert starts == 3
