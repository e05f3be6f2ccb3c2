"""Others write a Pod's status too: before the node's own word about it, behind it, meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotvirt.api import names
from hotvirt.api.pods import Pod
from hotvirt.api.resources import PODS
from hotvirt.kube.client import Client
from hotvirt.kube.informer import Informer

from .one_machine import WITHIN, OneMachine, condition, one_machine, pod

GATE = "example.com/gate"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path / "s") as made:
        await made.start_node(runtime="instant")
        yield made


async def gate(client: Client, status: str) -> None:
    said = {"type": GATE, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = {"status": {"conditions": [said]}}
    await client.patch(PODS, "a", patch, "default", kind="strategic", subresource="status")


async def ready(machine: OneMachine, status: str) -> None:
    await machine.until(PODS, "a", lambda each: (condition(each, "Ready") or {}).get("status") == status)


async def begun(machine: OneMachine) -> None:
    spec = {"readinessGates": [{"conditionType": GATE}]}
    await machine.client.create(PODS, pod("a", "true", requests={"cpu": "1"}, spec=spec), "default")
    await machine.phase("a", "Running")
    await gate(machine.client, "True")
    await ready(machine, "True")


async def ask_for(machine: OneMachine, cpu: str) -> None:
    resources = {"requests": {"cpu": cpu}}
    patch = {"spec": {"containers": [{"name": "compute", "resources": resources}]}}
    await machine.client.patch(PODS, "a", patch, "default", kind="strategic", subresource="resize")


async def has(machine: OneMachine, cpu: str) -> None:
    await machine.until(
        PODS,
        "a",
        lambda each: each["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == cpu,
    )


async def test_who_answers_the_nodes_word_at_once_is_heard(machine: OneMachine) -> None:
    await begun(machine)
    controller = machine.part_as(names.CONTROLLER_USER)
    pods = Informer(controller, PODS, Pod)
    resized = asyncio.Event()

    def changed(_: Pod | None, new: Pod | None) -> None:
        actual = new.status.container_statuses[0].resources if new else None
        if actual is not None and str(actual.requests.get("cpu")) == "2":
            resized.set()

    pods.add_handler(changed)
    machine.run(pods.run())
    await pods.synced()

    async def answer() -> None:
        await resized.wait()
        await gate(controller, "False")

    answered = asyncio.create_task(answer())
    await ask_for(machine, "2")
    async with asyncio.timeout(WITHIN):
        await answered
    await ready(machine, "False")


async def test_a_report_that_somebody_else_was_faster_than_is_made_again(
    machine: OneMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(machine)
    assert machine.node is not None
    (worker,) = machine.node._workers.values()
    report, others = worker._report, list[asyncio.Task[None]]()
    user = machine.part_as("somebody")  # whose writes wait for the disk

    async def overtaken() -> None:
        if not others:
            others.append(asyncio.create_task(gate(user, "False")))
            await asyncio.sleep(0)  # its turn: it comes as far as the disk
            assert any(key[0] == "pods" for key in machine.server.store._locks), "the other one has the Pod"
        await report()

    monkeypatch.setattr(worker, "_report", overtaken)
    await ask_for(machine, "3")
    await has(machine, "3")
    await ready(machine, "False")
    await asyncio.gather(*others)
