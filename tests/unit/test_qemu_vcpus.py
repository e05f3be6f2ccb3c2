"""What the guest says of its vCPUs while one is being added, and how they are unplugged with KVM."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hotvirt.hypervisor.qemu.command import vcpu_id
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


class Switches(Agent):
    """A guest that does what it is told."""

    def __init__(self, *online: bool) -> None:
        super().__init__()
        self.online = list(online)
        self.told: list[dict[int, bool]] = []

    async def vcpus(self) -> list[dict[str, Any]]:
        self.asked += 1
        return [
            {"logical-id": number, "online": online, "can-offline": number > 0}
            for number, online in enumerate(self.online)
        ]

    async def set_vcpus(self, wanted: dict[int, bool]) -> None:
        self.told.append(wanted)
        for number, online in wanted.items():
            self.online[number] = online


async def test_what_the_guest_said_before_is_enough_to_begin_with() -> None:
    agent = Switches(True, False, False)
    asked = vcpus(agent)
    await asked.listed()
    before = agent.asked
    asked._listed = (0.0, asked._listed[1]) if asked._listed else None  # long ago
    assert await asked.use(2, 1.0) == 2
    assert agent.told == [{1: True}]
    assert agent.asked == before + 1, "only to see what came of it"


@pytest.mark.parametrize(
    ("alone", "wanted", "told"),
    [
        ((True, True, False), 3, [{1: True, 2: True}]),
        ((True, True, False), 2, [{1: True}]),
        ((True, False, True), 2, [{1: True}, {2: False}]),
        ((True, True, True), 1, [{2: False, 1: False}]),
        ((True, False, False), 1, []),
    ],
    ids=["more", "there already", "another", "it does not have what it had", "as it was"],
)
async def test_a_guest_that_did_something_of_itself_ends_with_what_is_wanted(
    alone: tuple[bool, ...], wanted: int, told: list[dict[int, bool]]
) -> None:
    agent = Switches(True, False, False)
    asked = vcpus(agent)
    said = await asked.listed()
    agent.online = list(alone)
    asked._listed = (0.0, said)  # long ago
    assert await asked.use(wanted, 5.0) == wanted
    assert sum(agent.online) == wanted
    assert agent.told == told


class Monitor:
    """QEMU's slots, and what it is told to take away; `keeps` is a vCPU that the guest does not let go."""

    def __init__(self, *plugged: int, keeps: int | None = None) -> None:
        self.plugged = set(plugged)
        self.keeps = keeps
        self.told: list[str] = []

    async def do(self, name: str, arguments: dict[str, Any] | None) -> Any:
        if name == "query-hotpluggable-cpus":
            return [self.slot(number) for number in reversed(range(4))]
        assert name == "device_del" and arguments is not None
        self.told.append(arguments["id"])
        self.plugged -= {number for number in range(4) if vcpu_id(number, 0, 0) == arguments["id"]} - {
            self.keeps
        }
        return {}

    def slot(self, number: int) -> dict[str, Any]:
        slot: dict[str, Any] = {"type": "cpu", "props": {"socket-id": number, "core-id": 0, "thread-id": 0}}
        if number in self.plugged:
            slot["qom-path"] = "/machine/peripheral/x" if number else "/machine/unattached/device[0]"
        return slot


async def test_the_last_ones_are_unplugged_and_never_the_one_of_the_start() -> None:
    monitor = Monitor(0, 1, 2, 3)
    asked = Vcpus(monitor.do, cast("GuestAgent", Agent([])), Waiter(asyncio.Event()))
    await asked.unplug(2, 10.0)
    assert monitor.told == [vcpu_id(3, 0, 0), vcpu_id(2, 0, 0)]
    await asked.unplug(0, 0.1)
    assert monitor.told[2:] == [vcpu_id(1, 0, 0)]
    assert monitor.plugged == {0}


async def test_a_vcpu_that_the_guest_keeps_is_waited_for_in_vain() -> None:
    monitor = Monitor(0, 1, 2, keeps=2)
    asked = Vcpus(monitor.do, cast("GuestAgent", Agent([])), Waiter(asyncio.Event()))
    await asked.unplug(1, 0.1)
    assert monitor.told == [vcpu_id(2, 0, 0), vcpu_id(1, 0, 0)]
    assert monitor.plugged == {0, 2}
