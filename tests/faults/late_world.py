"""A small world in which everything is late: caches lag, answers get lost, parts are killed, edits and the
feature gate come in the middle.

Controller and node agent are the real ones (`PodResizer`, `Turns` with `Looks` and `Sizer`, and the planner);
API, kubelet and machine are imitations that let somebody else go on at every step. After each change of
anything the invariant is checked: hypervisor ≤ claimed ≤ granted ≤ what the Pod has in force.
"""

from __future__ import annotations

import asyncio
import copy
import random
from types import SimpleNamespace
from typing import Any

from hotvirt.api import codec, names
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.resources import VMIS, Resource
from hotvirt.controllers.resize import PodResizer
from hotvirt.hypervisor.driver import (
    DriverError,
    GuestVcpu,
    GuestView,
    MemoryView,
    Observed,
    Slot,
    Status,
)
from hotvirt.kube.errors import ApiError, Conflict
from hotvirt.kube.patch import apply_merge_patch
from hotvirt.node.looks import Looks
from hotvirt.node.sizes import Sizer
from hotvirt.node.turn import Turns
from hotvirt.plan.change import Guest, resized
from hotvirt.plan.config import cluster_config
from hotvirt.plan.podresize import Size, actual_size, size_of
from hotvirt.plan.resources import pod_resources

GIB = 1 << 30
MOST = 4
Object = dict[str, Any]


def _resources(size: Size) -> Object:
    parts = {"requests": size.requests, "limits": size.limits}
    return {name: {key: str(value) for key, value in part.items()} for name, part in parts.items()}


class World:
    def __init__(self, seed: int, *, unplugs: bool, loses_answers: bool) -> None:
        self.random = random.Random(seed)
        self.now = 1e9
        self.unplugs = unplugs
        self.loses_answers = loses_answers
        self.gate = True
        self.in_peace = False
        self.findings: list[str] = []
        self.log: list[str] = []
        size = {"vcpus": 1, "memory": "1Gi"}
        cpu = {"sockets": 1, "cores": 1, "threads": 1}
        metadata = {"namespace": "d", "resourceVersion": "10", "generation": 1}
        self.vmis: list[Object] = [
            {
                "metadata": metadata | {"name": "v", "uid": "u"},
                "spec": {
                    "domain": {
                        "cpu": cpu | {"maxSockets": MOST},
                        "memory": {"guest": "1Gi", "maxGuest": f"{MOST}Gi"},
                    }
                },
                "status": {
                    "phase": "Running",
                    "currentCPUTopology": cpu,
                    "memory": {"guestCurrent": "1Gi"},
                    "hotvirt": {"claimed": size, "granted": size, "settledGeneration": 1},
                },
            }
        ]
        container = {"name": names.CONTAINER_COMPUTE, "resources": _resources(self.needs(Guest(1, GIB)))}
        self.pods: list[Object] = [
            {
                "metadata": metadata | {"name": "p", "uid": "pu"},
                "spec": {"nodeName": "n", "containers": [container]},
                "status": {"phase": "Running", "observedGeneration": 1, "containerStatuses": [container]},
            }
        ]
        self.machine = Machine(self)

    @property
    def vmi(self) -> VirtualMachineInstance:
        return codec.convert(self.vmis[-1], VirtualMachineInstance)

    @property
    def wanted(self) -> Guest:
        domain = self.vmi.spec.domain
        assert domain.cpu is not None and domain.memory is not None and domain.memory.guest is not None
        return Guest(domain.cpu.sockets, domain.memory.guest.value)

    def needs(self, guest: Guest) -> Size:
        return size_of(pod_resources(resized(self.vmi.spec, guest), cluster_config(None), frozenset()))

    async def let_others_go_on(self) -> None:
        self.now += self.random.choice([0, 0, 0.001, 0.05, 0.4])
        for _ in range(self.random.choice([0, 1, 1, 2, 3, 6])):
            await asyncio.sleep(0)

    def written(self, line: list[Object], new: Object, what: str) -> None:
        version = max(int(each["metadata"]["resourceVersion"]) for each in (*self.vmis, *self.pods)) + 1
        new["metadata"]["resourceVersion"] = str(version)
        line.append(new)
        self.check(what)

    def check(self, what: str) -> None:
        own = self.vmi.status.hotvirt
        assert own.claimed and own.claimed.memory and own.granted and own.granted.memory
        claimed = Guest(own.claimed.vcpus, own.claimed.memory.value)
        granted = Guest(own.granted.vcpus, own.granted.memory.value)
        has, pod = self.machine.has, actual_size(codec.convert(self.pods[-1], Pod), names.CONTAINER_COMPUTE)
        self.log.append(
            f"{what}: has {has}, claimed {claimed}, granted {granted}, wanted {self.wanted}, {pod}"
        )
        needed = self.needs(granted)
        assert pod is not None
        covered = all(pod.requests[name] >= amount for name, amount in needed.requests.items())
        for broken, says in (
            (has.exceeds(claimed), "the hypervisor has more than is claimed"),
            (claimed.exceeds(granted), "more is claimed than granted"),
            (not covered, "more is granted than the Pod has"),
        ):
            if broken:
                self.findings.append(f"{says}: {self.log[-1]}")

    @property
    def rests(self) -> bool:
        status, own = self.vmi.status, self.vmi.status.hotvirt
        size = self.wanted.status()
        return (
            own.settled_generation == self.vmi.metadata.generation
            and own.change is None
            and own.claimed == own.granted == size
            and self.machine.online == self.wanted.vcpus
            and self.machine.has == self.wanted
            and status.memory is not None
            and status.memory.guest_current == size.memory
        )

    def edit(self, wanted: Guest) -> None:
        new = copy.deepcopy(self.vmis[-1])
        new["spec"]["domain"]["cpu"]["sockets"] = wanted.vcpus
        new["spec"]["domain"]["memory"]["guest"] = f"{wanted.memory // GIB}Gi"
        new["metadata"]["generation"] += 1
        self.written(self.vmis, new, "edit")


