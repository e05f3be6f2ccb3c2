"""The embedded node plays the kubelet: real processes behind a real (embedded) API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import LEASES, NODES, PODS, SECRETS
from hotvirt.embedded.node.logs import LogOptions
from hotvirt.embedded.node.network import run_tool
from hotvirt.embedded.node.process_runtime import ProcessRuntime
from tests.targets.target import wait_until

from .one_machine import NODE, OneMachine, condition, one_machine, pod, state_of

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    async with one_machine(tmp_path / "s") as made:
        await made.start_node()
        yield made


async def read_all(machine: OneMachine, obj: dict[str, Any], options: LogOptions) -> bytes:
    assert machine.node
    chunks = machine.node.log(obj["metadata"]["uid"], "compute", options)
    return b"".join([chunk async for chunk in chunks])


async def ready(machine: OneMachine, obj: dict[str, Any]) -> None:
    """Wait for the script to say that it is ready: a Pod runs before its shell has set its traps."""
    assert machine.node
    said = b""
    async for chunk in machine.node.log(obj["metadata"]["uid"], "compute", LogOptions(follow=True)):
        said += chunk
        if b"ready\n" in said:
            return
    raise AssertionError(f"the script ended before it was ready: {said!r}")


async def test_the_node_registers_itself(machine: OneMachine) -> None:
    node = await machine.client.get(NODES, NODE)
    assert node["status"]["allocatable"]["cpu"] == "4"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    ready = condition(node, "Ready")
    assert ready and ready["status"] == "True"
    lease = await machine.until(LEASES, NODE, lambda lease: True, "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == NODE


async def test_a_running_pod_is_reported_as_the_kubelet_does(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", FOREVER))
    running = await machine.phase("a", "Running")
    status = running["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    assert all(c["observedGeneration"] == running["metadata"]["generation"] for c in status["conditions"])
    (container,) = status["containerStatuses"]
    assert container["ready"] and container["started"] and container["restartCount"] == 0
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "64Mi"}}
    assert container["allocatedResources"] == {"cpu": "100m", "memory": "64Mi"}
    assert container["containerID"].startswith("hotvirt://")
    assert status["podIPs"] == [{"ip": status["podIP"]}] and status["hostIP"]
    assert status["qosClass"] == "Burstable" and status["startTime"]
    assert status["observedGeneration"] == running["metadata"]["generation"]


@pytest.mark.parametrize(
    ("script", "phase", "code", "reason"),
    [
        ("exit 0", "Succeeded", 0, "Completed"),
        ("exit 3", "Failed", 3, "Error"),
        ("kill -9 $$$$", "Failed", 137, "Error"),
    ],
)
async def test_how_a_pod_ends(machine: OneMachine, script: str, phase: str, code: int, reason: str) -> None:
    await machine.create(PODS, pod("a", script))
    ended = await machine.phase("a", phase)
    terminated = state_of(ended)["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (code, reason)
    assert terminated["startedAt"] <= terminated["finishedAt"]
    ready = condition(ended, "Ready")
    assert ready and (ready["status"], ready["reason"]) == (
        "False",
        "PodCompleted" if phase == "Succeeded" else "PodFailed",
    )


async def test_the_last_words_of_a_failed_container_are_its_message(machine: OneMachine) -> None:
    container = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    script = "seq 1000; echo the reason >&2; exit 1"
    await machine.create(PODS, pod("a", script, container=container))
    ended = await machine.phase("a", "Failed")
    message = state_of(ended)["terminated"]["message"]
    assert message.endswith("\nthe reason") and len(message.splitlines()) == 80
    await machine.create(PODS, pod("b", "echo fine", container=container))
    assert "message" not in state_of(await machine.phase("b", "Succeeded"))["terminated"]


async def test_a_pod_that_waits_for_an_image_can_be_deleted(machine: OneMachine) -> None:
    container = {"volumeMounts": [{"name": "disk", "mountPath": "/images/root"}]}
    volumes = {"volumes": [{"name": "disk", "image": {"reference": "my/os:1"}}]}
    await machine.create(PODS, pod("a", "true", container=container, spec=volumes))
    waiting = await machine.until(PODS, "a", lambda obj: "waiting" in state_of(obj))
    await machine.client.delete(PODS, "a", "default")
    await machine.until_gone(PODS, "a")
    await machine.all_ended()
    assert not machine.folder(waiting).exists()


async def test_the_logs_of_an_ended_pod_stay_until_it_is_deleted(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", "echo one; echo two; echo three"))
    ended = await machine.phase("a", "Succeeded")
    assert await read_all(machine, ended, LogOptions(tail_lines=2)) == b"two\nthree\n"
    await machine.client.delete(PODS, "a", "default")
    await machine.until_gone(PODS, "a")
    await machine.all_ended()
    assert not machine.folder(ended).exists()


async def test_deleting_runs_prestop_then_sigterm_and_leaves_nothing(machine: OneMachine) -> None:
    # What preStop leaves is there when SIGTERM comes; afterwards it goes with the Pod's volumes.
    file = "$HOTVIRT_CONTAINER_ROOT/run/pre"
    script = f"trap 'cat {file}; echo term; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    pre_stop = {"exec": {"command": ["hotvirt-launcher", f"echo $WHO > {file}"]}}
    container = {
        "lifecycle": {"preStop": pre_stop},
        "env": [{"name": "WHO", "value": "me"}],
        "volumeMounts": [{"name": "run", "mountPath": "/run"}],
    }
    volumes = {"volumes": [{"name": "run", "emptyDir": {}}]}
    await machine.create(PODS, pod("a", script, container=container, spec=volumes))
    running = await machine.phase("a", "Running")
    await ready(machine, running)
    assert machine.node and isinstance(machine.node.runtime, ProcessRuntime)
    namespace = machine.node.runtime.network.existing(running["metadata"]["uid"])
    follower = asyncio.create_task(read_all(machine, running, LogOptions(follow=True)))
    await machine.client.delete(PODS, "a", "default")
    last = await machine.until(PODS, "a", lambda obj: "terminated" in state_of(obj), since=running)
    assert state_of(last)["terminated"]["exitCode"] == 7
    assert await follower == b"ready\nme\nterm\n"
    await machine.until_gone(PODS, "a")
    assert namespace and not (namespace.namespace and namespace.namespace.exists())
    assert not machine.node.runtime.cgroups.pids(running["metadata"]["uid"])


async def test_what_does_not_listen_is_killed_when_its_time_is_over(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", DEAF))
    running = await machine.phase("a", "Running")
    await ready(machine, running)
    await machine.client.delete(PODS, "a", "default", grace=1)
    ended = await machine.until(PODS, "a", lambda obj: "terminated" in state_of(obj), since=running)
    assert state_of(ended)["terminated"]["exitCode"] == 137
    await machine.until_gone(PODS, "a")


async def test_a_shorter_grace_period_cuts_a_longer_one_short(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", DEAF))
    await ready(machine, await machine.phase("a", "Running"))
    await machine.client.delete(PODS, "a", "default", grace=600)
    await machine.client.delete(PODS, "a", "default", grace=1)
    await machine.until_gone(PODS, "a")


async def test_a_pod_that_does_not_fit_is_rejected(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", FOREVER, requests={"cpu": "3"}))
    await machine.phase("a", "Running")
    await machine.create(PODS, pod("b", FOREVER, requests={"cpu": "2"}))
    failed = await machine.phase("b", "Failed")
    assert failed["status"]["reason"] == "OutOfcpu"
    assert failed["status"]["message"].endswith(
        "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"
    )


async def test_a_missing_image_is_waited_for(machine: OneMachine, tmp_path: Path) -> None:
    container = {"volumeMounts": [{"name": "disk-root", "mountPath": "/images/root"}]}
    volumes = {"volumes": [{"name": "disk-root", "image": {"reference": "my/os:1"}}]}
    script = "cat $HOTVIRT_CONTAINER_ROOT/images/root/disk/disk.img | wc -c"
    created = await machine.create(PODS, pod("a", script, container=container, spec=volumes))

    def waits(reason: str) -> Any:
        return lambda obj: state_of(obj).get("waiting", {}).get("reason") == reason

    first = await machine.until(PODS, "a", waits("ErrImagePull"), since=created)
    assert "`hotvirt image import my/os:1 FILE`" in state_of(first)["waiting"]["message"]
    await machine.until(PODS, "a", waits("ImagePullBackOff"))
    disk = tmp_path / "disk.img"
    disk.write_bytes(bytes(1 << 20))
    # From another process, as the command line does it.
    importing = (
        "import sys; from pathlib import Path; from hotvirt.embedded.images import ImageStore;"
        "ImageStore(Path(sys.argv[1])).import_image(sys.argv[2], Path(sys.argv[3]))"
    )
    argv = ["-c", importing, str(machine.state.images), "my/os:1", str(disk)]
    imported = await asyncio.create_subprocess_exec(sys.executable, *argv)
    assert await imported.wait() == 0
    ended = await machine.phase("a", "Succeeded")
    assert await read_all(machine, ended, LogOptions()) == b"1048576\n"


async def test_secrets_reach_the_container_and_are_waited_for(machine: OneMachine) -> None:
    container = {"volumeMounts": [{"name": "s", "mountPath": "/secrets/s"}]}
    volumes = {"volumes": [{"name": "s", "secret": {"secretName": "later"}}]}
    script = "cat $HOTVIRT_CONTAINER_ROOT/secrets/s/userdata"
    await machine.create(PODS, pod("a", script, container=container, spec=volumes))
    await machine.event("FailedMount")
    await machine.create(SECRETS, {"metadata": {"name": "later"}, "data": {"userdata": "aGVsbG8K"}})
    ended = await machine.phase("a", "Succeeded")
    assert await read_all(machine, ended, LogOptions()) == b"hello\n"


async def test_readiness_gates_are_honoured(machine: OneMachine) -> None:
    gate = "kubevirt.io/virtual-machine-unpaused"
    await machine.create(PODS, pod("a", FOREVER, spec={"readinessGates": [{"conditionType": gate}]}))
    running = await machine.phase("a", "Running")
    ready = condition(running, "Ready")
    assert ready and (ready["status"], ready["reason"]) == ("False", "ReadinessGatesNotReady")
    open_gate = {"status": {"conditions": [{"type": gate, "status": "True"}]}}
    await machine.client.patch(PODS, "a", open_gate, "default", kind="strategic", subresource="status")
    ready_pod = await machine.until(
        PODS, "a", lambda obj: (found := condition(obj, "Ready")) and found["status"] == "True"
    )
    assert condition(ready_pod, gate)


async def test_variables_are_those_of_the_pod(machine: OneMachine) -> None:
    env = [
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "WORDS", "value": "$(NODE) $$(NODE) $(NOBODY) 5$"},
    ]
    script = 'echo "$WORDS"; echo "$MAKEFLAGS$PYTEST_CURRENT_TEST"'
    await machine.create(PODS, pod("a", script, container={"env": env}))
    ended = await machine.phase("a", "Succeeded")
    assert await read_all(machine, ended, LogOptions()) == b"one $(NODE) $(NOBODY) 5$\n\n"


async def test_a_restarted_node_adopts_its_pods(machine: OneMachine, tmp_path: Path) -> None:
    """One that goes on, one that ended while the node was away, and one that ends afterwards."""

    def ends_when(file: str, code: int) -> str:
        return f"while [ ! -e {tmp_path}/{file} ]; do sleep 0.02; done; exit {code}"

    await machine.create(PODS, pod("a", f"echo started; {FOREVER}"))
    await machine.create(PODS, pod("b", ends_when("away", 9)))
    await machine.create(PODS, pod("c", ends_when("back", 8)))
    before = await machine.phase("a", "Running")
    record = machine.folder(await machine.phase("b", "Running")) / "containers" / "compute.json"
    await machine.phase("c", "Running")
    await machine.stop_node()
    (tmp_path / "away").touch()
    # With the node away, nobody tells of a file.
    await asyncio.to_thread(wait_until, lambda: "exitCode" in json.loads(record.read_text()), "its end")
    await machine.start_node()
    ended = await machine.phase("b", "Failed")
    assert state_of(ended)["terminated"]["exitCode"] == 9
    (tmp_path / "back").touch()
    ended = await machine.phase("c", "Failed")
    assert state_of(ended)["terminated"]["exitCode"] == 8
    after = await machine.client.get(PODS, "a", "default")
    assert after["status"] == before["status"]
    assert await read_all(machine, after, LogOptions()) == b"started\n"


async def test_a_pod_that_went_meanwhile_is_ended(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", FOREVER))
    running = await machine.phase("a", "Running")
    folder = machine.folder(running)
    await machine.stop_node()
    await machine.client.delete(PODS, "a", "default", grace=0)
    await machine.until_gone(PODS, "a")
    assert folder.exists()
    await machine.start_node()
    await machine.all_ended()
    assert not folder.exists()


async def test_the_address_of_the_pod_is_its_own(machine: OneMachine) -> None:
    serve = (
        "exec python3 -c \"import os, socket\ns = socket.create_server((os.environ['IP'], 8080))\n"
        "print('up', flush=True)\nwhile True: c, a = s.accept(); c.sendall(b'hello'); c.close()\""
    )
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    await machine.create(PODS, pod("a", serve, container={"env": env}))
    running = await machine.phase("a", "Running")
    assert machine.node
    async for chunk in machine.node.log(running["metadata"]["uid"], "compute", LogOptions(follow=True)):
        assert chunk == b"up\n"
        break
    address = running["status"]["podIP"]
    reader, writer = await asyncio.open_connection(address, 8080)
    assert await reader.read() == b"hello"
    writer.close()
    await machine.client.delete(PODS, "a", "default")
    await machine.until_gone(PODS, "a")
    assert address not in await run_tool("ip", "route")


async def test_what_the_machine_does_not_allow_is_said_once_and_pods_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ip").write_text("#!/bin/sh\necho 'Operation not permitted' >&2; exit 2\n")
    (tools / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    async with one_machine(tmp_path / "s") as machine:
        await machine.start_node()
        await machine.create(PODS, pod("a", FOREVER))
        running = await machine.phase("a", "Running")
        assert running["status"]["podIP"].startswith("127.")
        node = await machine.until(NODES, NODE, lambda obj: condition(obj, "PodIsolation"))
        told = condition(node, "PodIsolation")
        assert told and told["status"] == "False" and "Pods share the host's network" in told["message"]


async def test_init_containers_come_first(machine: OneMachine) -> None:
    mounts = {"volumeMounts": [{"name": "run", "mountPath": "/run"}]}
    made = "$HOTVIRT_CONTAINER_ROOT/run/made"
    init = pod("x", f"sleep 0.3; echo > {made}", container=mounts)["spec"]["containers"][0]
    spec = {
        "initContainers": [init | {"name": "prepare"}],
        "volumes": [{"name": "run", "emptyDir": {}}],
    }
    created = await machine.create(PODS, pod("a", f"test -e {made}", container=mounts, spec=spec))
    waiting = await machine.until(
        PODS, "a", lambda obj: obj["status"].get("initContainerStatuses"), since=created
    )
    assert waiting["status"]["phase"] == "Pending"
    ended = await machine.phase("a", "Succeeded")
    assert ended["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_the_instant_runtime_needs_no_process(tmp_path: Path) -> None:
    async with one_machine(tmp_path / "s") as machine:
        await machine.start_node(runtime="instant")
        await machine.create(PODS, pod("a", "exit 1"))
        running = await machine.phase("a", "Running")
        assert running["status"]["podIP"].startswith("127.")
        await machine.stop_node()
        await machine.start_node(runtime="instant")
        assert (await machine.client.get(PODS, "a", "default"))["status"] == running["status"]
        await machine.client.delete(PODS, "a", "default")
        await machine.until_gone(PODS, "a")


async def test_events_name_what_happened(machine: OneMachine) -> None:
    await machine.create(PODS, pod("a", FOREVER))
    running = await machine.phase("a", "Running")
    started = await machine.event("Started")
    assert started["involvedObject"]["uid"] == running["metadata"]["uid"]
    assert started["message"] == "Started container compute"
