"""Whatever is late, lost or killed in a resize: the guest fits its Pod after every single step, and in peace
everything comes to rest at the last edit. `late_world.py` has the world.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from hotvirt.controllers import resize
from hotvirt.plan.change import Guest
from tests.faults.late_world import GIB, MOST, World, agent, controller, kubelet

SEEDS = range(int(os.environ.get("HOTVIRT_SOAK") or 12))
EDITS = 25
STEPS_TO_REST = 4000
Part = Callable[[World], Awaitable[None]]


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other Pods, no quotas: nothing is refused here."""
    monkeypatch.setattr(resize, "Worlds", lambda *about, **more: {})
    monkeypatch.setattr(resize, "tell_if_missing", lambda *about: None)


@pytest.mark.parametrize("gate_flips", [False, True], ids=["gate on", "gate flips"])
@pytest.mark.parametrize("unplugs", [True, False], ids=["unplugs", "parks"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_guest_fits_its_pod_and_everything_comes_to_rest(
    seed: int, unplugs: bool, gate_flips: bool
) -> None:
    world = World(seed, unplugs=unplugs, loses_answers=True)
    parts: dict[Part, asyncio.Task[None]] = {}

    def start(part: Part) -> None:
        parts[part] = asyncio.ensure_future(part(world))

    for part in (controller, agent, kubelet):
        start(part)
    try:
        for _ in range(EDITS):
            await turn(world, gate_flips, parts, start)
        world.in_peace = world.gate = True
        for _ in range(STEPS_TO_REST):
            if world.rests:
                break
            await asyncio.sleep(0)
    finally:
        for task in parts.values():
            task.cancel()
        ended = await asyncio.gather(*parts.values(), return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    assert not world.findings, "\n".join([*world.log[-20:], *world.findings[:3]])
    assert world.rests, "\n".join([*world.log[-20:], str(world.vmis[-1]["status"])])


async def turn(
    world: World,
    gate_flips: bool,
    parts: dict[Part, asyncio.Task[None]],
    start: Callable[[Part], None],
) -> None:
    for _ in range(world.random.choice([2, 10, 40, 120])):
        await asyncio.sleep(0)
    lot = world.random.random()
    if gate_flips and lot < 0.3:
        world.gate = not world.gate
        world.log.append(f"gate {world.gate}")
    elif lot < 0.45:
        victim = world.random.choice([controller, agent])
        parts[victim].cancel()
        await asyncio.wait([parts[victim]])
        world.log.append(f"{victim.__name__} killed")
        start(victim)
    else:
        wanted = world.wanted
        vcpus = world.random.randint(1, MOST) if world.random.random() < 0.7 else wanted.vcpus
        memory = world.random.randint(1, MOST) * GIB if world.random.random() < 0.7 else wanted.memory
        world.edit(Guest(vcpus, memory))
