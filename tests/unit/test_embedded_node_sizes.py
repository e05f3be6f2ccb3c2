"""How Pods are counted, and the pure half of a resize."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.embedded.node import resize
from hotvirt.embedded.node.cgroups import Limits
from hotvirt.embedded.node.sizes import (
    Ledger,
    SizeFile,
    asked_sizes,
    held_requests,
    pod_limits,
    pod_requests,
    qos_class,
)


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    named = [{"name": f"c{number}", "resources": size} for number, size in enumerate(containers)]
    return codec.convert(
        {"metadata": {"name": "p"}, "spec": {"containers": named, **spec}, "status": status or {}}, Pod
    )


def amounts(**values: str) -> dict[str, Quantity]:
    return {name: Quantity(value) for name, value in values.items()}


def requests(**values: str) -> dict[str, Any]:
    return {"requests": values}


def test_requests_are_summed_and_an_init_container_may_be_larger() -> None:
    init = [{"name": "i", "resources": requests(cpu="1", memory="10Mi")}]
    made = pod(
        requests(cpu="200m", memory="64Mi"),
        requests(cpu="100m"),
        initContainers=init,
        overhead={"cpu": "50m"},
    )
    assert pod_requests(made.spec) == amounts(cpu="1050m", memory="64Mi")


def test_a_limit_without_a_request_counts_as_one() -> None:
    assert pod_requests(pod({"limits": {"cpu": "2"}}).spec) == amounts(cpu="2")


def test_while_a_resize_is_under_way_the_most_counts() -> None:
    status = {
        "containerStatuses": [
            {
                "name": "c0",
                "allocatedResources": {"cpu": "2", "memory": "1Gi"},
                "resources": requests(cpu="3", memory="1Gi"),
            }
        ]
    }
    assert held_requests(pod(requests(cpu="1", memory="2Gi"), status=status)) == amounts(
        cpu="3", memory="2Gi"
    )


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{}], "BestEffort"),
        ([requests(cpu="1")], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
    ],
)
def test_qos_class(containers: list[dict[str, Any]], expected: str) -> None:
    assert qos_class(pod(*containers).spec) == expected


def test_a_pod_has_a_limit_only_where_every_container_has_one() -> None:
    both = pod({"limits": {"cpu": "1", "memory": "1Mi"}}, {"limits": {"cpu": "500m"}})
    assert pod_limits(c.resources for c in both.spec.containers) == Limits(1500, 1500, None)


def test_shares_quota_and_weight_are_the_kubelets() -> None:
    assert (Limits(1000).shares, Limits(0).shares, Limits(1).shares) == (1024, 2, 2)
    assert (Limits(1000).weight, Limits(0).weight) == (39, 1)
    assert (Limits(0, 1500).quota_us, Limits(0, 1).quota_us, Limits(0).quota_us) == (150_000, 1_000, None)


def test_infeasible_names_what_the_node_has() -> None:
    never = resize.why_not_ever(amounts(cpu="64", memory="1Gi"), amounts(cpu="2", memory="4Gi"))
    assert never == resize.Refusal(
        "Infeasible", "Node didn't have enough capacity: cpu, requested: 64000, capacity: 2000", "cpu"
    )


def test_shrinking_is_never_deferred() -> None:
    made = pod(requests(cpu="1"))
    asked, had = asked_sizes(made), asked_sizes(pod(requests(cpu="2")))
    crowd = amounts(cpu="100")
    assert resize.why_not_resize(made.spec, asked, had, crowd, amounts(cpu="4", memory="1Gi")) is None
    refused = resize.why_not_resize(made.spec, had, asked, crowd, amounts(cpu="4", memory="1Gi"))
    assert refused and refused.reason == "Deferred"


def test_the_ledger_is_the_sum_of_what_is_held() -> None:
    ledger = Ledger()
    assert not ledger.book("a", amounts(cpu="1", memory="1Gi"))
    assert not ledger.book("b", amounts(cpu="2"))
    assert ledger.total() == amounts(cpu="3", memory="1Gi")
    assert ledger.total(without="a") == amounts(cpu="2", memory="0")
    assert not ledger.book("b", amounts(cpu="3"))
    assert ledger.book("b", amounts(cpu="1"))
    assert ledger.book("a", None) and len(ledger) == 1
    assert ledger.total()["cpu"] == Quantity(1)
    ledger.book("c", {})
    assert len(ledger) == 2


def test_what_was_given_is_remembered(tmp_path: Any) -> None:
    made = pod({"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}})
    sizes = SizeFile(tmp_path)
    sizes.allocated, sizes.actual, sizes.generation = asked_sizes(made), asked_sizes(made), 7
    sizes.save()
    again = SizeFile(tmp_path)
    assert (again.allocated, again.actual, again.generation) == (sizes.allocated, sizes.actual, 7)
