"""One look at a machine answers for a moment, and never beyond what the machine tells."""

from __future__ import annotations

import pytest

from hotvirt.node.looks import HOLD, RECENT, Looks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counted:
    """A machine that counts how often it is looked at."""

    def __init__(self) -> None:
        self.times = 0
        self.during = lambda: None

    async def observe(self) -> int:
        self.times += 1
        self.during()
        return self.times


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_look_counts_for_a_moment_and_one_generation(clock: Clock) -> None:
    looks, machine = Looks(clock), Counted()
    assert await looks.look(machine, 1) == 1
    assert await looks.look(machine, 1) == 1
    assert await looks.look(machine, 2) == 2
    clock.now = RECENT
    assert await looks.look(machine, 2) == 3
    assert await looks.look_anew(machine, 2) == 4


async def test_what_the_machine_tells_ends_it_even_while_it_is_looked_at(clock: Clock) -> None:
    looks, machine = Looks(clock), Counted()
    await looks.look(machine, 1)
    looks.forget()
    machine.during = looks.forget
    assert await looks.look(machine, 1) == 2
    machine.during = lambda: None
    assert await looks.look(machine, 1) == 3
    assert await looks.look(machine, 1) == 3


def test_news_of_a_generation_can_wait_only_so_long(clock: Clock) -> None:
    looks = Looks(clock)
    assert looks.may_hold(1)
    clock.now = HOLD
    assert not looks.may_hold(1)
    assert looks.may_hold(2)
