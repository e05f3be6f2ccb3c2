"""Pods and their subresources, as far as the API server itself brings them: no scheduler, no kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from .client import STRATEGIC, Api, causes
from .conftest import Namespace
from .objects import IMAGE, OTHER_IMAGE, pod
from .test_limits import counts

NOBODY = "nobody-runs-here"


async def test_a_new_pod_has_its_defaults(api: Api, ns: Namespace) -> None:
    spec = (await api.create(ns.pods, pod()))["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["schedulerName"] == "nobody"
    (container,) = spec["containers"]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"


async def test_a_new_pod_is_pending(api: Api, ns: Namespace) -> None:
    made = await api.create(ns.pods, pod())
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
    ],
)
async def test_the_qos_class_follows_from_the_resources(
    api: Api, ns: Namespace, resources: dict[str, Any], qos: str
) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    assert (await api.create(ns.pods, body))["status"]["qosClass"] == qos


async def test_limits_are_requests_where_none_are_given(api: Api, ns: Namespace) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    (container,) = (await api.create(ns.pods, body))["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


async def test_quantities_are_written_in_their_canonical_form(api: Api, ns: Namespace) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": 0.5, "memory": "1024Mi"}}
    (container,) = (await api.create(ns.pods, body))["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({"containers": []}, "FieldValueRequired", "spec.containers"),
        ({"containers": [{"name": "a"}]}, "FieldValueRequired", "spec.containers[0].image"),
        ({"containers": [{"image": "a"}]}, "FieldValueRequired", "spec.containers[0].name"),
        (
            {"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]},
            "FieldValueDuplicate",
            "spec.containers[1].name",
        ),
        ({"restartPolicy": "Sometimes"}, "FieldValueNotSupported", "spec.restartPolicy"),
    ],
)
async def test_a_pod_is_checked(
    api: Api, ns: Namespace, spec: dict[str, Any], reason: str, field: str
) -> None:
    status = (await api.post(ns.pods, pod(**spec))).refused(422, "Invalid")
    assert (reason, field) in causes(status)
    assert status["message"].startswith('Pod "one" is invalid: ')


async def test_requests_above_limits_are_invalid(api: Api, ns: Namespace) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    status = (await api.post(ns.pods, body)).refused(422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "spec.containers[0].resources.requests"
    assert cause["message"] == 'Invalid value: "2": must be less than or equal to cpu limit of 1'


async def test_most_of_the_spec_is_fixed(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    answer = await api.patch(f"{ns.pods}/one", {"spec": {"hostNetwork": True}}, STRATEGIC)
    status = answer.refused(422, "Invalid")
    assert causes(status) == {("FieldValueForbidden", "spec")}
    assert "pod updates may not change fields other than" in status["message"]


async def test_resources_change_through_resize_alone(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    larger = {"name": "main", "resources": {"requests": {"cpu": "200m"}}}
    answer = await api.patch(f"{ns.pods}/one", {"spec": {"containers": [larger]}}, STRATEGIC)
    assert causes(answer.refused(422, "Invalid")) == {("FieldValueForbidden", "spec")}


async def test_status_is_written_through_its_subresource(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    body = {"status": {"phase": "Running", "podIP": "10.0.0.9"}}
    changed = (await api.patch(f"{ns.pods}/one/status", body, STRATEGIC)).ok()
    assert changed["status"]["phase"] == "Running"
    ignored = (await api.patch(f"{ns.pods}/one", {"status": {"phase": "Failed"}}, STRATEGIC)).ok()
    assert ignored["status"]["phase"] == "Running"


async def test_a_pods_generation_follows_its_spec(api: Api, ns: Namespace) -> None:
    assert (await api.create(ns.pods, pod()))["metadata"]["generation"] == 1
    image = {"spec": {"containers": [{"name": "main", "image": OTHER_IMAGE}]}}
    assert (await api.patch(f"{ns.pods}/one", image, STRATEGIC)).ok()["metadata"]["generation"] == 2
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await api.patch(f"{ns.pods}/one", labels, STRATEGIC)).ok()["metadata"]["generation"] == 2


def binding(node: str = NOBODY) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "one"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def test_binding_gives_a_pod_its_node(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    answer = (await api.post(f"{ns.pods}/one/binding", binding())).ok(201)
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 201)
    bound = (await api.get(f"{ns.pods}/one")).ok()
    assert bound["spec"]["nodeName"] == NOBODY
    scheduled = {one["type"]: one["status"] for one in bound["status"]["conditions"]}
    assert scheduled["PodScheduled"] == "True"
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_a_bound_pod_is_not_bound_again(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    (await api.post(f"{ns.pods}/one/binding", binding())).ok(201)
    status = (await api.post(f"{ns.pods}/one/binding", binding("elsewhere"))).refused(409, "Conflict")
    assert f'pod one is already assigned to node "{NOBODY}"' in status["message"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_a_pod_that_waits_for_its_scheduler_goes_at_once(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    deleted = (await api.delete(f"{ns.pods}/one")).ok()
    assert deleted["kind"] == "Pod"
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    (await api.get(f"{ns.pods}/one")).refused(404, "NotFound")


async def test_a_pod_on_a_node_is_deleted_with_grace(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    deleted = (await api.delete(f"{ns.pods}/one")).ok()
    assert deleted["metadata"]["deletionTimestamp"]
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 30
    (await api.get(f"{ns.pods}/one")).ok()
    now = (await api.delete(f"{ns.pods}/one", {"gracePeriodSeconds": 0})).ok()
    assert now["metadata"]["deletionGracePeriodSeconds"] == 0
    (await api.get(f"{ns.pods}/one")).refused(404, "NotFound")


async def test_the_grace_period_can_be_given_and_shortened(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY, terminationGracePeriodSeconds=120))
    first = (await api.delete(f"{ns.pods}/one", {"gracePeriodSeconds": 60})).ok()["metadata"]
    assert first["deletionGracePeriodSeconds"] == 60
    second = (await api.delete(f"{ns.pods}/one", {"gracePeriodSeconds": 10})).ok()["metadata"]
    assert second["deletionGracePeriodSeconds"] == 10
    assert second["deletionTimestamp"] < first["deletionTimestamp"]
    longer = (await api.delete(f"{ns.pods}/one", {"gracePeriodSeconds": 90})).ok()["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 10
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_an_ended_pod_goes_at_once(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    (await api.patch(f"{ns.pods}/one/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)).ok()
    assert (await api.delete(f"{ns.pods}/one")).ok()["metadata"]["deletionGracePeriodSeconds"] == 0
    (await api.get(f"{ns.pods}/one")).refused(404, "NotFound")


def eviction(**options: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}
    return body | ({"deleteOptions": options} if options else {})


async def test_eviction_deletes_with_grace(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    answer = (await api.post(f"{ns.pods}/one/eviction", eviction())).ok(201)
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 201)
    evicted = (await api.get(f"{ns.pods}/one")).ok()
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_eviction_of_a_missing_pod_is_not_found(api: Api, ns: Namespace) -> None:
    (await api.post(f"{ns.pods}/one/eviction", eviction())).refused(404, "NotFound")


async def test_eviction_can_be_tried_dry(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    (await api.post(f"{ns.pods}/one/eviction", eviction(), dryRun="All")).ok(201)
    assert "deletionTimestamp" not in (await api.get(f"{ns.pods}/one")).ok()["metadata"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


def resources(**kinds: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": kinds}]}}


@pytest_asyncio.fixture
async def node(api: Api, unique: str) -> AsyncIterator[str]:
    """A node with two CPUs that nobody runs: a resize is checked against it."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique}}
    await api.create("/api/v1/nodes", body)
    offered = {"cpu": "2", "memory": "4Gi", "pods": "10"}
    status = {"status": {"capacity": offered, "allocatable": offered}}
    (await api.patch(f"/api/v1/nodes/{unique}/status", status)).ok()
    yield unique
    await api.delete(f"/api/v1/nodes/{unique}")


