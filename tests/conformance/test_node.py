"""What scheduler, kubelet and controllers make of a Pod: its status, resizes, garbage and quotas.

The Pods run Hotvirt's launcher, which every target has: `console-log` waits for a machine that never comes,
`stop` finds none and is content, `run` has no machine to run and fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hotvirt import __version__
from hotvirt.api.quantity import Quantity
from tests.targets.target import wait_until

from .client import STRATEGIC, Api
from .conftest import Namespace
from .objects import widget
from .test_controllers import gone, owned
from .test_limits import counts

pytestmark = pytest.mark.needs_node

WITHIN = 120.0
SMALL = {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "96Mi"}}
LARGER = {"requests": {"cpu": "70m", "memory": "40Mi"}, "limits": {"cpu": "150m", "memory": "128Mi"}}
WAITS, ENDS_WELL, FAILS = "console-log", "stop", "run"


def container(name: str, verb: str, resources: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"hotvirt/launcher:{__version__}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["hotvirt-launcher", verb],
        "resources": resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "run", "mountPath": "/var/run/hotvirt"}],
    }


def launcher(
    verb: str, *, name: str = "one", first: str = "", resources: dict[str, Any] = SMALL, **spec: Any
) -> dict[str, Any]:
    """A Pod with one container, after an init container where `first` names its verb."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsUser": 107, "fsGroup": 107},
            "volumes": [{"name": "run", "emptyDir": {}}],
            "initContainers": [container("first", first, resources)] if first else [],
            "containers": [container("main", verb, resources)],
        }
        | spec,
    }


async def until(
    api: Api, collection: str, true: Callable[[dict[str, Any]], bool], name: str = "one"
) -> dict[str, Any]:
    """The object, as soon as it is so."""
    async with api.watch(collection, fieldSelector=f"metadata.name={name}") as watch:
        while True:
            event = await watch.next(WITHIN)
            found: dict[str, Any] = event["object"]
            if event["type"] != "DELETED" and true(found):
                return found


def in_phase(phase: str) -> Callable[[dict[str, Any]], bool]:
    return lambda pod: bool(pod["status"]["phase"] == phase)


async def running(api: Api, ns: Namespace, body: dict[str, Any]) -> dict[str, Any]:
    name = body["metadata"]["name"]
    await account(api, ns)
    await api.create(ns.pods, body)
    return await until(api, ns.pods, in_phase("Running"), name)


async def account(api: Api, ns: Namespace) -> None:
    """A real API server takes no Pod before the namespace has its account."""
    await until(api, ns.path("serviceaccounts"), lambda _: True, "default")


def condition(pod: dict[str, Any], type: str) -> dict[str, Any]:
    found = [each for each in pod["status"].get("conditions", []) if each["type"] == type]
    return found[0] if found else {}


def truths(pod: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in pod["status"]["conditions"]}


async def event(api: Api, ns: Namespace, reason: str, part: str = "") -> str:
    """The message of the first event with this reason on the Pod that has this part."""
    async with api.watch(ns.path("events")) as watch:
        while True:
            found = (await watch.next(WITHIN))["object"]
            if (found["reason"], found["involvedObject"]["name"]) == (reason, "one") and part in found[
                "message"
            ]:
                return str(found["message"])


# ---- a Pod's life ----


async def test_a_running_pod_says_where_it_is_and_that_it_is_ready(api: Api, ns: Namespace) -> None:
    pod = await running(api, ns, launcher(WAITS))
    status = pod["status"]
    assert pod["spec"]["nodeName"]
    assert truths(pod) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", ""),
        "Ready": ("True", ""),
        "ContainersReady": ("True", ""),
        "PodScheduled": ("True", ""),
    }
    assert {each["observedGeneration"] for each in status["conditions"]} == {1}
    assert status["observedGeneration"] == 1
    assert status["hostIPs"] == [{"ip": status["hostIP"]}]
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["startTime"] <= status["containerStatuses"][0]["state"]["running"]["startedAt"]


async def test_a_running_container_says_what_it_has(api: Api, ns: Namespace) -> None:
    status = (await running(api, ns, launcher(WAITS)))["status"]
    (main,) = status["containerStatuses"]
    assert (main["name"], main["ready"], main["started"], main["restartCount"]) == ("main", True, True, 0)
    assert list(main["state"]) == ["running"]
    assert main["lastState"] == {}
    assert main["image"].endswith(f"hotvirt/launcher:{__version__}")
    assert main["imageID"] and "://" in main["containerID"]
    assert main["allocatedResources"] == SMALL["requests"]
    assert main["resources"] == SMALL
    assert status["allocatedResources"] == SMALL["requests"]
    assert status["resources"] == SMALL


