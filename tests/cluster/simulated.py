"""A second node whose machines are only bookkeeping: node and node agent in this process, on the real API.

It is tainted, so that nothing comes there but what asks for it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from hotvirt.api.resources import NODES
from hotvirt.embedded.images import ImageStore
from hotvirt.embedded.node.machine import node_object
from hotvirt.embedded.node.node import EmbeddedNode
from hotvirt.hypervisor.instant import InstantDriver, InstantMachine
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.node.agent import NodeAgent
from tests.faults.machines import pod_of
from tests.kube import Object

NODE = "node-b"
TAINT = {"key": "hotvirt.io/simulated", "effect": "NoSchedule"}
READY_WITHIN = 30.0
SIZE = {"cpu": "64", "memory": "256Gi"}


def put_there(vm: Object) -> Object:
    vm["spec"]["template"]["spec"] |= {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [TAINT | {"operator": "Exists"}],
    }
    return vm


class CountingMachine(InstantMachine):
    plugs: Counter[str]
    pod_uid: str

    async def plug_vcpus(self, count: int) -> None:
        self.plugs[self.pod_uid] += 1
        await super().plug_vcpus(count)


class CountingDriver(InstantDriver):
    def __init__(self) -> None:
        self.plugs: Counter[str] = Counter()
        """Commands to plug vCPUs, by the uid of the Pod."""

    async def connect(self, run_dir_fd: int) -> CountingMachine:
        plain = await super().connect(run_dir_fd)
        machine = CountingMachine(os.dup(run_dir_fd), plain._state)
        plain.close()
        machine.plugs = self.plugs
        machine.pod_uid = pod_of(Path(f"/proc/self/fd/{run_dir_fd}").readlink())
        return machine


@asynccontextmanager
async def simulated_node(folder: Path, connect: Callable[[], Client]) -> AsyncIterator[CountingDriver]:
    driver = CountingDriver()
    async with AsyncExitStack() as stack:
        kubelet, agents = [await stack.enter_async_context(connect()) for _ in range(2)]
        recorder = Recorder(agents, "hotvirt-node", NODE)
        stack.push_async_callback(recorder.close)
        node = EmbeddedNode(kubelet, NODE, folder, SIZE, ImageStore(folder / "images"), runtime="instant")
        agent = NodeAgent(agents, NODE, folder, {driver.name: driver}, recorder)
        await kubelet.create(NODES, node_object(NODE) | {"spec": {"taints": [TAINT]}})
        tasks = [asyncio.create_task(part.run()) for part in (node, agent)]
        try:
            async with asyncio.timeout(READY_WITHIN):
                await node.ready.wait()
            yield driver
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await kubelet.delete(NODES, NODE)
