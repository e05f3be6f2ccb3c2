"""The test cluster itself: Pods run, are resized by the kubelet and are reached; nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.targets.target import CHECKOUT, wait_until

from . import bed as beds
from .bed import Bed
from .bed_init import cgroup_hierarchies
from .bed_layout import IMAGE, NODE, Layout

MI = 1024 * 1024
NODES_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/usr/libexec/kubernetes")


def sized(cpu: str, memory: str) -> dict[str, Any]:
    """Burstable: with the CPU manager's static policy a Guaranteed Pod keeps its cpu."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


SERVE = """
mkdir /tmp/www
echo "hello from $HOSTNAME" > /tmp/www/index.html
echo serving
exec httpd -f -p 80 -h /tmp/www
"""


def web_server(namespace: str) -> dict[str, Any]:
    container = {
        "name": "web",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", SERVE],
        # It runs before it serves.
        "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 1, "timeoutSeconds": 10},
        "resources": sized("100m", "64Mi"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace, "labels": {"app": "web"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def kubectl(bed: Bed, *words: str, document: object = None) -> str:
    command = ["kubectl", *words]
    answer = subprocess.run(
        command,
        env=os.environ | bed.environment,
        input=json.dumps(document) if document else None,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, f"{' '.join(command)}: {answer.stderr}"
    return answer.stdout


@pytest.fixture(scope="module")
def namespace(bed: Bed) -> Iterator[str]:
    name = "test-bed"
    kubectl(bed, "create", "namespace", name)
    account = "serviceaccount/default"
    kubectl(bed, "wait", "-n", name, account, "--for=create", "--timeout=60s")
    yield name
    kubectl(bed, "delete", "namespace", name, "--timeout=120s")


@pytest.fixture(scope="module")
def web(bed: Bed, namespace: str) -> dict[str, Any]:
    kubectl(bed, "apply", "-f", "-", document=web_server(namespace))
    kubectl(bed, "wait", "-n", namespace, "pod/web", "--for=condition=Ready", "--timeout=120s")
    return read_pod(bed, namespace)


def read_pod(bed: Bed, namespace: str) -> dict[str, Any]:
    pod: dict[str, Any] = json.loads(kubectl(bed, "get", "-n", namespace, "pod/web", "-o", "json"))
    return pod


def fetch(address: str, port: int = 80) -> str:
    with urllib.request.urlopen(f"http://{address}:{port}/", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_pod_runs_and_its_log_is_read(bed: Bed, namespace: str, web: dict[str, Any]) -> None:
    assert web["spec"]["nodeName"] == NODE
    assert web["status"]["hostIP"] == bed.layout.node_address
    # What a container prints is on its way to its log for a moment.
    wait_until(lambda: kubectl(bed, "logs", "-n", namespace, "web") == "serving\n", "the log to say so")
    page = kubectl(bed, "exec", "-n", namespace, "web", "--", "cat", "/tmp/www/index.html")
    assert page == "hello from web\n"


def test_the_kubelet_resizes_a_running_pod(bed: Bed, namespace: str, web: dict[str, Any]) -> None:
    started = web["status"]["containerStatuses"][0]["containerID"]
    patch = {"spec": {"containers": [{"name": "web", "resources": sized("150m", "96Mi")}]}}
    resize = ("patch", "-n", namespace, "pod/web", "--subresource=resize", "--patch", json.dumps(patch))
    kubectl(bed, *resize)
    # The kubelet does one after the other, and may be asked in between.
    for what, size in (("limits.memory", "96Mi"), ("requests.memory", "96Mi"), ("requests.cpu", "150m")):
        shown = f"--for=jsonpath={{.status.containerStatuses[0].resources.{what}}}={size}"
        kubectl(bed, "wait", "-n", namespace, "pod/web", shown, "--timeout=120s")
    now = read_pod(bed, namespace)["status"]["containerStatuses"][0]
    assert (now["resources"], now["containerID"], now["restartCount"]) == (sized("150m", "96Mi"), started, 0)
    assert memory_limit(bed, web["metadata"]["uid"], started) == 96 * MI


def memory_limit(bed: Bed, uid: str, container: str) -> int:
    own = f"{bed.layout.cgroup}/kubepods/burstable/pod{uid}/{container.removeprefix('containerd://')}"
    found = [
        path
        for hierarchy in cgroup_hierarchies()
        for name in ("memory.limit_in_bytes", "memory.max")
        if (path := hierarchy / own / name).exists()
    ]
    return int(found[0].read_text())


def test_addresses_are_reached_from_everywhere(bed: Bed, namespace: str, web: dict[str, Any]) -> None:
    kubectl(bed, "expose", "-n", namespace, "pod/web", "--port=8000", "--target-port=80")
    service = json.loads(kubectl(bed, "get", "-n", namespace, "service/web", "-o", "json"))
    cluster_ip = service["spec"]["clusterIP"]
    said = fetch(web["status"]["podIP"])

    def answers() -> bool:
        try:
            return fetch(cluster_ip, 8000) == said
        except OSError:
            return False

    wait_until(answers, "the Service to reach its Pod from the machine")
    inside = kubectl(
        bed, "exec", "-n", namespace, "web", "--", "wget", "-q", "-O-", f"http://{cluster_ip}:8000/"
    )
    assert inside == said
    path = f"/api/v1/namespaces/{namespace}/pods/web/proxy/"
    assert kubectl(bed, "get", "--raw", path) == said
    # A plain request to a TLS port: the API server's refusal shows that the Pod spoke to it.
    talk = 'printf "GET / HTTP/1.0\\r\\n\\r\\n" | nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT'
    assert "HTTPS server" in kubectl(bed, "exec", "-n", namespace, "web", "--", "sh", "-c", talk)


def by_hand(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHECKOUT / "hack" / "cluster"), "--dir", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_running_cluster_is_used_by_hand(bed: Bed) -> None:
    shown = by_hand(bed.layout.folder, "env").stdout
    assert f'export KUBECONFIG="{bed.kubeconfig}"' in shown
    in_a_shell = f"{shown} kubectl get nodes -o name && ctr images list -q"
    said = subprocess.run(["bash", "-c", in_a_shell], capture_output=True, text=True).stdout.splitlines()
    assert f"node/{NODE}" in said
    assert IMAGE in said
    assert bed.layout.node_address in by_hand(bed.layout.folder, "enter", "ip", "address").stdout


def test_a_folder_without_a_cluster_is_refused_and_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "letter.txt"
    kept.write_text("mine")
    for verb, reason in (("env", "No cluster runs in"), ("down", "holds something that is no test cluster")):
        refused = by_hand(tmp_path, verb)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert reason in refused.stderr
        assert "Traceback" not in refused.stderr
    assert kept.read_text() == "mine"


def traces(layout: Layout) -> list[str]:
    """What a cluster could leave on the machine."""
    links = [f"/sys/class/net/{layout.link}"]
    cgroups = [str(hierarchy / layout.cgroup) for hierarchy in cgroup_hierarchies()]
    found = [path for path in (*links, *cgroups, *NODES_FOLDERS, str(layout.folder)) if Path(path).exists()]
    shown = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (["ip", "route"], ["nft", "list", "tables"], ["cat", "/proc/self/mounts"])
    ]
    words = (layout.link, "kube-proxy", str(layout.folder))
    found += [line for text in shown for line in text.splitlines() if any(word in line for word in words)]
    return found


def programs_in(folder: Path) -> list[str]:
    """The processes that name this folder: the programs, and the shims of the containers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if str(folder) in command:
            found.append(command)
    return found


KILLED_WHILE_IT_RUNS = """
import signal, sys
from pathlib import Path
from tests.cluster import bed
started = bed.start(Path(sys.argv[1]), keep=False)
for words in (
    ("run", "left", "--image={image}", "--image-pull-policy=Never"),
    ("wait", "pod/left", "--for=condition=Ready", "--timeout=120s"),
):
    done = started.run("kubectl", *words)
    assert done.returncode == 0, done.stderr
print("running", flush=True)
signal.pause()
"""


def test_a_cluster_leaves_nothing_even_after_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    script = KILLED_WHILE_IT_RUNS.replace("{image}", IMAGE)
    with subprocess.Popen(
        [sys.executable, "-c", script, folder], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout and user.stdout.readline() == "running\n"
        running = beds.find(folder)
        assert running
        programs = programs_in(folder)
        assert len(programs) >= 8
        assert any("containerd-shim" in each for each in programs)
        assert len(traces(running.layout)) >= 4  # folder, link, route, control groups
        user.send_signal(signal.SIGKILL)
    # Nobody is told when the kernel has ended the last of them.
    wait_until(lambda: not programs_in(folder), "every program of the cluster to end")
    assert beds.find(folder) is None
    beds.stop(folder)
    assert traces(running.layout) == []
