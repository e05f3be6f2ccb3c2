"""A machine on a node without a node agent, on a real cluster: it says so, and goes on when one comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotvirt.api.resources import NAMESPACES, PODS, VMIS, VMS
from hotvirt.cluster.heartbeat import DURATION
from hotvirt.plan.agents import NO_AGENT
from hotvirt.plan.change import HOT_VCPU_CHANGE
from tests.faults.resizing import edit, machine, reason, rests
from tests.kube import Kube, condition, in_phase

from .bed import Bed
from .on_cluster import OnCluster
from .simulated import NODE, agent_there, bare_node, put_there

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="session")]
SOON = 120.0
NAME = "alone"


async def test_a_machine_waits_for_the_agent_and_says_so(hotvirt_on_cluster: Bed, tmp_path: Path) -> None:
    place = OnCluster(hotvirt_on_cluster)
    async with place.client() as client, bare_node(tmp_path, place.client):
        kube = Kube(client)
        await kube.fresh_namespace()
        try:
            await it_does_not_start(kube)
            async with agent_there(tmp_path, place.client):
                vmi = await kube.until(VMIS, NAME, in_phase("Running"), SOON)
                await kube.until(VMIS, NAME, lambda each: not condition(each, "Synchronized"), SOON)
                await rests(kube, NAME, 1, "1Gi", SOON)
            await it_does_not_change(kube)
            async with agent_there(tmp_path, place.client):
                assert (await rests(kube, NAME, 2, "1Gi", SOON))["metadata"]["uid"] == vmi["metadata"]["uid"]
                await client.delete(VMS, NAME, kube.namespace)
                await kube.gone(VMIS, NAME, SOON)
        finally:
            for pod in (await client.list(PODS, kube.namespace)).items:
                await client.delete(PODS, pod["metadata"]["name"], kube.namespace, grace=0)
            await client.delete(NAMESPACES, kube.namespace)
            await kube.gone(NAMESPACES, kube.namespace, SOON)


async def it_does_not_start(kube: Kube) -> None:
    await kube.create(VMS, put_there(machine(NAME, 1)))
    vm = await kube.until(VMS, NAME, reason("Synchronized", NO_AGENT), SOON)
    message = (condition(vm, "Synchronized") or {})["message"]
    assert message.startswith(f"No Hotvirt node agent runs on node {NODE}.")
    vmi = await kube.get(VMIS, NAME)
    assert vmi["status"]["phase"] == "Scheduled"
    assert await kube.event(vmi, NO_AGENT) == message


async def it_does_not_change(kube: Kube) -> None:
    await edit(kube, NAME, 2)
    vmi = await kube.until(VMIS, NAME, reason(HOT_VCPU_CHANGE, NO_AGENT), DURATION + SOON)
    message = (condition(vmi, HOT_VCPU_CHANGE) or {})["message"]
    assert message.startswith("sockets 1 → 2: ")
    assert f"node {NODE}" in message