async def test_a_container_that_ends_well_completes_its_pod(api: Api, ns: Namespace) -> None:
    await account(api, ns)
    await api.create(ns.pods, launcher(ENDS_WELL))
    pod = await until(api, ns.pods, in_phase("Succeeded"))
    (main,) = pod["status"]["containerStatuses"]
    ended = main["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["containerID"] == main["containerID"]
    assert "message" not in ended
    assert (main["ready"], main["started"]) == (False, False)
    found = truths(await sandbox_gone(api, ns))
    assert found["Ready"] == found["ContainersReady"] == ("False", "PodCompleted")
    assert found["Initialized"] == ("True", "PodCompleted")


async def sandbox_gone(api: Api, ns: Namespace) -> dict[str, Any]:
    def ended(pod: dict[str, Any]) -> bool:
        return condition(pod, "PodReadyToStartContainers").get("status") == "False"

    return await until(api, ns.pods, ended)


async def test_a_container_that_fails_says_why(api: Api, ns: Namespace) -> None:
    await account(api, ns)
    await api.create(ns.pods, launcher(FAILS))
    pod = await until(api, ns.pods, in_phase("Failed"))
    (main,) = pod["status"]["containerStatuses"]
    ended = main["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    assert "HOTVIRT_MACHINE is not set" in ended["message"]
    assert ended["startedAt"] <= ended["finishedAt"]
    found = truths(await sandbox_gone(api, ns))
    assert found["Ready"] == found["ContainersReady"] == ("False", "PodFailed")
    assert found["PodReadyToStartContainers"] == ("False", "PodSandboxNotReady")
    assert found["Initialized"] == ("True", "")
    assert "HOTVIRT_MACHINE is not set" in (await api.get(f"{ns.pods}/one/log", accept="*/*")).text


async def test_init_containers_end_before_the_others_start(api: Api, ns: Namespace) -> None:
    status = (await running(api, ns, launcher(WAITS, first=ENDS_WELL)))["status"]
    (first,) = status["initContainerStatuses"]
    ended = first["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert (first["ready"], first["started"]) == (True, False)
    (main,) = status["containerStatuses"]
    assert ended["finishedAt"] <= main["state"]["running"]["startedAt"]


async def test_an_init_container_that_fails_fails_the_pod(api: Api, ns: Namespace) -> None:
    await account(api, ns)
    await api.create(ns.pods, launcher(WAITS, first=FAILS))
    pod = await until(api, ns.pods, in_phase("Failed"))
    initialized = condition(pod, "Initialized")
    assert (initialized["status"], initialized["reason"]) == ("False", "ContainersNotInitialized")
    assert initialized["message"] == "containers with incomplete status: [first]"
    (main,) = pod["status"]["containerStatuses"]
    assert main["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert (main["ready"], main["started"], main["imageID"]) == (False, False, "")
    assert "resources" not in main and "allocatedResources" not in main
    await event(api, ns, "Started")
    started = [
        found["involvedObject"].get("fieldPath", "") + found["message"]
        for found in (await api.get(ns.path("events"))).ok()["items"]
        if found["reason"] == "Started"
    ]
    assert not [text for text in started if "main" in text]


async def test_a_deleted_pod_is_stopped_within_its_grace(api: Api, ns: Namespace) -> None:
    await running(api, ns, launcher(WAITS))
    deleted = (await api.delete(f"{ns.pods}/one")).ok()
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 5
    await gone(api, ns.pods, "one")
    assert await event(api, ns, "Killing") == "Stopping container main"


async def test_a_pod_deleted_without_grace_is_gone_at_once(api: Api, ns: Namespace) -> None:
    await running(api, ns, launcher(WAITS))
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)
    (await api.get(f"{ns.pods}/one")).refused(404, "NotFound")


async def test_an_evicted_pod_goes(api: Api, ns: Namespace) -> None:
    await running(api, ns, launcher(WAITS))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}
    (await api.post(f"{ns.pods}/one/eviction", body)).ok(201)
    await gone(api, ns.pods, "one")


async def test_a_running_pod_goes_with_its_owner(api: Api, ns: Namespace) -> None:
    owner = await api.create(ns.widgets, widget("owner"))
    body = launcher(WAITS)
    body["metadata"]["ownerReferences"] = owned("one", owner)["metadata"]["ownerReferences"]
    await running(api, ns, body)
    (await api.delete(f"{ns.widgets}/owner")).ok()
    await gone(api, ns.pods, "one")


# ---- scheduling ----


async def test_the_scheduler_says_that_it_found_a_node(api: Api, ns: Namespace) -> None:
    pod = await running(api, ns, launcher(WAITS))
    message = f"Successfully assigned {ns.name}/one to {pod['spec']['nodeName']}"
    assert await event(api, ns, "Scheduled") == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"resources": {"requests": {"cpu": "500"}}}, "1 Insufficient cpu"),
        ({"resources": {"requests": {"memory": "500Ti"}}}, "1 Insufficient memory"),
        ({"nodeSelector": {"no": "such"}}, "1 node(s) didn't match Pod's node affinity/selector"),
    ],
)
async def test_a_pod_that_fits_nowhere_waits_and_says_why(
    api: Api, ns: Namespace, spec: dict[str, Any], message: str
) -> None:
    await account(api, ns)
    await api.create(ns.pods, launcher(WAITS, **spec))
    pod = await until(api, ns.pods, lambda pod: bool(condition(pod, "PodScheduled")))
    scheduled = condition(pod, "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    # The real one goes on with what preemption could do, which the embedded one does not have.
    assert scheduled["message"].startswith(f"0/1 nodes are available: {message}.")
    assert pod["status"]["phase"] == "Pending"
    assert (await event(api, ns, "FailedScheduling")).startswith(f"0/1 nodes are available: {message}.")


# ---- resizes ----


async def resize(api: Api, ns: Namespace, resources: dict[str, Any], name: str = "one") -> dict[str, Any]:
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    changed: dict[str, Any] = (await api.patch(f"{ns.pods}/{name}/resize", body, STRATEGIC)).ok()
    return changed


def has(resources: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """The container has these in force, and the Pod's status is of this size altogether."""

    def true(pod: dict[str, Any]) -> bool:
        (main,) = pod["status"]["containerStatuses"]
        settled = pod["status"].get("observedGeneration") == pod["metadata"]["generation"]
        return bool(main.get("resources") == resources and settled)

    return true


@pytest.mark.parametrize(("before", "after"), [(SMALL, LARGER), (LARGER, SMALL)], ids=["up", "down"])
async def test_a_resize_is_in_force_without_a_restart(
    api: Api, ns: Namespace, before: dict[str, Any], after: dict[str, Any]
) -> None:
    started = (await running(api, ns, launcher(WAITS, resources=before)))["status"]["containerStatuses"][0]
    assert (await resize(api, ns, after))["metadata"]["generation"] == 2
    pod = await until(api, ns.pods, has(after))
    (main,) = pod["status"]["containerStatuses"]
    assert main["allocatedResources"] == after["requests"]
    assert pod["status"]["allocatedResources"] == after["requests"]
    assert pod["status"]["resources"] == after
    assert main["restartCount"] == 0
    assert main["containerID"] == started["containerID"]
    assert main["state"] == started["state"]
    pod = await until(api, ns.pods, lambda pod: not condition(pod, "PodResizeInProgress"))
    assert not condition(pod, "PodResizePending")
    # The kubelet may say so of the first size, too, and even with the new generation.
    sizes = json.dumps({"name": "main", "resources": after}, sort_keys=True, separators=(",", ":"))
    for reason, word in (("ResizeStarted", "started"), ("ResizeCompleted", "completed")):
        message = await event(api, ns, reason, sizes)
        assert message == f'Pod resize {word}: {{"containers":[{sizes}],"generation":2}}'


async def test_a_resize_beyond_the_node_is_refused_and_changes_nothing(api: Api, ns: Namespace) -> None:
    pod = await running(api, ns, launcher(WAITS))
    body = {
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": {"cpu": "64"}, "requests": {"cpu": "64"}}}
            ]
        }
    }
    status = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).refused(403, "Forbidden")
    assert "node didn't have enough allocatable resources: cpu, requested: 64000" in status["message"]
    assert status["details"]["causes"] == [{"reason": "NodeCapacity"}]
    assert (await api.get(f"{ns.pods}/one")).ok()["spec"] == pod["spec"]


