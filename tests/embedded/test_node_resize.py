"""In-place resizes, with the kubelet's answers: done, in progress, deferred, infeasible, refused for memory
in use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import EVENTS, PODS
from hotvirt.embedded.node.cgroups import Cgroups, Limits, Write
from hotvirt.embedded.node.logs import LogOptions
from hotvirt.embedded.node.process_runtime import ProcessRuntime

from .one_machine import OneMachine, condition, one_machine, pod
from .weight import check_weight

MIB = 1 << 20
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
Object = dict[str, Any]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path / "s") as made:
        await made.start_node()
        yield made


def cgroups(machine: OneMachine) -> Cgroups:
    assert machine.node and isinstance(machine.node.runtime, ProcessRuntime)
    return machine.node.runtime.cgroups


def check_in_force(machine: OneMachine, expected: Limits, uid: str, container: str | None = None) -> None:
    """In the cgroup itself; without the right to write cgroups there is none."""
    usable = cgroups(machine).usable
    assert cgroups(machine).read(uid, container) == (expected if usable else None)


def sized(name: str, script: str, requests: Object, limits: Object | None = None) -> Object:
    resources: Object = {"requests": requests} | ({"limits": limits} if limits else {})
    return pod(name, script, container={"resources": resources})


async def resize(machine: OneMachine, name: str, requests: Object, limits: Object | None = None) -> Object:
    resources: Object = {"requests": requests} | ({"limits": limits} if limits else {})
    patch = {"spec": {"containers": [{"name": "compute", "resources": resources}]}}
    return await machine.client.patch(PODS, name, patch, "default", kind="strategic", subresource="resize")


def actual(obj: Object) -> Object:
    found: Object = obj["status"]["containerStatuses"][0].get("resources", {})
    return found


async def settled(machine: OneMachine, name: str, requests: Object) -> Object:
    def done(obj: Object) -> bool:
        return (
            actual(obj).get("requests") == requests
            and not condition(obj, "PodResizePending")
            and not condition(obj, "PodResizeInProgress")
        )

    return await machine.until(PODS, name, done)


async def pending(machine: OneMachine, name: str, reason: str) -> Object:
    found = await machine.until(
        PODS, name, lambda obj: (c := condition(obj, "PodResizePending")) and c["reason"] == reason
    )
    waiting = condition(found, "PodResizePending")
    assert waiting
    return waiting


async def test_grow_and_shrink_reach_the_cgroup_in_the_right_order(machine: OneMachine) -> None:
    small = ({"cpu": "100m", "memory": "64Mi"}, {"cpu": "500m", "memory": "128Mi"})
    large = ({"cpu": "1", "memory": "256Mi"}, {"cpu": "2", "memory": "512Mi"})
    await machine.create(PODS, sized("a", FOREVER, *small))
    running = await machine.phase("a", "Running")
    uid = running["metadata"]["uid"]
    writes: list[Write] = []
    cgroups(machine).log.append(writes.append)

    grown = await resize(machine, "a", *large)
    await settled(machine, "a", large[0])
    check_in_force(machine, Limits(0, 2000, 512 * MIB), uid, "compute")
    check_in_force(machine, Limits(0, 2000, 512 * MIB), uid)
    check_weight(cgroups(machine), uid, 1000)
    memory = [Path(w.cgroup).name for w in writes if w.file.startswith("memory")]
    assert memory == ([f"pod{uid}", "compute"] if cgroups(machine).usable else [])
    done = await machine.client.get(PODS, "a", "default")
    assert done["status"]["observedGeneration"] == grown["metadata"]["generation"]
    assert done["status"]["resources"]["limits"] == large[1]

    writes.clear()
    await resize(machine, "a", *small)
    await settled(machine, "a", small[0])
    check_in_force(machine, Limits(0, 500, 128 * MIB), uid, "compute")
    check_weight(cgroups(machine), uid, 100)
    memory = [Path(w.cgroup).name for w in writes if w.file.startswith("memory")]
    assert memory == (["compute", f"pod{uid}"] if cgroups(machine).usable else [])


async def test_events_carry_the_sizes(machine: OneMachine) -> None:
    await machine.create(PODS, sized("a", FOREVER, {"cpu": "100m"}))
    await machine.phase("a", "Running")
    version = (await machine.client.list(EVENTS, "default")).resource_version
    await resize(machine, "a", {"cpu": "200m"})
    seen: dict[str, str] = {}
    async with asyncio.timeout(60):
        async for event in machine.client.watch(EVENTS, "default", resource_version=version):
            seen[event.object["reason"]] = event.object["message"]
            if "ResizeCompleted" in seen:
                break
    assert list(seen)[-2:] == ["ResizeStarted", "ResizeCompleted"]
    sizes = json.loads(seen["ResizeCompleted"].partition(": ")[2])
    assert sizes["containers"] == [{"name": "compute", "resources": {"requests": {"cpu": "200m"}}}]


async def test_a_full_node_defers_and_goes_on_by_itself(machine: OneMachine) -> None:
    await machine.create(PODS, sized("a", FOREVER, {"cpu": "1", "memory": "1Gi"}))
    await machine.create(PODS, sized("b", FOREVER, {"cpu": "2", "memory": "1Gi"}))
    await machine.phase("a", "Running")
    await machine.phase("b", "Running")
    await resize(machine, "a", {"cpu": "3", "memory": "1Gi"})
    waiting = await pending(machine, "a", "Deferred")
    assert waiting["message"] == (
        "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
    )
    assert actual(await machine.client.get(PODS, "a", "default"))["requests"]["cpu"] == "1"
    await machine.client.delete(PODS, "b", "default")
    await settled(machine, "a", {"cpu": "3", "memory": "1Gi"})


async def test_a_deferred_resize_that_is_taken_back_leaves_no_trace(machine: OneMachine) -> None:
    await machine.create(PODS, sized("a", FOREVER, {"cpu": "1"}))
    await machine.create(PODS, sized("b", FOREVER, {"cpu": "2"}))
    await machine.phase("a", "Running")
    await machine.phase("b", "Running")
    await resize(machine, "a", {"cpu": "3"})
    await pending(machine, "a", "Deferred")
    await resize(machine, "a", {"cpu": "1"})
    await settled(machine, "a", {"cpu": "1"})


async def test_memory_in_use_is_not_taken_away(machine: OneMachine) -> None:
    hold = (
        "python3 -c \"import sys; x = bytearray(b'x') * (96 << 20); print(1, flush=True); sys.stdin.read()\""
    )
    script = f"mkfifo $HOTVIRT_CONTAINER_ROOT/run/f; {hold} <> $HOTVIRT_CONTAINER_ROOT/run/f"
    container = {
        "resources": {"requests": {"memory": "200Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "run", "mountPath": "/run"}],
    }
    volumes = {"volumes": [{"name": "run", "emptyDir": {}}]}
    await machine.create(PODS, pod("a", script, container=container, spec=volumes))
    running = await machine.phase("a", "Running")
    uid = running["metadata"]["uid"]
    assert machine.node
    async for _ in machine.node.log(uid, "compute", LogOptions(follow=True)):
        break
    await resize(machine, "a", {"memory": "32Mi"}, {"memory": "64Mi"})
    if not cgroups(machine).usable:
        await settled(machine, "a", {"memory": "32Mi"})
        return
    failing = await machine.until(
        PODS, "a", lambda obj: (c := condition(obj, "PodResizeInProgress")) and c.get("reason") == "Error"
    )
    problem = condition(failing, "PodResizeInProgress")
    assert problem and problem["message"].startswith("cannot decrease memory limits: ")
    assert 'container "compute" memory limit (67108864) below current usage' in problem["message"]
    assert actual(failing)["limits"] == {"memory": "256Mi"}
    check_in_force(machine, Limits(0, None, 256 * MIB), uid, "compute")
    await resize(machine, "a", {"memory": "32Mi"}, {"memory": "200Mi"})
    await settled(machine, "a", {"memory": "32Mi"})
    check_in_force(machine, Limits(0, None, 200 * MIB), uid, "compute")


async def test_a_restarted_node_remembers_what_is_in_force(machine: OneMachine) -> None:
    await machine.create(PODS, sized("a", FOREVER, {"cpu": "100m"}, {"cpu": "200m"}))
    running = await machine.phase("a", "Running")
    await machine.stop_node()
    await resize(machine, "a", {"cpu": "300m"}, {"cpu": "400m"})
    before = await machine.client.get(PODS, "a", "default")
    assert actual(before)["requests"] == {"cpu": "100m"}
    await machine.start_node()
    await settled(machine, "a", {"cpu": "300m"})
    check_in_force(machine, Limits(0, 400, None), running["metadata"]["uid"], "compute")


async def test_ten_edits_end_with_the_last(machine: OneMachine) -> None:
    await machine.create(PODS, sized("a", FOREVER, {"cpu": "100m"}, {"cpu": "2"}))
    running = await machine.phase("a", "Running")
    for number in range(1, 11):
        await resize(machine, "a", {"cpu": f"{number * 100 + 11}m"}, {"cpu": f"{number * 100 + 21}m"})
    await settled(machine, "a", {"cpu": "1011m"})
    check_in_force(machine, Limits(0, 1021, None), running["metadata"]["uid"], "compute")
