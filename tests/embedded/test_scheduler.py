"""The embedded scheduler: who gets which node, who waits, why, and until when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import NODES, PODS, PVCS
from hotvirt.embedded.scheduler import Scheduler

from .one_machine import OneMachine, condition, one_machine, pod

Object = dict[str, Any]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path / "s") as made:
        made.run(Scheduler(made.client_as("system:kube-scheduler")).run())
        yield made


async def node(machine: OneMachine, name: str, cpu: str = "4", **more: Any) -> None:
    labels = {"kubernetes.io/hostname": name} | more.pop("labels", {})
    await machine.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": more})
    status = {
        "allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "3"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await machine.client.patch(NODES, name, {"status": status}, subresource="status")


def unbound(name: str, cpu: str = "1", **spec: Any) -> Object:
    made = pod(name, "true", requests={"cpu": cpu, "memory": "64Mi"}, spec=spec)
    del made["spec"]["nodeName"]
    return made


async def bound(machine: OneMachine, name: str) -> str:
    found = await machine.until(PODS, name, lambda obj: obj["spec"].get("nodeName"))
    return str(found["spec"]["nodeName"])


async def waits(machine: OneMachine, name: str, why: str) -> None:
    """Until it is said to wait for this: the scheduler may hear of a Pod before it hears of the nodes."""

    def explained(obj: Object) -> Any:
        found = condition(obj, "PodScheduled")
        return found and (found["status"], found["message"]) == ("False", why)

    found = condition(await machine.until(PODS, name, explained), "PodScheduled")
    assert found and found["reason"] == "Unschedulable"


async def know(machine: OneMachine, nodes: int) -> None:
    """Until the scheduler knows of so many nodes, and what they offer; they stay empty."""
    await machine.create(PODS, unbound("too-large", "1000"))
    await waits(machine, "too-large", f"0/{nodes} nodes are available: {nodes} Insufficient cpu.")
    await machine.client.delete(PODS, "too-large", "default", grace=0)


async def test_without_nodes_it_waits_for_one(machine: OneMachine) -> None:
    await machine.create(PODS, unbound("a"))
    await waits(machine, "a", "no nodes available to schedule pods")
    await node(machine, "n1")
    assert await bound(machine, "a") == "n1"


async def test_the_emptier_node_is_chosen(machine: OneMachine) -> None:
    await node(machine, "n1")
    await node(machine, "n2")
    await know(machine, 2)
    for name in ("a", "b", "c", "d"):
        await machine.create(PODS, unbound(name))
    places = [await bound(machine, name) for name in ("a", "b", "c", "d")]
    assert sorted(places) == ["n1", "n1", "n2", "n2"]


async def test_a_full_node_says_so_and_room_is_used_at_once(machine: OneMachine) -> None:
    await node(machine, "n1")
    await machine.create(PODS, unbound("a", "3"))
    await bound(machine, "a")
    await machine.create(PODS, unbound("b", "2"))
    await waits(machine, "b", "0/1 nodes are available: 1 Insufficient cpu.")
    await machine.client.delete(PODS, "a", "default", grace=0)
    assert await bound(machine, "b") == "n1"


async def test_what_has_ended_holds_nothing(machine: OneMachine) -> None:
    await node(machine, "n1")
    await machine.create(PODS, unbound("a", "3"))
    await bound(machine, "a")
    await machine.create(PODS, unbound("b", "3"))
    await waits(machine, "b", "0/1 nodes are available: 1 Insufficient cpu.")
    ended = {"status": {"phase": "Succeeded"}}
    await machine.client.patch(PODS, "a", ended, "default", subresource="status")
    assert await bound(machine, "b") == "n1"


async def test_a_resize_under_way_holds_the_larger_size(machine: OneMachine) -> None:
    await node(machine, "n1")
    await machine.create(PODS, unbound("a", "1"))
    await bound(machine, "a")
    sizes = {"cpu": "3", "memory": "64Mi"}
    container = {
        "name": "compute",
        "allocatedResources": sizes,
        "resources": {"requests": sizes},
        "image": "",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
    }
    held = {"status": {"containerStatuses": [container]}}
    await machine.client.patch(PODS, "a", held, "default", subresource="status")
    await machine.create(PODS, unbound("b", "2"))
    await waits(machine, "b", "0/1 nodes are available: 1 Insufficient cpu.")
    container["allocatedResources"] = container["resources"] = {}
    await machine.client.patch(PODS, "a", held, "default", subresource="status")
    assert await bound(machine, "b") == "n1"


async def test_every_reason_is_counted(machine: OneMachine) -> None:
    await node(machine, "closed", unschedulable=True)
    await node(machine, "tainted", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])
    await node(machine, "small", cpu="500m")
    await machine.create(PODS, unbound("a", nodeSelector={}))
    expected = (
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {a: b}, "
        "1 node(s) were unschedulable."
    )
    await waits(machine, "a", expected)
    await machine.create(PODS, unbound("b", tolerations=[{"key": "a", "operator": "Exists"}]))
    assert await bound(machine, "b") == "tainted"
    await machine.client.patch(NODES, "closed", {"spec": {"unschedulable": None}})
    assert await bound(machine, "a") == "closed"


async def test_selectors_and_affinity_are_honoured(machine: OneMachine) -> None:
    await node(machine, "n1")
    await node(machine, "n2", labels={"disk": "fast"})
    await machine.create(PODS, unbound("a", nodeSelector={"disk": "fast"}))
    assert await bound(machine, "a") == "n2"
    expression = {"key": "disk", "operator": "DoesNotExist"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    await machine.create(PODS, unbound("b", affinity=affinity))
    assert await bound(machine, "b") == "n1"
    await machine.create(PODS, unbound("c", nodeSelector={"disk": "slow"}))
    await waits(machine, "c", "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.")


async def test_no_more_pods_than_a_node_takes(machine: OneMachine) -> None:
    await node(machine, "n1")
    await know(machine, 1)
    for name in ("a", "b", "c", "d"):
        await machine.create(PODS, unbound(name, "100m"))
    for name in ("a", "b", "c"):
        assert await bound(machine, name) == "n1"
    await waits(machine, "d", "0/1 nodes are available: 1 Too many pods.")


async def test_a_claim_has_to_be_bound_first(machine: OneMachine) -> None:
    await node(machine, "n1")
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await machine.create(PODS, unbound("a", volumes=volumes))
    await waits(machine, "a", '0/1 nodes are available: persistentvolumeclaim "c" not found.')
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    await machine.create(PVCS, {"metadata": {"name": "c"}, "spec": claim | {"storageClassName": "x"}})
    await waits(machine, "a", "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    await machine.client.patch(PVCS, "c", {"status": {"phase": "Bound"}}, "default", subresource="status")
    assert await bound(machine, "a") == "n1"
