"""The Pod-resize part of a live change: its order, its condition, refusals, and no asking in a loop."""

import asyncio
import time

import pytest
import pytest_asyncio

from hotvirt.api import codec
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.meta import parse_time
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import NODES, PODS, RESOURCEQUOTAS, VMIS, VMS
from hotvirt.controllers import resize
from hotvirt.kube.errors import Conflict
from hotvirt.plan.change import view
from hotvirt.plan.podresize import Size
from tests.inprocess import NODE, controlled_by_module, vm_manifest
from tests.kube import condition, in_phase, shows

CHANGE = "HotVCPUChange"
pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = controlled_by_module()


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared):
    cluster, node = shared
    await cluster.fresh_namespace()
    await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.until(VMS, "one", shows("Running"))
    return cluster, node


async def want(cluster, sockets: int) -> None:
    await cluster.patch(
        VMS, "one", {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": sockets}}}}}}
    )


def cpu(pod: dict) -> str:
    compute = next(each for each in pod["spec"]["containers"] if each["name"] == "compute")
    return compute["resources"]["requests"]["cpu"]


def because(reason: str):
    """The change stands, for this reason."""
    return lambda vmi: (condition(vmi, CHANGE) or {}).get("reason") == reason


def granted(vcpus: int):
    return lambda vmi: vmi["status"].get("hotvirt", {}).get("granted", {}).get("vcpus") == vcpus


async def pod_name(node) -> str:
    return (await node.pod_of("one"))["metadata"]["name"]


async def told(cluster, reason: str) -> str:
    return await cluster.event(await cluster.get(VMIS, "one"), reason)


async def test_the_pod_grows_before_the_guest(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    vmi = await cluster.until(VMIS, "one", lambda each: condition(each, CHANGE))
    assert condition(vmi, CHANGE)["status"] == "True"
    assert condition(vmi, CHANGE)["message"].startswith("sockets 1 → 2")
    assert vmi["status"]["currentCPUTopology"]["sockets"] == 1
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    await node.run_containers(pod)
    vmi = await cluster.until(VMIS, "one", because("GuestPending"))
    await node.guest(vmi, sockets=2)
    vmi = await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))
    assert "change" not in vmi["status"].get("hotvirt", {})
    vm = await cluster.until(VMS, "one", lambda each: each["status"]["observedGeneration"] == 2)
    assert condition(vm, "RestartRequired") is None
    assert await told(cluster, "ResizeStarted") == "sockets 1 → 2 (1 → 2 vCPUs)"
    completed = await told(cluster, "ResizeCompleted")
    assert completed.startswith("sockets 1 → 2 (1 → 2 vCPUs) in ")
    assert completed.endswith(" ms")


async def test_a_node_that_answers_at_once_has_beginning_and_grant_told_in_one_write(world, monkeypatch):
    monkeypatch.setattr(resize, "AT_ONCE", 3600.0)
    cluster, node = world
    name = await pod_name(node)
    before, seen = time.time(), []

    def is_granted(vmi):
        seen.append((granted(2)(vmi), bool(condition(vmi, CHANGE))))
        return seen[-1][0]

    waiting = asyncio.create_task(cluster.until(VMIS, "one", is_granted))
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    asked = time.time()
    await node.run_containers(pod)
    vmi = await waiting
    assert set(seen) == {(False, False), (True, True)}
    assert "the guest's turn" in condition(vmi, CHANGE)["message"]
    assert before <= parse_time(vmi["status"]["hotvirt"]["change"]["startedAt"]) <= asked
    await node.guest(vmi, sockets=2)
    await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))
    assert await told(cluster, "ResizeStarted") == "sockets 1 → 2 (1 → 2 vCPUs)"


async def test_a_change_of_the_pod_alone_says_what_it_gets(world):
    cluster, node = world
    name = await pod_name(node)
    resources = {"requests": {"cpu": "150m"}}
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": {"domain": {"resources": resources}}}}})
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "150m")
    await node.run_containers(pod)
    completed = await told(cluster, "ResizeCompleted")
    assert completed.startswith("resources of the Pod: cpu 150m") and completed.endswith(" ms")
    assert (await told(cluster, "ResizeStarted")).startswith("resources of the Pod: cpu 150m")


