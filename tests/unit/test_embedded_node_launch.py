"""From a container to a command: whose Pods run, what they are started with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.pods import Pod
from hotvirt.embedded.node.launch import Fields, LaunchError, expand, pod_launch, pre_stop, why_not_ours


def pod(**container: Any) -> Pod:
    base = {"name": "compute", "image": "hotvirt/launcher:1", "command": ["hotvirt-launcher", "run"]}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}}
    spec = {"nodeName": "one", "containers": [base | container], "restartPolicy": "Never"}
    return codec.convert({"metadata": metadata, "spec": spec}, Pod)


def fields(of: Pod) -> Fields:
    return Fields(of, "10.1.1.1", "192.0.2.1")


def test_hotvirts_own_pod_is_taken() -> None:
    assert why_not_ours(pod()) == ""


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"image": "debian:12"}, "'debian:12', not hotvirt/launcher"),
        ({"image": "evil/hotvirt/launcher:1"}, "not hotvirt/launcher"),
        ({"image": "hotvirt/launcher-not:1"}, "not hotvirt/launcher"),
        ({"command": ["/bin/sh"]}, "does not run hotvirt-launcher"),
        ({"command": []}, "does not run hotvirt-launcher"),
    ],
)
def test_a_foreign_pod_is_not(container: dict[str, Any], says: str) -> None:
    assert says in why_not_ours(pod(**container))


def test_the_launcher_is_the_installed_one() -> None:
    (launch,) = pod_launch(pod(), Path("/pods/u"), fields(pod())).containers
    assert launch.argv == [sys.executable, "-m", "hotvirt.hypervisor.launcher", "run"]
    assert launch.env["HOTVIRT_CONTAINER_ROOT"] == "/pods/u/rootfs/compute"
    assert launch.cwd == "/"


def test_pre_stop_has_the_containers_environment() -> None:
    handler = {"preStop": {"exec": {"command": ["hotvirt-launcher", "stop"]}}}
    made = pod(lifecycle=handler, env=[{"name": "A", "value": "1"}])
    stop = pre_stop(made.spec.containers[0], Path("/pods/u"), fields(made))
    assert stop and stop.argv[-1] == "stop" and stop.env["A"] == "1"
    assert pre_stop(pod().spec.containers[0], Path("/pods/u"), fields(pod())) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a']", "b"),
        ("metadata.labels['x']", ""),
        ("status.podIP", "10.1.1.1"),
    ],
)
def test_field_references(path: str, value: str) -> None:
    made = pod(env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
    (launch,) = pod_launch(made, Path("/"), fields(made)).containers
    assert launch.env["X"] == value


def test_what_cannot_be_resolved_is_a_config_error() -> None:
    made = pod(env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])
    with pytest.raises(LaunchError, match="secretKeyRef is not supported") as refused:
        pod_launch(made, Path("/"), fields(made))
    assert refused.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$$(A)", "$(A)"),
        ("$$$$", "$$"),
        ("$(NO)", "$(NO)"),
        ("$(A", "$(A"),
        ("$x $", "$x $"),
        ("", ""),
    ],
)
def test_expansion_is_kubernetes_own(text: str, result: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == result


def test_a_dollar_written_twice_survives_whatever_the_text() -> None:
    text = 'userdata: "$(A) $$ $x $((1+1)) ${Y}"'
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text