class LateCache:
    """Shows any version from the last one shown to the newest."""

    resource = VMIS

    def __init__(self, world: World, line: list[Object], cls: type[Any]) -> None:
        self._world, self._line, self._cls = world, line, cls
        self._at = len(line) - 1

    def see(self) -> Any:
        newest = len(self._line) - 1
        self._at = newest if self._world.in_peace else self._world.random.randint(self._at, newest)
        return codec.convert(copy.deepcopy(self._line[self._at]), self._cls)

    def learn(self, obj: Any) -> None:
        for at, each in enumerate(self._line):
            if each["metadata"]["resourceVersion"] == obj.metadata.resource_version:
                self._at = max(self._at, at)


class LateClient:
    def __init__(self, world: World, who: str) -> None:
        self._world, self._who = world, who

    def _line(self, resource: Resource) -> list[Object]:
        return self._world.vmis if resource is VMIS else self._world.pods

    async def get(self, resource: Resource, name: str, namespace: str, *, cls: type[Any]) -> Any:
        await self._world.let_others_go_on()
        return codec.convert(copy.deepcopy(self._line(resource)[-1]), cls)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        namespace: str,
        *,
        cls: type[Any],
        subresource: str = "",
        kind: str = "merge",
    ) -> Any:
        world, line = self._world, self._line(resource)
        await world.let_others_go_on()
        new = copy.deepcopy(line[-1])
        if patch["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it has changed")
        if subresource == "status":
            new["status"] = apply_merge_patch(new["status"], patch["status"])
        else:
            (asked,) = patch["spec"]["containers"]
            (container,) = new["spec"]["containers"]
            container["resources"] = apply_merge_patch(container["resources"], asked["resources"])
            new["metadata"]["generation"] += 1
        world.written(line, new, f"{self._who} patches {resource.plural}/{subresource}")
        await world.let_others_go_on()
        if world.loses_answers and not world.in_peace and world.random.random() < 0.05:
            raise ApiError(503, "ServiceUnavailable", "the answer is lost")
        return codec.convert(copy.deepcopy(new), cls)


