"""Machines on a node whose agent is not there, against the real API."""

import pytest
import pytest_asyncio

from hotvirt.api import names
from hotvirt.api.resources import KUBEVIRTS, LEASES, PODS, VMIS, VMS
from hotvirt.kube.errors import NotFound
from hotvirt.plan.agents import NO_AGENT
from hotvirt.plan.platform import Platform
from tests.faults.resizing import reason
from tests.inprocess import NODE, controlled_by_module, vm_manifest
from tests.kube import Kube, condition, in_phase, shows

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = controlled_by_module(Platform(agent_leases=True))
CHANGE = "HotVCPUChange"
LEASE = names.NODE_LEASE.format(node=NODE)
LONG = 600
"""Seconds in which any machine gets everything done."""
NOTHING = {"message": ""}


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared):
    cluster, node = shared
    await cluster.fresh_namespace()
    await cluster.create(VMS, vm_manifest("one"))
    yield cluster, node
    try:
        await cluster.admin.delete(LEASES, LEASE, names.NAMESPACE)
    except NotFound:
        return


async def agent_lives(cluster: Kube, seconds: int) -> None:
    """What the agent writes at each beat: its Lease, for so long."""
    kubevirt = Kube(cluster.admin, names.NAMESPACE)
    spec = {"holderIdentity": NODE, "leaseDurationSeconds": seconds}
    try:
        beats = (await kubevirt.get(LEASES, LEASE))["spec"]["leaseTransitions"] + 1
    except NotFound:
        await kubevirt.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec | {"leaseTransitions": 0}})
    else:
        await kubevirt.patch(LEASES, LEASE, {"spec": spec | {"leaseTransitions": beats}})


async def hand_over(node) -> None:
    pod = await node.pod_of("one")
    await node.bind(pod)
    await node.run_containers(pod)


async def test_a_machine_that_nobody_starts_says_so_until_somebody_can(world):
    cluster, node = world
    await hand_over(node)
    vmi = await cluster.until(VMIS, "one", reason("Synchronized", NO_AGENT))
    assert vmi["status"]["phase"] == "Scheduled"
    message = condition(vmi, "Synchronized")["message"]
    assert message.startswith(f"No Hotvirt node agent runs on node {NODE}.")
    vm = await cluster.until(VMS, "one", reason("Synchronized", NO_AGENT))
    assert shows("Starting")(vm)
    assert await cluster.event(vmi, NO_AGENT) == message
    await agent_lives(cluster, LONG)
    await cluster.until(VMIS, "one", lambda each: not condition(each, "Synchronized"))
    await cluster.until(VMS, "one", lambda each: not condition(each, "Synchronized"))


async def test_with_an_agent_nothing_is_said(world):
    cluster, node = world
    await agent_lives(cluster, LONG)
    await hand_over(node)
    vmi = await cluster.until(VMIS, "one", in_phase("Scheduled"))
    assert condition(vmi, "Synchronized") is None


async def test_a_change_that_nobody_carries_out_says_so(world):
    cluster, node = world
    await agent_lives(cluster, LONG)
    await node.boot("one")
    await agent_lives(cluster, 1)
    domain = {"cpu": {"sockets": 2}}
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": {"domain": domain}}}})
    name = (await node.pod_of("one"))["metadata"]["name"]
    pod = await cluster.until(PODS, name, lambda each: each["metadata"]["generation"] > 1)
    await node.run_containers(pod)
    vmi = await cluster.until(VMIS, "one", reason(CHANGE, NO_AGENT))
    message = condition(vmi, CHANGE)["message"]
    assert message.startswith(f"sockets 1 → 2: The Hotvirt node agent of node {NODE} has not been heard of")
    assert "sockets 1" in message
    assert condition(vmi, "Synchronized") is None, "the machine itself is well"
    assert await cluster.event(vmi, NO_AGENT) == message
    await agent_lives(cluster, LONG)
    vmi = await cluster.until(VMIS, "one", reason(CHANGE, "GuestPending"))
    await node.guest(vmi, sockets=2)
    await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))


async def test_a_request_that_nobody_hears_says_so(world):
    cluster, node = world
    await agent_lives(cluster, LONG)
    vmi = await node.boot("one")
    assert condition(vmi, "Synchronized") is None
    await agent_lives(cluster, 1)
    asked = {"action": "Pause", "id": "1", "requestedAt": "2026-01-01T00:00:00Z"}
    await cluster.patch(VMIS, "one", {"status": {"hotvirt": {"requests": [asked]}}}, status=True)
    vmi = await cluster.until(VMIS, "one", reason("Synchronized", NO_AGENT))
    assert vmi["status"]["phase"] == "Running"


async def test_a_lease_that_goes_counts_until_its_time_is_over(world):
    """As when an agent is replaced by a newer one."""
    cluster, node = world
    await agent_lives(cluster, 1)
    await hand_over(node)
    await cluster.until(VMIS, "one", in_phase("Scheduled"))
    await cluster.admin.delete(LEASES, LEASE, names.NAMESPACE)
    # On a slow machine it says before that the agent, whose Lease is there, is silent.
    await cluster.until(
        VMIS,
        "one",
        lambda each: (condition(each, "Synchronized") or NOTHING)["message"].startswith(
            "No Hotvirt node agent runs"
        ),
    )


def says(kind: str, status: str, *words: str):
    def holds(kubevirt) -> bool:
        found = condition(kubevirt, kind) or {}
        return found.get("status") == status and all(word in found["message"] for word in words)

    return holds


async def test_the_kubevirt_object_says_where_there_is_none(world):
    cluster, node = world
    kubevirt = Kube(cluster.admin, names.NAMESPACE)
    await kubevirt.create(KUBEVIRTS, {"metadata": {"name": "kubevirt"}, "spec": {}})
    found = await kubevirt.until(KUBEVIRTS, "kubevirt", says("Available", "False", "anywhere"))
    assert in_phase("Deploying")(found)
    await agent_lives(cluster, LONG)
    found = await kubevirt.until(KUBEVIRTS, "kubevirt", says("Available", "True"))
    assert in_phase("Deployed")(found) and says("Degraded", "False")(found)
    await node.boot("one")
    await agent_lives(cluster, 1)
    found = await kubevirt.until(KUBEVIRTS, "kubevirt", says("Degraded", "True", NODE, "DaemonSet"))
    assert says("Available", "False")(found) and says("Progressing", "True")(found)
    await agent_lives(cluster, LONG)
    await kubevirt.until(KUBEVIRTS, "kubevirt", says("Degraded", "False"))
