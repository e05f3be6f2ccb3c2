"""Quotas and limit ranges: what is counted, also of Pods that are only on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from hotvirt.embedded.apiserver.errors import StatusError
from hotvirt.embedded.apiserver.limits import check_claim_limits, check_limits, fill_from_limits
from hotvirt.embedded.apiserver.quota import QuotaGate, counts
from hotvirt.embedded.apiserver.store import Store


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(tmp_path / "api.db")
    opened.start()
    yield opened
    await opened.close()


async def keep(store: Store, resource: str, name: str, obj: dict[str, Any]) -> None:
    key = (resource, "ns", name)
    await store.write(key, lambda revision: msgspec.json.encode(obj))


async def quota(store: Store, **hard: str) -> None:
    spec = {"hard": {key.replace("_", "."): value for key, value in hard.items()}}
    await keep(store, "resourcequotas", "q", {"spec": spec})


async def limit(store: Store, **item: Any) -> None:
    await keep(store, "limitranges", "l", {"spec": {"limits": [item]}})


def pod(name: str, cpu: str = "1", limits: dict[str, str] | None = None) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}, "limits": limits or {}}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": resources}]}}


async def test_pods_that_are_on_their_way_are_counted(store: Store) -> None:
    await quota(store, requests_cpu="2")
    gate = QuotaGate(store)
    gate.check(pod("a"))
    gate.check(pod("b"))
    with pytest.raises(StatusError, match=r"used: requests\.cpu=2, limited: requests\.cpu=2"):
        gate.check(pod("c"))
    gate.settled(pod("a"))
    gate.check(pod("c"))


async def test_what_is_stored_is_counted_once(store: Store) -> None:
    await quota(store, requests_cpu="2")
    gate = QuotaGate(store)
    gate.check(pod("a"))
    await keep(store, "pods", "a", pod("a"))
    assert str(gate.used("ns")["requests.cpu"]) == "1"


async def test_pods_that_have_ended_hold_nothing(store: Store) -> None:
    await quota(store, pods="1")
    await keep(store, "pods", "old", pod("old") | {"status": {"phase": "Succeeded"}})
    QuotaGate(store).check(pod("new"))


async def test_growth_counts_only_what_is_new(store: Store) -> None:
    await quota(store, requests_cpu="3")
    await keep(store, "pods", "a", pod("a", "2"))
    gate = QuotaGate(store)
    gate.check(pod("a", "3"), pod("a", "2"))
    with pytest.raises(StatusError, match=r"requested: requests\.cpu=2"):
        gate.check(pod("a", "4"), pod("a", "2"))


def selector(scope: str, operator: str, *values: str) -> dict[str, Any]:
    rule = {"scopeName": scope, "operator": operator} | ({"values": list(values)} if values else {})
    return {"scopeSelector": {"matchExpressions": [rule]}}


PODS = {
    "plain": pod("plain"),
    "deadline": pod("deadline") | {"spec": pod("deadline")["spec"] | {"activeDeadlineSeconds": 5}},
    "high": pod("high") | {"spec": pod("high")["spec"] | {"priorityClassName": "high"}},
    "best-effort": {"metadata": {"uid": "b"}, "spec": {"containers": [{"name": "main"}]}},
}


@pytest.mark.parametrize(
    ("scopes", "counted"),
    [
        ({}, {"plain", "deadline", "high", "best-effort"}),
        ({"scopes": ["NotTerminating"]}, {"plain", "high", "best-effort"}),
        ({"scopes": ["Terminating"]}, {"deadline"}),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, {"plain", "high"}),
        ({"scopes": ["BestEffort"]}, {"best-effort"}),
        ({"scopes": ["PriorityClass"]}, {"high"}),
        (selector("PriorityClass", "In", "high", "low"), {"high"}),
        (selector("PriorityClass", "NotIn", "high"), {"plain", "deadline", "best-effort"}),
        (selector("PriorityClass", "DoesNotExist"), {"plain", "deadline", "best-effort"}),
        (selector("NotBestEffort", "Exists") | {"scopes": ["Terminating"]}, {"deadline"}),
        ({"scopes": ["CrossNamespacePodAffinity"]}, set()),
    ],
)
def test_a_quota_with_scopes_is_about_some_pods(scopes: dict[str, Any], counted: set[str]) -> None:
    assert {name for name, each in PODS.items() if counts(scopes, each)} == counted


async def test_a_quota_with_scopes_limits_growth_and_counts_its_own(store: Store) -> None:
    spec = {"hard": {"requests.cpu": "3"}, "scopes": ["NotTerminating"]}
    await keep(store, "resourcequotas", "q", {"spec": spec})
    await keep(store, "pods", "a", pod("a", "2"))
    await keep(store, "pods", "deadline", PODS["deadline"])
    gate = QuotaGate(store)
    assert str(gate.used("ns", spec)["requests.cpu"]) == "2"
    gate.check(pod("a", "3"), pod("a", "2"))
    with pytest.raises(StatusError, match="exceeded quota: q"):
        gate.check(pod("a", "4"), pod("a", "2"))
    gate.check(PODS["deadline"] | {"metadata": {"name": "d", "namespace": "ns", "uid": "d"}})


async def test_a_limit_range_fills_in(store: Store) -> None:
    await limit(
        store, type="Container", default={"cpu": "2"}, defaultRequest={"cpu": "500m", "memory": "1Gi"}
    )
    made = pod("a", "1")
    fill_from_limits(store, made)
    assert made["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"cpu": "2"},
    }


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            {"type": "Container", "min": {"cpu": "2"}},
            "minimum cpu usage per Container is 2, but request is 1",
        ),
        ({"type": "Container", "max": {"cpu": "2"}}, "maximum cpu usage per Container is 2, but limit is 4"),
        (
            {"type": "Container", "max": {"memory": "1Gi"}},
            "maximum memory usage per Container is 1Gi.  No limit",
        ),
        ({"type": "Pod", "max": {"cpu": "3"}}, "maximum cpu usage per Pod is 3, but limit is 4"),
        (
            {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        ),
    ],
)
async def test_a_limit_range_refuses(store: Store, item: dict[str, Any], said: str) -> None:
    await limit(store, **item)
    with pytest.raises(StatusError) as refused:
        check_limits(store, pod("a", "1", {"cpu": "4"}))
    assert refused.value.code == 403
    assert said in refused.value.message


async def test_claims_have_limits_too(store: Store) -> None:
    await limit(store, type="PersistentVolumeClaim", max={"storage": "1Gi"})
    claim = {
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
    }
    with pytest.raises(
        StatusError, match="maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
    ):
        check_claim_limits(store, claim)