def some_leave(api: Api, node: str) -> bool:
    """Whether Pods of earlier tests are on the node, which take their share of it along a moment later."""

    def items(path: str) -> list[dict[str, Any]]:
        status, listed = api.target.request("GET", path)
        assert status == 200, listed
        found: list[dict[str, Any]] = listed["items"]
        return found

    pods = items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")
    ending = {
        each["metadata"]["name"]
        for each in items("/api/v1/namespaces")
        if each["status"]["phase"] == "Terminating"
    }
    return any(
        each["metadata"]["namespace"] in ending or "deletionTimestamp" in each["metadata"] for each in pods
    )


async def free_cpu(api: Api, node: str) -> int:
    """Thousandths of CPUs that nobody on the node has asked for."""
    wait_until(lambda: not some_leave(api, node), "the Pods of earlier tests to go")
    offered = (await api.get(f"/api/v1/nodes/{node}")).ok()["status"]["allocatable"]["cpu"]
    pods = (await api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")).ok()["items"]
    taken = 0
    for pod in pods:
        if pod["status"]["phase"] in ("Pending", "Running"):
            for each in pod["spec"]["containers"]:
                taken += Quantity(each.get("resources", {}).get("requests", {}).get("cpu", "0")).milli
    return Quantity(offered).milli - taken


async def test_a_resize_that_does_not_fit_now_waits_for_room(api: Api, ns: Namespace) -> None:
    pod = await running(api, ns, launcher(WAITS, resources={"requests": {"cpu": "50m"}}))
    free = await free_cpu(api, pod["spec"]["nodeName"])
    rest = {"requests": {"cpu": f"{free - 50}m"}}
    await running(api, ns, launcher(WAITS, name="other", resources=rest))
    await resize(api, ns, {"requests": {"cpu": "200m"}})
    waiting = await until(api, ns.pods, lambda pod: bool(condition(pod, "PodResizePending")))
    pending = condition(waiting, "PodResizePending")
    assert (pending["status"], pending["reason"]) == ("True", "Deferred")
    assert pending["message"].startswith("Node didn't have enough resource: cpu, requested: 200, used: ")
    assert pending["observedGeneration"] == 2
    (main,) = waiting["status"]["containerStatuses"]
    assert main["resources"]["requests"] == {"cpu": "50m"}
    assert main["allocatedResources"] == {"cpu": "50m"}
    await api.delete(f"{ns.pods}/other", gracePeriodSeconds=0)
    await until(api, ns.pods, has({"requests": {"cpu": "200m"}}))
    await until(api, ns.pods, lambda pod: not condition(pod, "PodResizePending"))


# ---- quota ----


async def quota(api: Api, ns: Namespace, **hard: str) -> None:
    hard = {name.replace("_", "."): amount for name, amount in hard.items()}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q1"}, "spec": {"hard": hard}}
    await api.create(ns.path("resourcequotas"), body)
    await used(api, ns, **dict.fromkeys(hard, "0"))
    await account(api, ns)
    await counts(api, ns, launcher(WAITS))


async def used(api: Api, ns: Namespace, **wanted: str) -> None:
    """Wait until the quota says that so much is used."""
    amounts = {name.replace("_", "."): amount for name, amount in wanted.items()}

    def true(quota: dict[str, Any]) -> bool:
        return amounts.items() <= (quota.get("status") or {}).get("used", {}).items()

    await until(api, ns.path("resourcequotas"), true, "q1")


async def test_a_quota_counts_what_runs_and_forgets_what_ended(api: Api, ns: Namespace) -> None:
    await quota(api, ns, pods="3", requests_cpu="1", limits_memory="1Gi")
    await running(api, ns, launcher(WAITS))
    await used(api, ns, pods="1", requests_cpu="50m", limits_memory="96Mi")
    await api.create(ns.pods, launcher(ENDS_WELL, name="two"))
    await until(api, ns.pods, in_phase("Succeeded"), "two")
    await used(api, ns, pods="1", requests_cpu="50m", limits_memory="96Mi")
    await api.delete(f"{ns.pods}/one", gracePeriodSeconds=0)
    await used(api, ns, pods="0", requests_cpu="0", limits_memory="0")


async def test_a_quota_follows_a_resize_both_ways(api: Api, ns: Namespace) -> None:
    await quota(api, ns, requests_cpu="1", limits_memory="1Gi")
    await running(api, ns, launcher(WAITS))
    await resize(api, ns, LARGER)
    await used(api, ns, requests_cpu="70m", limits_memory="128Mi")
    await until(api, ns.pods, has(LARGER))
    await resize(api, ns, SMALL)
    await until(api, ns.pods, has(SMALL))
    await used(api, ns, requests_cpu="50m", limits_memory="96Mi")


async def test_a_resize_beyond_the_quota_is_refused_and_the_pod_runs_on(api: Api, ns: Namespace) -> None:
    await quota(api, ns, requests_cpu="60m")
    await running(api, ns, launcher(WAITS))
    body = {"spec": {"containers": [{"name": "main", "resources": LARGER}]}}
    status = (await api.patch(f"{ns.pods}/one/resize", body, STRATEGIC)).refused(403, "Forbidden")
    assert status["message"] == (
        'pods "one" is forbidden: exceeded quota: q1, requested: requests.cpu=20m, '
        "used: requests.cpu=50m, limited: requests.cpu=60m"
    )
    pod = (await api.get(f"{ns.pods}/one")).ok()
    assert pod["status"]["phase"] == "Running" and has(SMALL)(pod)


async def test_a_namespace_takes_its_running_pods_along(api: Api, unique: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}}
    await api.create("/api/v1/namespaces", body)
    inside = Namespace(unique)
    await running(api, inside, launcher(WAITS))
    (await api.delete(f"/api/v1/namespaces/{unique}")).ok()
    await gone(api, "/api/v1/namespaces", unique)
    assert (await api.get(inside.pods)).ok()["items"] == []