async def test_resize_changes_the_resources(api: Api, ns: Namespace, node: str) -> None:
    await api.create(ns.pods, pod(nodeName=node))
    body = resources(requests={"cpu": "200m", "memory": "128Mi"})
    changed = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).ok()
    assert changed["kind"] == "Pod"
    assert changed["metadata"]["generation"] == 2
    (container,) = changed["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "200m", "memory": "128Mi"}
    assert (await api.get(f"{ns.pods}/one/resize")).ok()["spec"] == changed["spec"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_resize_beyond_the_node_is_forbidden(api: Api, ns: Namespace, node: str) -> None:
    await api.create(ns.pods, pod(nodeName=node))
    answer = await api.patch(f"{ns.pods}/one/resize", resources(requests={"cpu": "64"}), STRATEGIC)
    if api.target.minor == 34:
        answer.ok()  # the kubelet answers there, with PodResizePending/Infeasible
    else:
        status = answer.refused(403, "Forbidden")
        assert status["message"] == (
            'pods "one" is forbidden: node didn\'t have enough allocatable resources: cpu, '
            "requested: 64000, allocatable: 2000"
        )
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_resize_may_not_change_the_qos_class(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    body = resources(requests={"cpu": "200m", "memory": "128Mi"}, limits={"cpu": "200m", "memory": "128Mi"})
    status = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).refused(422, "Invalid")
    assert "Pod QOS Class may not change as a result of resizing" in status["message"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_resize_is_for_cpu_and_memory(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    body = resources(requests={"ephemeral-storage": "1Gi"})
    status = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).refused(422, "Invalid")
    assert "only cpu and memory resources are mutable" in status["message"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_resize_removes_nothing(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": None}}}]}}
    status = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).refused(422, "Invalid")
    assert "resource requests cannot be removed" in status["message"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_resize_of_a_missing_pod_is_not_found(api: Api, ns: Namespace) -> None:
    body = resources(requests={"cpu": "200m"})
    (await api.patch(f"{ns.pods}/none/resize", body, STRATEGIC)).refused(404, "NotFound")


async def test_resize_can_be_tried_dry(api: Api, ns: Namespace, node: str) -> None:
    made = await api.create(ns.pods, pod(nodeName=node))
    body = resources(requests={"cpu": "200m"})
    (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC, dryRun="All")).ok()
    assert (await api.get(f"{ns.pods}/one")).ok()["spec"] == made["spec"]
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_the_log_of_a_missing_pod_is_not_found(api: Api, ns: Namespace) -> None:
    (await api.get(f"{ns.pods}/none/log")).refused(404, "NotFound", 'pods "none" not found')


async def test_the_log_of_a_container_that_is_none_is_400(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod(nodeName=NOBODY))
    answer = await api.get(f"{ns.pods}/one/log", container="other")
    answer.refused(400, "BadRequest", "container other is not valid for pod one")
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_the_log_of_several_containers_needs_a_choice(api: Api, ns: Namespace) -> None:
    containers = [{"name": name, "image": IMAGE} for name in ("a", "b")]
    await api.create(ns.pods, pod(nodeName=NOBODY, containers=containers))
    message = "a container name must be specified for pod one, choose one of: [a b]"
    (await api.get(f"{ns.pods}/one/log")).refused(400, "BadRequest", message)
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)


async def test_the_log_of_a_pod_without_node_is_empty(api: Api, ns: Namespace) -> None:
    await api.create(ns.pods, pod())
    answer = await api.get(f"{ns.pods}/one/log", accept="*/*")
    assert answer.status in (200, 204)
    assert answer.raw == b""


@pytest.mark.parametrize("parameter", [{"tailLines": "-1"}, {"sinceSeconds": "0"}, {"limitBytes": "0"}])
async def test_the_options_of_a_log_are_checked(api: Api, ns: Namespace, parameter: dict[str, str]) -> None:
    await api.create(ns.pods, pod())
    status = (await api.get(f"{ns.pods}/one/log", **parameter)).refused(422, "Invalid")
    assert {field for _, field in causes(status)} == set(parameter)


async def test_a_quota_refuses_one_pod_too_many(api: Api, ns: Namespace) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q1"},
        "spec": {"hard": {"pods": "0"}},
    }
    await api.create(ns.path("resourcequotas"), quota)
    counted = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    (await api.patch(f"{ns.path('resourcequotas')}/q1/status", counted)).ok()
    await counts(api, ns, pod())
    status = (await api.post(ns.pods, pod())).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: exceeded quota: q1, requested: pods=1, used: pods=0, limited: pods=0'
    )
