"""Quotas and limit ranges: what they refuse, what they fill in."""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from .client import STRATEGIC, Api, soon
from .conftest import Namespace
from .objects import pod


@pytest_asyncio.fixture
async def quota(api: Api, ns: Namespace) -> str:
    """A quota that knows its use: on a bare server nobody else counts at first."""
    hard = {"pods": "1", "requests.cpu": "500m", "requests.memory": "1Gi"}
    quotas = ns.path("resourcequotas")
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q1"}, "spec": {"hard": hard}}
    await api.create(quotas, body)
    nothing = {"pods": "0", "requests.cpu": "0", "requests.memory": "0"}
    (await api.patch(f"{quotas}/q1/status", {"status": {"hard": hard, "used": nothing}})).ok()
    await counts(api, ns, pod())
    return f"{quotas}/q1"


async def counts(api: Api, ns: Namespace, body: dict[str, Any]) -> None:
    """Wait until the server goes by the status of the namespace's quotas."""
    unknown = "status unknown for quota"
    await soon(lambda: api.post(ns.pods, body, dryRun="All"), lambda answer: unknown not in answer.text)


def sized(**requests: str) -> dict[str, Any]:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": requests}
    return body


async def used(api: Api, ns: Namespace, **wanted: str) -> None:
    """Wait until so much of the quota is used: the server counts at once, a controller a little later."""
    wanted = {key.replace("_", "."): value for key, value in wanted.items()}
    async with api.watch(ns.path("resourcequotas"), fieldSelector="metadata.name=q1") as watch:
        while not wanted.items() <= (await watch.next())["object"]["status"]["used"].items():
            pass


async def test_a_pod_is_counted(api: Api, ns: Namespace, quota: str) -> None:
    await api.create(ns.pods, pod())
    await used(api, ns, pods="1", requests_cpu="100m", requests_memory="64Mi")


async def test_one_pod_too_many_is_refused(api: Api, ns: Namespace, quota: str) -> None:
    await api.create(ns.pods, pod())
    status = (await api.post(ns.pods, pod("two"))).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "two" is forbidden: exceeded quota: q1, requested: pods=1, used: pods=1, limited: pods=1'
    )
    assert status["details"] == {"name": "two", "kind": "pods"}


async def test_a_pod_that_is_too_large_is_refused(api: Api, ns: Namespace, quota: str) -> None:
    status = (await api.post(ns.pods, sized(cpu="1", memory="2Gi"))).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: exceeded quota: q1, requested: requests.cpu=1,requests.memory=2Gi, '
        "used: requests.cpu=0,requests.memory=0, limited: requests.cpu=500m,requests.memory=1Gi"
    )


async def test_what_is_under_quota_has_to_be_given(api: Api, ns: Namespace, quota: str) -> None:
    status = (await api.post(ns.pods, sized(cpu="100m"))).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: failed quota: q1: must specify requests.memory for: main'
    )


async def test_a_dry_run_is_not_counted(api: Api, ns: Namespace, quota: str) -> None:
    (await api.post(ns.pods, pod(), dryRun="All")).ok(201)
    assert (await api.get(quota)).ok()["status"]["used"]["pods"] == "0"


async def bound(api: Api, ns: Namespace, node: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    await api.create("/api/v1/nodes", body)
    offered = {"cpu": "8", "memory": "16Gi", "pods": "10"}
    status = {"status": {"capacity": offered, "allocatable": offered}}
    (await api.patch(f"/api/v1/nodes/{node}/status", status)).ok()
    await api.create(ns.pods, pod(nodeName=node))


def resized(**requests: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}


async def test_a_resize_is_counted_and_limited(api: Api, ns: Namespace, unique: str, quota: str) -> None:
    await bound(api, ns, unique)
    (await api.patch(f"{ns.pods}/one/resize", resized(cpu="200m"), STRATEGIC)).ok()
    await used(api, ns, requests_cpu="200m")
    answer = await api.patch(f"{ns.pods}/one/resize", resized(cpu="600m"), STRATEGIC)
    status = answer.refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: exceeded quota: q1, requested: requests.cpu=400m, '
        "used: requests.cpu=200m, limited: requests.cpu=500m"
    )
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)
    await api.delete(f"/api/v1/nodes/{unique}")


async def limit(api: Api, ns: Namespace, **item: Any) -> None:
    spec = {"limits": [{"type": "Container"} | item]}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l1"}, "spec": spec}
    await api.create(ns.path("limitranges"), body)


async def test_a_limit_range_fills_in_what_is_not_given(api: Api, ns: Namespace) -> None:
    await limit(api, ns, default={"cpu": "2"}, defaultRequest={"cpu": "300m", "memory": "32Mi"})
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    made = await api.create(ns.pods, body)
    (container,) = made["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"cpu": "2"},
        "requests": {"cpu": "100m", "memory": "32Mi"},
    }


async def test_a_limit_range_refuses_what_is_too_large(api: Api, ns: Namespace) -> None:
    await limit(api, ns, max={"cpu": "1"})
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    status = (await api.post(ns.pods, body)).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: maximum cpu usage per Container is 1, but limit is 2'
    )


async def test_a_limit_range_refuses_what_is_too_small(api: Api, ns: Namespace) -> None:
    await limit(api, ns, min={"memory": "128Mi"})
    status = (await api.post(ns.pods, pod())).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: minimum memory usage per Container is 128Mi, but request is 64Mi'
    )


async def test_a_limit_range_holds_for_a_resize(api: Api, ns: Namespace, unique: str) -> None:
    await bound(api, ns, unique)
    await limit(api, ns, min={"cpu": "50m"})
    smaller = resized(cpu="10m")
    # The server remembers for a while that a namespace has no limits, unless it has heard of one.
    await soon(
        lambda: api.patch(f"{ns.pods}/one/resize", smaller, STRATEGIC, dryRun="All"),
        lambda answer: answer.status != 200,
    )
    answer = await api.patch(f"{ns.pods}/one/resize", smaller, STRATEGIC)
    status = answer.refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: minimum cpu usage per Container is 50m, but request is 10m'
    )
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)
    await api.delete(f"/api/v1/nodes/{unique}")
