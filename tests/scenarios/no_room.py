"""Sizes that do not fit: the guest runs on, it is said what is missing, and it is done when there is room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import LIMITRANGES, NODES, PODS, RESOURCEQUOTAS, VMIS, VMS, Resource
from tests.faults.resizing import reason
from tests.kube import Kube, Object, condition, in_phase

from .guests import SLOW, Guest
from .place import Place, demo_vm

GIB = 1 << 30
MORE_THAN_ANY_NODE = "900Gi"


def resources(**amounts: str) -> Object:
    return {"domain": {"resources": {"requests": amounts, "limits": amounts}}}


def memory_asked(pod: Object) -> int:
    return Quantity(pod["spec"]["containers"][0]["resources"]["requests"]["memory"]).value


@asynccontextmanager
async def made(kube: Kube, resource: Resource, name: str, spec: Object) -> AsyncIterator[None]:
    await kube.create(resource, {"metadata": {"name": name}, "spec": spec})
    try:
        yield
    finally:
        await kube.admin.delete(resource, name, kube.namespace)
        await kube.gone(resource, name, SLOW)


async def waits(guest: Guest, why: str, kind: str = "HotMemoryChange") -> str:
    """What the condition says, once it is for this reason; the guest has its old size."""
    vmi = await guest.until(reason(kind, why))
    assert vmi["status"]["memory"]["guestCurrent"] == guest.memory
    assert (await guest.facts())["boot_id"] == guest.boot
    return str((condition(vmi, kind) or {})["message"])


async def free_memory(kube: Kube, node: str) -> int:
    """What the scheduler still has to give on the node."""
    allocatable = (await kube.get(NODES, node))["status"]["allocatable"]["memory"]
    pods = (await kube.admin.list(PODS, field_selector=f"spec.nodeName={node}")).items
    taken = sum(
        Quantity(container.get("resources", {}).get("requests", {}).get("memory", "0")).value
        for pod in pods
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    return Quantity(allocatable).value - taken


@pytest.mark.asyncio(loop_scope="session")
class NoRoom:
    async def test_more_than_the_node_has_is_refused_by_the_api(self, place: Place, main: Guest):
        before = memory_asked(await main.pod())
        main.change(resources(memory=MORE_THAN_ANY_NODE))
        message = await waits(main, "NodeCapacity", "HotResourcesChange")
        assert "memory" in message
        assert any(
            each.code == 403 and each.subresource == "resize" and each.namespace == main.namespace
            for each in place.audit()
        )
        assert memory_asked(await main.pod()) == before, "what was refused holds no quota"
        main.change(resources(memory="1Gi"))

    async def test_what_the_kubelet_calls_infeasible(self, guaranteed: Guest):
        """The API lets it through; what the kubelet will never do differs from place to place."""
        before = (await guaranteed.pod())["spec"]["containers"][0]["resources"]
        name = (await guaranteed.pod())["metadata"]["name"]
        assert guaranteed.history is not None
        async with self.infeasible(guaranteed):
            pod = await guaranteed.history.seen(PODS, name, reason("PodResizePending", "Infeasible"), SLOW)
            assert pod["spec"]["containers"][0]["resources"] != before
            await waits(guaranteed, "NodeCapacity", "HotResourcesChange")
            await guaranteed.kube.until(
                PODS, name, lambda each: each["spec"]["containers"][0]["resources"] == before, SLOW
            )

    def infeasible(self, guest: Guest) -> AbstractAsyncContextManager[None]:
        """The guest is edited so, and as it was again at the end."""
        raise NotImplementedError

    async def test_a_full_node_defers_it_until_another_leaves(self, place: Place, main: Guest):
        kube = main.kube
        ballast = demo_vm("ballast", kube.namespace, memory={"guest": "64Mi"})
        request = await free_memory(kube, place.node) - GIB
        ballast["spec"]["template"]["spec"] |= {"startStrategy": "Paused", "terminationGracePeriodSeconds": 0}
        ballast["spec"]["template"]["spec"]["domain"]["resources"] = {"requests": {"memory": str(request)}}
        place.apply(ballast)
        try:
            await kube.until(VMIS, "ballast", in_phase("Running"), SLOW)
            await main.edit(memory="2Gi")
            message = await waits(main, "PodResizeDeferred")
            assert message.startswith("memory 1Gi → 2Gi")
        finally:
            await kube.admin.delete(VMS, "ballast", kube.namespace)
            await kube.gone(VMIS, "ballast", SLOW)
        await main.becomes(4, "2Gi")

    async def test_a_quota_that_is_full_and_then_larger(self, main: Guest):
        kube = main.kube
        async with made(kube, RESOURCEQUOTAS, "most", {"hard": {"requests.memory": "100Gi"}}):
            used = await counted(kube, "100Gi")
            little = str(used + GIB // 4)
            await kube.patch(RESOURCEQUOTAS, "most", {"spec": {"hard": {"requests.memory": little}}})
            await counted(kube, little)
            await main.edit(memory="1536Mi")
            message = await waits(main, "ResourceQuota")
            assert "exceeded quota: most, requested: requests.memory=" in message
            # In place there has to be room for the difference only.
            enough = str(used + GIB // 2 + GIB // 8)
            await kube.patch(RESOURCEQUOTAS, "most", {"spec": {"hard": {"requests.memory": enough}}})
            await main.becomes(4, "1536Mi")

    async def test_a_limit_range_that_refuses_and_then_goes(self, main: Guest):
        most = {"type": "Pod", "max": {"memory": "1600Mi"}}
        async with made(main.kube, LIMITRANGES, "range", {"limits": [most]}):
            await main.edit(memory="1536Mi")
            message = await waits(main, "LimitRange")
            assert "maximum memory usage per Pod is 1600Mi" in message
        await main.becomes(4, "1536Mi")


async def counted(kube: Kube, hard: str) -> int:
    """How much the quota has counted, once it counts against this."""

    def holds(quota: Object) -> bool:
        status = quota.get("status", {})
        known = status.get("hard", {}).get("requests.memory")
        return known is not None and Quantity(known) == Quantity(hard) and "used" in status

    quota = await kube.until(RESOURCEQUOTAS, "most", holds, SLOW)
    return Quantity(quota["status"]["used"]["requests.memory"]).value