class Machine:
    """Goes a step at a time, does not always do all that it is told, and does not always answer."""

    version, pid = "late", 0

    def __init__(self, world: World) -> None:
        self._world = world
        self.plugged = self.online = 1
        self.requested = self.size = 0
        self.looks: Looks | None = None

    @property
    def has(self) -> Guest:
        vcpus = self.plugged if self._world.unplugs else self.online
        return Guest(vcpus, GIB + max(self.requested, self.size))

    async def _changed(self, what: str, *, tells: bool = False) -> None:
        self._world.check(what)
        if tells and self.looks is not None:
            self.looks.forget()
        await self._world.let_others_go_on()

    def _gives_up(self) -> bool:
        return not self._world.in_peace and self._world.random.random() < 0.25

    async def observe(self) -> Observed:
        await self._world.let_others_go_on()
        if not self._world.in_peace and self._world.random.random() < 0.02:
            raise DriverError("no answer")
        vcpus = tuple(GuestVcpu(number=n, online=n < self.online) for n in range(self.plugged))
        seen = Observed(
            status=Status.RUNNING,
            vcpus=tuple(Slot(socket=n, core=0, thread=0, plugged=n < self.plugged) for n in range(MOST)),
            memory=MemoryView(
                boot=GIB,
                requested=self.requested,
                plugged=self.size,
                region=(MOST - 1) * GIB,
                online=self.size,
            ),
            agent_connected=True,
            guest=GuestView(vcpus=vcpus),
            parked=self.plugged - self.online,
        )
        await self._world.let_others_go_on()
        return seen

    async def plug_vcpus(self, count: int) -> None:
        await self._world.let_others_go_on()
        while self.plugged < count:
            self.plugged += 1
            await self._changed("plug")

    async def use_vcpus(self, count: int, timeout: float) -> int | None:
        await self._world.let_others_go_on()
        while self.online != min(count, self.plugged) and not self._gives_up():
            self.online += 1 if self.online < count else -1
            await self._changed("use")
        return self.online

    async def unplug_vcpus(self, count: int, timeout: float) -> None:
        await self._world.let_others_go_on()
        while self.plugged > count and not self._gives_up():
            self.plugged -= 1
            self.online = min(self.online, self.plugged)
            await self._changed("unplug", tells=True)

    async def set_memory(self, plugged: int, timeout: float) -> None:
        await self._world.let_others_go_on()
        self.requested = plugged
        await self._changed("request")
        while self.size != plugged and not self._gives_up():
            self.size += GIB if self.size < plugged else -GIB
            await self._changed("memory", tells=True)


class _LateConfig:
    """The cluster's settings, as the controller has heard of them."""

    def __init__(self, world: World) -> None:
        self._world, self._gate, self._config = world, True, cluster_config(None)

    def gate(self, name: str = "") -> bool:
        if self._world.in_peace or self._world.random.random() < 0.7:
            self._gate = self._world.gate
        return self._gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


_SILENT: Any = SimpleNamespace(event=lambda *about: None)


async def controller(world: World) -> None:
    vmis, pods = LateCache(world, world.vmis, VirtualMachineInstance), LateCache(world, world.pods, Pod)
    caches: Any = SimpleNamespace(config=_LateConfig(world), vmis=vmis, pods=pods)
    client: Any = LateClient(world, "controller")
    resizer = PodResizer(client, caches, _SILENT, clock=lambda: world.now)
    while True:
        try:
            await resizer.sync(vmis.see(), pods.see())
        except ApiError:
            pass
        await world.let_others_go_on()
        await asyncio.sleep(0)


async def agent(world: World) -> None:
    vmis: Any = LateCache(world, world.vmis, VirtualMachineInstance)
    client: Any = LateClient(world, "agent")
    turns, config = Turns(client, vmis, _SILENT), _LateConfig(world)
    guest: Any = SimpleNamespace(
        running=world.machine,
        looks=Looks(lambda: world.now),
        sizer=Sizer(lambda: world.now),
        unplugs=world.unplugs,
        panicked=False,
        accelerator="",
        boot_memory=GIB,
        machine=SimpleNamespace(interfaces=()),
        next_look_at_agent=lambda observed: None,
        folder=0,
    )
    world.machine.looks = guest.looks
    while True:
        try:
            await turns.take(vmis.see(), codec.convert(world.pods[-1], Pod), guest, config.gate())
        except (ApiError, DriverError):
            pass
        await world.let_others_go_on()
        await asyncio.sleep(0)


async def kubelet(world: World) -> None:
    while True:
        await world.let_others_go_on()
        await asyncio.sleep(0)
        pod = world.pods[-1]
        if (
            pod["metadata"]["generation"] != pod["status"]["observedGeneration"]
            and world.random.random() < 0.4
        ):
            new = copy.deepcopy(pod)
            new["status"]["observedGeneration"] = pod["metadata"]["generation"]
            new["status"]["containerStatuses"] = copy.deepcopy(pod["spec"]["containers"])
            world.written(world.pods, new, "kubelet")
