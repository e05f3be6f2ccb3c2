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

from hotvirt.api import names
from hotvirt.api.resources import LEASES, NODES
from hotvirt.cluster.heartbeat import Heartbeat
from hotvirt.embedded.images import ImageStore
from hotvirt.embedded.node.machine import node_object
from hotvirt.embedded.node.node import EmbeddedNode
from hotvirt.hypervisor.instant import InstantDriver, InstantMachine
from hotvirt.kube.client import Client
from hotvirt.kube.events import Recorder
from hotvirt.node.agent import NodeAgent
from tests.faults.machines import pod_of
from tests.inprocess import at_work
from tests.kube import Object

NODE = "node-b"
TAINT = {"key": "hotvirt.io/simulated", "effect": "NoSchedule"}
READY_WITHIN = 120.0
SIZE = {"cpu": "64", "memory": "256Gi"}


def put_there(vm: Object) -> Object:
    vm["spec"]["template"]["spec"] |= {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [TAINT | {"operator": "Exists"}],
    }
    return vm


class CountingMachine(InstantMachine):
    driver: CountingDriver
    pod_uid: str

    async def plug_vcpus(self, count: int) -> None:
        self.driver.plugs[self.pod_uid] += 1
        if self.pod_uid in self.driver.held:
            await self.driver.released.wait()
        await super().plug_vcpus(count)


class CountingDriver(InstantDriver):
    def __init__(self) -> None:
        self.plugs: Counter[str] = Counter()
        """Commands to plug vCPUs, by the uid of the Pod."""
        self.held: set[str] = set()
        """The uids of Pods whose machines plug nothing before they are released."""
        self.released = asyncio.Event()

    async def connect(self, run_dir_fd: int) -> CountingMachine:
        plain = await super().connect(run_dir_fd)
        machine = CountingMachine(os.dup(run_dir_fd), plain._state)
        plain.close()
        machine.driver = self
        machine.pod_uid = pod_of(Path(f"/proc/self/fd/{run_dir_fd}").readlink())
        return machine


@asynccontextmanager
async def simulated_node(folder: Path, connect: Callable[[], Client]) -> AsyncIterator[CountingDriver]:
    async with bare_node(folder, connect), agent_there(folder, connect) as driver:
        yield driver


@asynccontextmanager
async def bare_node(folder: Path, connect: Callable[[], Client]) -> AsyncIterator[None]:
    """Without an agent: Pods run there, and nobody starts the machines in them."""
    async with connect() as kubelet:
        node = EmbeddedNode(kubelet, NODE, folder, SIZE, ImageStore(folder / "images"), runtime="instant")
        await kubelet.create(NODES, node_object(NODE) | {"spec": {"taints": [TAINT]}})
        try:
            async with at_work(node=node.run()):
                async with asyncio.timeout(READY_WITHIN):
                    await node.ready.wait()
                yield
        finally:
            await kubelet.delete(NODES, NODE)


@asynccontextmanager
async def agent_there(folder: Path, connect: Callable[[], Client]) -> AsyncIterator[CountingDriver]:
    driver = CountingDriver()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect())
        recorder = Recorder(client, "hotvirt-node", NODE)
        stack.push_async_callback(recorder.close)
        agent = NodeAgent(client, NODE, folder, {driver.name: driver}, recorder)
        stack.push_async_callback(client.delete, LEASES, names.NODE_LEASE.format(node=NODE), names.NAMESPACE)
        async with at_work(agent=agent.run(), heartbeat=Heartbeat(client, NODE, dict).run()):
            yield driver
