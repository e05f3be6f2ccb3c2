"""The node agent behind the real API, with the driver that answers at once; the test plays the kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.resources import EVENTS, KUBEVIRTS, NAMESPACES, PODS, VMIS
from hotvirt.hypervisor.instant import STATE_FILE, InstantDriver, InstantMachine
from hotvirt.kube.events import Recorder
from hotvirt.node.agent import NodeAgent
from hotvirt.node.folders import run_folder
from hotvirt.plan.config import cluster_config
from hotvirt.plan.resources import pod_resources

from .one_machine import NODE, OneMachine, one_machine

Object = dict[str, Any]
WITHIN = 90.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path) as made:
        yield made


@asynccontextmanager
async def agent(machine: OneMachine) -> AsyncIterator[NodeAgent]:
    """Leaving it is what a crash is to the machines: they are let go of, not ended."""
    client = machine.client_as("system:serviceaccount:kubevirt:hotvirt-node")
    recorder = Recorder(client, "hotvirt-node")
    running = NodeAgent(client, NODE, machine.state.path, {"instant": InstantDriver()}, recorder)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])
        await recorder.close()


def vmi(sockets: int = 1) -> Object:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "labels": {names.LABEL_NODE_NAME: NODE}},
        "spec": {
            "domain": {
                "cpu": {"sockets": sockets, "cores": 1, "threads": 1, "maxSockets": 4},
                "memory": {"guest": "1Gi"},
                "devices": {},
            }
        },
    }


def sized(spec: Object) -> Object:
    typed = codec.convert({"spec": spec}, VirtualMachineInstance)
    resources: Object = codec.builtins(pod_resources(typed.spec, cluster_config(None)))
    return resources


async def scheduled(machine: OneMachine) -> Object:
    """A VMI whose Pod runs on our node, as controller, scheduler and kubelet leave it; the Pod."""
    client = machine.client
    made = await client.create(VMIS, vmi(), "default")
    resources = sized(made["spec"])
    owner = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": "vm",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    pod = await client.create(
        PODS,
        {
            "metadata": {
                "name": "virt-launcher-vm",
                "labels": {
                    names.LABEL_LAUNCHER[0]: names.LABEL_LAUNCHER[1],
                    names.LABEL_CREATED_BY: made["metadata"]["uid"],
                },
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": NODE,
                "restartPolicy": "Never",
                "containers": [{"name": "compute", "image": "hotvirt/launcher:1", "resources": resources}],
            },
        },
        "default",
    )
    run_folder(machine.state.path, pod["metadata"]["uid"]).mkdir(parents=True)
    await kubelet_says(machine, resources)
    await client.patch(VMIS, "vm", {"status": {"phase": "Scheduled"}}, "default", subresource="status")
    return pod


async def kubelet_says(machine: OneMachine, resources: Object, phase: str = "Running") -> None:
    container = {
        "name": "compute",
        "image": "hotvirt/launcher:1",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "resources": resources,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    status = {"phase": phase, "podIP": "10.1.2.3", "containerStatuses": [container]}
    await machine.client.patch(PODS, "virt-launcher-vm", {"status": status}, "default", subresource="status")


async def controller_grants(machine: OneMachine, vcpus: int, *, claims: bool = False) -> None:
    size = {"vcpus": vcpus, "memory": "1Gi"}
    granted = {"status": {"hotvirt": {"granted": size} | ({"claimed": size} if claims else {})}}
    await machine.client.patch(VMIS, "vm", granted, "default", subresource="status")


async def until(machine: OneMachine, holds: Callable[[Object], Any]) -> Object:
    """Wait for the VMI to be so, by watching it."""
    async with asyncio.timeout(WITHIN):
        found = await machine.client.get(VMIS, "vm", "default")
        if holds(found):
            return found
        version = found["metadata"]["resourceVersion"]
        async for event in machine.client.watch(VMIS, "default", resource_version=version):
            if event.type in ("ADDED", "MODIFIED") and holds(event.object):
                return dict(event.object)
    raise AssertionError("the watch ended")


def sockets(found: Object) -> int:
    return int(found.get("status", {}).get("currentCPUTopology", {}).get("sockets", 0))


def condition(found: Object, kind: str) -> Object | None:
    return next((each for each in found["status"].get("conditions", []) if each["type"] == kind), None)


async def test_a_machine_is_begun_and_its_status_written(machine: OneMachine) -> None:
    await scheduled(machine)
    async with agent(machine):
        found = await until(machine, lambda each: each["status"].get("phase") == "Running")
        await machine.event("Started")  # it is told after the phase is written
    status = found["status"]
    assert sockets(found) == 1
    assert status["memory"]["guestCurrent"] == status["memory"]["guestAtBoot"] == "1Gi"
    assert status["interfaces"][0]["ipAddress"] == "10.1.2.3"
    assert condition(found, "AgentConnected") and condition(found, "Resizable")
    events = await machine.client.list(EVENTS, "default")
    assert [event["reason"] for event in events.items] == ["Started"]


async def test_vcpus_come_when_they_are_granted_and_not_before(machine: OneMachine) -> None:
    pod = await scheduled(machine)
    state = run_folder(machine.state.path, pod["metadata"]["uid"]) / STATE_FILE
    async with agent(machine):
        await until(machine, lambda each: sockets(each) == 1)
        grown = {"spec": {"domain": {"cpu": {"sockets": 3}}}}
        await machine.client.patch(VMIS, "vm", grown, "default")
        # Pausing goes through the agent too: when that is done, it has seen the new spec and let it be.
        request = [{"action": "Pause", "id": "p", "requestedAt": "2026-01-01T00:00:00Z"}]
        wish = {"status": {"hotvirt": {"requests": request}}}
        await machine.client.patch(VMIS, "vm", wish, "default", subresource="status")
        await until(machine, lambda each: condition(each, "Paused") is not None)
        assert json.loads(state.read_text())["plugged"] == 1
        request[0] |= {"action": "Unpause", "id": "u"}
        await machine.client.patch(VMIS, "vm", wish, "default", subresource="status")
        found = await until(machine, lambda each: not condition(each, "Paused"))
        assert sockets(found) == 1
        await controller_grants(machine, 3)
        found = await until(machine, lambda each: sockets(each) == 3)
    assert found["status"]["hotvirt"]["vcpus"] == {"plugged": 3, "online": 3}


@pytest.mark.parametrize("told_something", [False, True])
async def test_a_granted_growth_is_begun_at_once_and_looked_at_behind_it(
    machine: OneMachine, monkeypatch: pytest.MonkeyPatch, told_something: bool
) -> None:
    deeds: list[str] = []
    for name in ("observe", "plug_vcpus", "use_vcpus"):

        def noted(deed: Any, name: str = name) -> Any:
            return lambda *given: deeds.append(name) or deed(*given)

        monkeypatch.setattr(InstantMachine, name, noted(getattr(InstantMachine, name)))
    await scheduled(machine)
    async with agent(machine) as running:
        found = await until(machine, lambda each: sockets(each) == 1)
        await running._controller.settled()
        if told_something:
            running._guests["default", "vm"].looks.forget()
        deeds.clear()
        seen = asyncio.Event()
        generation = found["metadata"]["generation"] + 1
        running._vmis.add_handler(
            lambda _, new: seen.set() if new and new.metadata.generation == generation else None
        )
        await machine.client.patch(VMIS, "vm", {"spec": {"domain": {"cpu": {"sockets": 3}}}}, "default")
        async with asyncio.timeout(WITHIN):
            await seen.wait()
            await running._controller.settled()
        assert deeds == (["observe"] if told_something else []), "it waits for the grant"
        await controller_grants(machine, 3, claims=True)
        await until(machine, lambda each: sockets(each) == 3)
    assert deeds == (["observe"] if told_something else []) + ["plug_vcpus", "use_vcpus", "observe"]


async def test_with_the_gate_off_nothing_is_taken_even_of_what_was_granted(machine: OneMachine) -> None:
    pod = await scheduled(machine)
    state = run_folder(machine.state.path, pod["metadata"]["uid"]) / STATE_FILE
    async with agent(machine):
        await until(machine, lambda each: sockets(each) == 1)
    off = {"developerConfiguration": {"disabledFeatureGates": [names.GATE_IN_PLACE_HOTPLUG]}}
    settings = {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {"configuration": off}}
    await machine.client.create(NAMESPACES, {"metadata": {"name": names.NAMESPACE}})
    await machine.create(KUBEVIRTS, settings, names.NAMESPACE)
    await machine.client.patch(VMIS, "vm", {"spec": {"domain": {"cpu": {"sockets": 3}}}}, "default")
    await controller_grants(machine, 3, claims=True)
    async with agent(machine):
        found = await until(machine, lambda each: each["status"]["hotvirt"]["claimed"]["vcpus"] == 1)
    assert sockets(found) == 1
    assert json.loads(state.read_text())["plugged"] == 1


async def test_a_new_agent_finds_the_machine_as_it_is(machine: OneMachine) -> None:
    await scheduled(machine)
    async with agent(machine):
        before = await until(machine, lambda each: each["status"].get("phase") == "Running")
    await machine.client.patch(VMIS, "vm", {"spec": {"domain": {"cpu": {"sockets": 2}}}}, "default")
    await controller_grants(machine, 2)
    async with agent(machine):
        after = await until(machine, lambda each: sockets(each) == 2)
    assert after["status"]["hotvirt"]["bootId"] == before["status"]["hotvirt"]["bootId"]


async def test_a_reset_is_done_once_even_when_its_request_comes_again(machine: OneMachine) -> None:
    await scheduled(machine)
    wish = {"status": {"hotvirt": {"requests": [{"action": "Reset", "id": "same"}]}}}
    async with agent(machine):
        first = await until(machine, lambda each: each["status"].get("phase") == "Running")
        await machine.client.patch(VMIS, "vm", wish, "default", subresource="status")
        boot = first["status"]["hotvirt"]["bootId"]
        second = await until(machine, lambda each: each["status"]["hotvirt"]["bootId"] != boot)
        await until(machine, lambda each: not each["status"]["hotvirt"].get("requests"))
    # An agent that died before it had written the list back finds the request again.
    await machine.client.patch(VMIS, "vm", wish, "default", subresource="status")
    async with agent(machine):
        third = await until(machine, lambda each: not each["status"]["hotvirt"].get("requests"))
    assert third["status"]["hotvirt"]["bootId"] == second["status"]["hotvirt"]["bootId"]


async def test_a_request_that_is_not_known_is_told_and_removed(machine: OneMachine) -> None:
    await scheduled(machine)
    wish = {"status": {"hotvirt": {"requests": [{"action": "Explode", "id": "x"}]}}}
    async with agent(machine):
        await until(machine, lambda each: each["status"].get("phase") == "Running")
        await machine.client.patch(VMIS, "vm", wish, "default", subresource="status")
        await until(machine, lambda each: not each["status"]["hotvirt"].get("requests"))
    events = await machine.client.list(EVENTS, "default")
    assert any("'Explode' is not known" in event["message"] for event in events.items)


async def test_a_pod_that_poses_as_a_machines_is_not_taken(machine: OneMachine) -> None:
    """The label alone can be written by anybody who may make Pods: the owner is what counts."""
    pod = await scheduled(machine)
    await machine.client.patch(PODS, "virt-launcher-vm", {"metadata": {"ownerReferences": []}}, "default")
    await machine.client.patch(VMIS, "vm", {"metadata": {"labels": {"touched": "yes"}}}, "default")
    async with agent(machine) as running:
        await running._controller.settled()
        assert running._guests == {}
        with pytest.raises(LookupError, match="does not run on this node"):
            await running.open_console("default", "vm")
    assert not (run_folder(machine.state.path, pod["metadata"]["uid"]) / STATE_FILE).exists()


async def test_a_pod_of_another_namespace_is_not_taken_whatever_it_says(machine: OneMachine) -> None:
    """Whoever knows the uid of a machine could name it as the owner of a Pod of theirs."""
    pod = await scheduled(machine)
    await machine.client.patch(PODS, "virt-launcher-vm", {"metadata": {"ownerReferences": []}}, "default")
    await machine.client.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    about = {"name": "posing"} | {key: pod["metadata"][key] for key in ("labels", "ownerReferences")}
    posing = await machine.client.create(PODS, {"metadata": about, "spec": pod["spec"]}, "elsewhere")
    folder = run_folder(machine.state.path, posing["metadata"]["uid"])
    folder.mkdir(parents=True)
    async with agent(machine) as running:
        await running._controller.settled()
        assert running._guests == {}
    assert not (folder / STATE_FILE).exists()


async def test_a_pod_that_has_ended_is_let_go(machine: OneMachine) -> None:
    await scheduled(machine)
    async with agent(machine) as running:
        await until(machine, lambda each: each["status"].get("phase") == "Running")
        assert list(running._guests) == [("default", "vm")]
        ended = asyncio.Event()
        running._pods.add_handler(
            lambda _, new: ended.set() if new and new.status.phase == "Succeeded" else None
        )
        await kubelet_says(machine, {}, phase="Succeeded")
        async with asyncio.timeout(WITHIN):
            await ended.wait()
            await running._controller.settled()
        assert running._guests == {}
