"""What the guest says of its vCPUs while one is being added."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hotvirt.hypervisor.qemu.guest_agent import GuestAgent
from hotvirt.hypervisor.qemu.vcpus import Vcpus
from hotvirt.hypervisor.qemu.waiting import Waiter

BOOT = {"logical-id": 0, "online": True, "can-offline": False}
HALF_THERE = {"logical-id": 1, "online": True, "can-offline": False}
THERE = {"logical-id": 1, "online": False, "can-offline": True}


class Agent:
    """Answers one after the other, and the last for ever."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def vcpus(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def no_command(name: str, arguments: dict[str, Any] | None) -> Any:
    raise AssertionError(f"{name} was not to be asked for")


def vcpus(agent: Agent) -> Vcpus:
    return Vcpus(no_command, cast("GuestAgent", agent), Waiter(asyncio.Event()))


async def test_one_whose_switch_is_not_there_yet_is_not_taken_for_online() -> None:
    agent = Agent([BOOT], [BOOT], [BOOT, HALF_THERE], [BOOT, THERE])
    asked = vcpus(agent)
    assert await asked.listed() == [BOOT]
    asked.forget_guest()
    assert await asked.listed() == [BOOT, THERE]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_guest_that_cannot_switch_any_off_is_believed(times: int) -> None:
    agent = Agent([BOOT, HALF_THERE])
    asked = vcpus(agent)
    for _ in range(times):
        asked.forget_guest()
        assert await asked.listed() == [BOOT, HALF_THERE]
    assert agent.asked == times + 1, "twice the first time, once after that"
