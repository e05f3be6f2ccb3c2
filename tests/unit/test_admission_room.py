"""What admission says about room: kept from watches of Nodes, Pods and ResourceQuotas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from hotvirt.admission.request import AdmissionRequest
from hotvirt.admission.room import Room
from hotvirt.admission.webhooks import Admission
from hotvirt.api import codec
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import VMS
from hotvirt.kube.client import Client
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.resources import pod_resources

from .tiny_api import TinyApi

CONFIG = ClusterConfig()


def node(cpu: str = "2", memory: str = "4Gi") -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": cpu, "memory": memory}}}


def pod(name: str, cpu: str, memory: str, phase: str = "Running", **more: Any) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory}
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": more.pop("labels", {})},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "compute", "resources": {"requests": requests}}],
        }
        | more.pop("spec", {}),
        "status": {"phase": phase} | more,
    }


VMI = {"metadata": {"namespace": "ns", "uid": "u"}, "status": {"nodeName": "n1"}}


@asynccontextmanager
async def room_of(api: TinyApi) -> AsyncIterator[Room]:
    async with api.running() as config, Client(config) as client:
        room = Room(client)
        task = asyncio.create_task(room.run())
        try:
            async with asyncio.timeout(60):
                await room.synced()
            yield room
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until(room: Room, true: Callable[[], bool]) -> None:
    """Woken by each change of a Pod."""
    changed = asyncio.Event()
    room._pods.add_handler(lambda _old, _new: changed.set())
    async with asyncio.timeout(60):
        while not true():
            changed.clear()
            await changed.wait()


def free(room: Room) -> tuple[str, str]:
    around = room.around(VMI)
    assert around.node is not None
    return str(around.node.free["cpu"]), str(around.node.free["memory"])


async def test_what_pods_hold_is_not_free() -> None:
    api = TinyApi()
    await api.put("nodes", node())
    await api.put("pods", pod("a", "500m", "1Gi"))
    await api.put("pods", pod("ended", "500m", "1Gi", phase="Succeeded"))
    given = [{"name": "compute", "allocatedResources": {"cpu": "700m", "memory": "512Mi"}}]
    await api.put("pods", pod("waits", "1900m", "2Gi", containerStatuses=given))
    async with room_of(api) as room:
        assert free(room) == ("800m", "2560Mi")
        await api.put("pods", pod("b", "300m", "512Mi"))
        await until(room, lambda: free(room) == ("500m", "2Gi"))
        await api.put("pods", pod("a", "1", "1Gi"))
        await until(room, lambda: free(room) == ("0", "2Gi"))
        await api.remove("pods", "ns", "a")
        await until(room, lambda: free(room) == ("1", "3Gi"))


async def test_a_size_of_the_machine_itself_that_waits_is_counted_with_it() -> None:
    api = TinyApi()
    await api.put("nodes", node())
    given = [{"name": "compute", "allocatedResources": {"cpu": "100m", "memory": "1Gi"}}]
    mine = pod("mine", "1500m", "1Gi", containerStatuses=given, labels={"kubevirt.io/created-by": "u"})
    await api.put("pods", mine)
    async with room_of(api) as room:
        assert free(room) == ("500m", "3Gi")
        around = room.around(VMI)
        assert around.pod is not None and around.pod["requests"]["cpu"] == Quantity("1500m")


async def test_containers_that_run_first_count_by_the_largest() -> None:
    api = TinyApi()
    await api.put("nodes", node())
    first = [
        {"name": "one", "resources": {"requests": {"cpu": "1500m"}}},
        {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
    ]
    await api.put("pods", pod("a", "500m", "1Gi", spec={"initContainers": first, "nodeName": "n1"}))
    async with room_of(api) as room:
        assert free(room)[0] == "500m"


async def test_quotas_of_the_namespace() -> None:
    api = TinyApi()

    async def quota(name: str, namespace: str, **spec: Any) -> None:
        status = {"hard": {"requests.cpu": "2", "pods": "9"}, "used": {"requests.cpu": "1500m"}}
        metadata = {"name": name, "namespace": namespace}
        await api.put("resourcequotas", {"metadata": metadata, "spec": spec, "status": status})

    await quota("mine", "ns")
    await quota("too", "ns", scopes=["NotTerminating"])
    await quota("others", "ns", scopes=["BestEffort"])
    await quota("elsewhere", "other")
    async with room_of(api) as room:
        quotas = room.around(VMI).quotas
        assert [quota.name for quota in quotas] == ["mine", "too"]
        assert quotas[0].left == {"requests.cpu": Quantity("500m")}


def test_before_anything_was_read_nothing_is_said() -> None:
    around = Room(Client.__new__(Client)).around(VMI)
    assert (around.node, around.quotas, around.pod) == (None, (), None)


async def test_an_edit_is_answered_with_the_room_there_is() -> None:
    api = TinyApi()
    template = {"domain": {"cpu": {"sockets": 4}, "memory": {"guest": "1Gi"}}}
    spec = vmi_defaults(template, CONFIG)
    sizes = codec.builtins(pod_resources(codec.convert(spec, VMISpec), CONFIG))["requests"]
    own = pod("own", sizes["cpu"], sizes["memory"], labels={"kubevirt.io/created-by": "u"})
    await api.put("nodes", node(cpu="700m"))
    await api.put("pods", own)
    status = {"hard": {"requests.memory": "2Gi"}, "used": {"requests.memory": "1536Mi"}}
    await api.put("resourcequotas", {"metadata": {"name": "q", "namespace": "ns"}, "status": status})
    vmi = VMI | {"spec": spec, "status": {"phase": "Running", "nodeName": "n1"}}

    def vm(sockets: int, guest: str) -> dict[str, Any]:
        size = {"domain": {"cpu": {"sockets": sockets}, "memory": {"guest": guest}}}
        return {
            "metadata": {"name": "a", "namespace": "ns"},
            "spec": {"runStrategy": "Always", "template": {"spec": size}},
        }

    async def find(namespace: str, name: str) -> dict[str, Any] | None:
        return vmi

    async with room_of(api) as room:
        hooks = Admission(lambda: CONFIG, find, around=room.around)

        async def warnings(sockets: int, guest: str) -> list[str]:
            edit = AdmissionRequest(
                "UPDATE",
                VMS.group_resource,
                namespace="ns",
                name="a",
                object=vm(sockets, guest),
                old_object=vm(4, "1Gi"),
            )
            return (await hooks.validate(edit)).warnings

        assert await warnings(5, "1Gi") == ["domain.cpu.sockets 4→5: live, +100m cpu, node has 300m free"]
        assert await warnings(9, "1Gi") == [
            "domain.cpu.sockets 4→9: live, +500m cpu, node n1 can never hold it, it has 700m in all"
        ]
        assert await warnings(4, "2Gi") == [
            "domain.memory.guest 1Gi→2Gi: live, +1026Mi memory, node has 2861Mi free, "
            "quota q lacks 514Mi of requests.memory: waits until there is room"
        ]
