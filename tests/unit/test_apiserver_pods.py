"""Pods: their class, their sizes, and which of them may run on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import names
from hotvirt.embedded.apiserver.pod_column import pod_cells
from hotvirt.embedded.apiserver.pod_resources import (
    beyond_node,
    only_sizes,
    pod_requests,
    qos_class,
    resize_errors,
)
from hotvirt.embedded.apiserver.pods import fill, foreign

IMAGE = f"{names.LAUNCHER_IMAGE}:1"


def container(name: str = "compute", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": IMAGE, **more}


def sized(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers) or [container()], **spec}}


BOTH = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([container()], "BestEffort"),
        ([container(**sized(BOTH, BOTH))], "Guaranteed"),
        ([container(**sized({"cpu": "500m"}))], "Burstable"),
        ([container(**sized(BOTH, {"cpu": "2", "memory": "1Gi"}))], "Burstable"),
        ([container(**sized(BOTH, BOTH)), container("log")], "Burstable"),
    ],
)
def test_quality_of_service(containers: list[dict[str, Any]], expected: str) -> None:
    assert qos_class(pod(*containers)) == expected


def test_the_scheduler_counts_the_larger_of_init_and_main() -> None:
    made = pod(
        container(**sized({"cpu": "1", "memory": "1Gi"})),
        container("log", **sized({"cpu": "100m"})),
        initContainers=[container("init", **sized({"memory": "4Gi"}))],
    )
    assert {name: str(one) for name, one in pod_requests(made).items()} == {"cpu": "1100m", "memory": "4Gi"}


def test_defaults_of_a_pod() -> None:
    made = pod(container(**sized(limits=BOTH)), volumes=[{"name": "run"}])
    fill(made)
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert spec["volumes"] == [{"name": "run", "emptyDir": {}}]
    assert spec["containers"][0]["resources"]["requests"] == BOTH
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_the_launcher_pod_is_ours() -> None:
    lifecycle = {"preStop": {"exec": {"command": ["hotvirt-launcher", "stop"]}}}
    made = pod(
        container(command=["hotvirt-launcher", "run"], lifecycle=lifecycle),
        container("guest-console-log", command=["hotvirt-launcher", "console-log"]),
        volumes=[
            {"name": "run", "emptyDir": {}},
            {"name": "disk", "image": {"reference": "my/os:1"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        ],
    )
    assert foreign(made) is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (pod({"name": "a", "image": "nginx"}), "image is 'nginx'"),
        (pod({"name": "a", "image": f"evil/{names.LAUNCHER_IMAGE}"}), "image is 'evil/"),
        (pod({"name": "a", "image": f"{names.LAUNCHER_IMAGE}:5000/x"}), "image is"),
        (pod(container(command=["sh", "-c", "true"])), "command starts 'sh'"),
        (
            pod(container(lifecycle={"postStart": {"exec": {"command": ["sh"]}}})),
            "lifecycle.postStart starts 'sh'",
        ),
        (pod(container(livenessProbe={"exec": {"command": ["sh"]}})), "livenessProbe.exec starts 'sh'"),
        (pod(container(), container("x", securityContext={"privileged": True})), "is privileged"),
        (
            pod(container(), initContainers=[{"name": "i", "image": "busybox"}]),
            "spec.initContainers[0].image",
        ),
        (pod(container(), volumes=[{"name": "h", "hostPath": {"path": "/"}}]), "is of type hostPath"),
        (pod(container(), hostNetwork=True), "spec.hostNetwork is set"),
    ],
)
def test_any_other_pod_is_not(made: dict[str, Any], said: str) -> None:
    assert said in (foreign(made) or "")


def resized(old: dict[str, Any], **changes: Any) -> list[str]:
    asked = pod(container(**changes))
    return [str(error) for error in resize_errors(old, only_sizes(old, asked))]


def test_a_resize_changes_cpu_and_memory() -> None:
    old = pod(container(**sized(BOTH)))
    assert resized(old, **sized({"cpu": "2", "memory": "2Gi"})) == []


def test_a_resize_keeps_the_class() -> None:
    old = pod(container(**sized(BOTH)))
    (said,) = resized(old, **sized(BOTH, BOTH))
    assert "Pod QOS Class may not change as a result of resizing" in said


def test_a_resize_removes_nothing() -> None:
    old = pod(container(**sized(BOTH)))
    (said,) = resized(old, **sized({"cpu": "1"}))
    assert said == "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"


def test_a_resize_takes_only_the_sizes_of_what_it_is_sent() -> None:
    old = pod(container(**sized(BOTH), command=["hotvirt-launcher", "run"]))
    asked = pod(container(image="other", command=["sh"], **sized({"cpu": "3", "memory": "1Gi"})))
    changed = only_sizes(old, asked)
    assert changed["spec"]["containers"][0] == container(
        command=["hotvirt-launcher", "run"], **sized({"cpu": "3", "memory": "1Gi"})
    )


def test_other_resources_cannot_be_resized() -> None:
    old = pod(container(**sized(BOTH)))
    said = resized(old, **sized({**BOTH, "hugepages-2Mi": "2Mi"}))
    assert "spec: Forbidden: only cpu and memory resources are mutable" in said


def test_a_node_without_resize_is_known_by_its_status() -> None:
    old = pod(container(**sized(BOTH)))
    old["status"] = {"containerStatuses": [{"name": "compute", "state": {"running": {}}}]}
    (said,) = resized(old, **sized({"cpu": "2", "memory": "1Gi"}))
    assert said == "spec: Forbidden: Pod running on node without support for resize"


def test_what_no_node_of_this_size_could_hold() -> None:
    made = pod(container(**sized({"cpu": "64", "memory": "1Gi"})))
    assert beyond_node(made, {"cpu": "2", "memory": "4Gi"}) == (
        "node didn't have enough allocatable resources: cpu, requested: 64000, allocatable: 2000"
    )
    assert beyond_node(made, {"cpu": "64", "memory": "4Gi"}) is None


@pytest.mark.parametrize(
    ("status", "deleted", "shown"),
    [
        ({"phase": "Pending"}, False, "Pending"),
        ({"phase": "Running"}, True, "Terminating"),
        ({"phase": "Failed", "reason": "Evicted"}, False, "Evicted"),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            False,
            "ErrImagePull",
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            False,
            "ExitCode:3",
        ),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
                    {"state": {"running": {}}, "ready": True},
                ],
            },
            False,
            "Running",
        ),
    ],
)
def test_what_kubectl_get_says_of_a_pod(status: dict[str, Any], deleted: bool, shown: str) -> None:
    made = pod() | {"status": status}
    if deleted:
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_cells(made)[2] == shown