async def test_a_deferred_resize_is_said_and_waited_for(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node is busy"}
    await node.say(pod, {"conditions": [*pod["status"]["conditions"], pending]})
    vmi = await cluster.until(VMIS, "one", because("PodResizeDeferred"))
    assert "node is busy" in condition(vmi, CHANGE)["message"]
    assert cpu(await cluster.get(PODS, name)) == "200m"


async def test_an_infeasible_size_is_taken_back_and_tried_again_when_the_node_grows(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    pending = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Infeasible",
        "message": "not enough cpu",
    }
    others = pod["status"]["conditions"]
    await node.say(pod, {"conditions": [*others, pending]})
    vmi = await cluster.until(VMIS, "one", because("NodeCapacity"))
    assert "not enough cpu" in condition(vmi, CHANGE)["message"]
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "100m")
    await node.say(pod, {"conditions": others})
    refused = pod["metadata"]["generation"]
    assert "not enough cpu" in await told(cluster, "ResizeRefused")

    # The lease and the status of a node change all the time: that alone is no reason to ask again.
    await cluster.patch(NODES, NODE, {"metadata": {"labels": {"beat": "1"}}})
    await cluster.patch(VMS, "one", {"metadata": {"labels": {"beat": "1"}}})
    # A VM that comes later has its Pod when the controllers have looked at all of that.
    await cluster.create(VMS, vm_manifest("later"))
    await node.pod_of("later")
    assert (await cluster.get(PODS, name))["metadata"]["generation"] == refused

    await cluster.patch(NODES, NODE, {"status": {"allocatable": {"cpu": "16"}}}, status=True)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    await node.run_containers(pod)
    vmi = await cluster.until(VMIS, "one", granted(2))
    await node.guest(vmi, sockets=2)
    await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))


async def test_an_edit_taken_back_takes_the_pod_back(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node is busy"}
    others = pod["status"]["conditions"]
    await node.say(pod, {"conditions": [*others, pending]})
    await cluster.until(VMIS, "one", because("PodResizeDeferred"))
    await cluster.patch(VMIS, "one", {"spec": {"domain": {"cpu": {"sockets": 1}}}})
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "100m")
    await node.say(pod, {"conditions": others})
    await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))
    assert await told(cluster, "ResizeReverted")


async def test_a_pod_is_made_smaller_on_the_newest_vmi_alone(world, monkeypatch):
    cluster, node = world
    resizer = resize.PodResizer(cluster.admin, None, None)
    newest = codec.convert(await cluster.get(VMIS, "one"), VirtualMachineInstance)
    pod = codec.convert(await node.pod_of("one"), Pod)
    seen = view(newest, gate=True)
    smaller, larger = Size({"cpu": Quantity("100m")}), Size({"cpu": Quantity("200m")})
    asked = []

    async def noted(vmi, pod, size):
        asked.append(size)

    resizer._resize = noted
    monkeypatch.setattr(resize, "Worlds", lambda *about, **more: {})

    def sight(vmi, target, now):
        return resize._Sight(vmi, pod, seen, True, now, now, target)

    await cluster.patch(VMIS, "one", {"metadata": {"annotations": {"something": "else"}}})
    with pytest.raises(Conflict):
        await resizer._step(sight(newest, smaller, larger))
    assert asked == []
    await resizer._step(sight(newest, larger, smaller))
    assert asked == [larger], "a larger Pod does no harm"
    newest = codec.convert(await cluster.get(VMIS, "one"), VirtualMachineInstance)
    await resizer._step(sight(newest, smaller, larger))
    assert asked == [larger, smaller]


async def test_a_second_edit_goes_on_from_where_the_first_is(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    await want(cluster, 4)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "400m")
    await node.run_containers(pod)
    vmi = await cluster.until(VMIS, "one", granted(4))
    await node.guest(vmi, sockets=4)
    await cluster.until(VMIS, "one", lambda each: not condition(each, CHANGE))
    assert (await told(cluster, "ResizeCompleted")).startswith("sockets 1 → 4 (1 → 4 vCPUs) in ")


async def test_more_sockets_than_the_maximum_wait_for_a_restart(world):
    cluster, node = world
    await cluster.patch(
        VMS, "one", {"spec": {"template": {"spec": {"domain": {"cpu": {"maxSockets": 8, "sockets": 8}}}}}}
    )
    vm = await cluster.until(VMS, "one", lambda each: condition(each, "RestartRequired"))
    assert "maxSockets" in condition(vm, "RestartRequired")["message"]
    vmi = await cluster.until(VMIS, "one", in_phase("Running"))
    assert vmi["spec"]["domain"]["cpu"]["sockets"] == 1
    assert condition(vmi, CHANGE) is None
    assert cpu(await node.pod_of("one")) == "100m"


async def test_a_quota_that_changes_is_not_asked_about_when_nothing_was_refused(world):
    cluster, node = world
    name = await pod_name(node)
    before = (await cluster.get(PODS, name))["metadata"]["generation"]
    await cluster.create(RESOURCEQUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "100"}}})
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    assert pod["metadata"]["generation"] == before + 1


async def test_a_change_ends_with_its_machine(world):
    cluster, node = world
    name = await pod_name(node)
    await want(cluster, 2)
    pod = await cluster.until(PODS, name, lambda each: cpu(each) == "200m")
    await cluster.until(VMIS, "one", lambda each: condition(each, CHANGE))
    await node.say(pod, {"phase": "Failed"})
    vmi = await cluster.until(VMIS, "one", in_phase("Failed"))
    assert condition(vmi, CHANGE) is None
