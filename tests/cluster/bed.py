"""A real Kubernetes cluster of one node on this machine, for tests and for trying things out.

Control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) and node (kubelet, kube-proxy,
containerd, a CNI bridge) run in namespaces of their own; bed_init.py says how. On the machine there is only
what `Layout` numbers: one link with a route to the cluster's addresses, and one control group. `stop` removes
them, and what a cluster left that was killed is removed by the next `start` or `stop`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.targets import real
from tests.targets.target import CHECKOUT, Target, die_with_parent, wait_until

from . import bed_files
from .bed_image import write_busybox_archive
from .bed_init import CGROUPS, cgroup_hierarchies
from .bed_layout import CGROUP_PREFIX, HIDDEN, LINK_PREFIX, NODE, NUMBERS, Layout

PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
FROM_DEBIAN = ("containerd", "ctr", "runc", "nft", "ip", "busybox", "unshare", "/usr/lib/cni/bridge")
STATE = "state.json"
LINKS = Path("/sys/class/net")
TEMPORARY = "hotvirt-cluster-"
"""How the temporary folders of test runs begin."""
SEARCH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Users' shells often leave out the folders that hold nft and friends."""


class CannotStart(Exception):
    """Why there is no cluster, as a sentence for a person."""


@dataclass(frozen=True)
class Bed:
    """A running cluster."""

    layout: Layout
    init: int
    """The process that everything in it ends with."""

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def environment(self) -> dict[str, str]:
        """What makes kubectl and ctr use this cluster."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "CONTAINERD_ADDRESS": str(self.layout.containerd),
            "CONTAINERD_NAMESPACE": "k8s.io",
            "PATH": f"{self.layout.programs}:{SEARCH}",
        }

    def run(
        self, *command: str | Path, input: str | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            env=os.environ | self.environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def import_images(self, *archives: Path) -> None:
        """Docker or OCI archives; Pods use them with imagePullPolicy Never or IfNotPresent."""
        for archive in archives:
            imported = self.run("ctr", "images", "import", archive)
            if imported.returncode:
                raise RuntimeError(f"{archive} could not be imported: {imported.stderr.strip()}")

    def enter(self, *command: str) -> list[str]:
        """The command line that runs `command` on the node, as ssh would."""
        return ["nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "--", *command]


def start(folder: Path, *, keep: bool) -> Bed:
    """Start a cluster, or find it running. Without `keep` it ends when this process ends."""
    folder = folder.resolve()
    if running := find(folder):
        return running
    programs = real.programs(*PROGRAMS)
    check_machine(folder, programs)
    stop(folder)
    with only_one():
        sweep()
        bed, process = start_init(folder, programs, keep)
    try:
        wait_until_ready(bed)
    except BaseException:
        stop(folder, forget=False)
        raise
    finally:
        if not keep:
            KEPT[folder] = process
    return bed


KEPT: dict[Path, subprocess.Popen[str]] = {}
"""Clusters that end with this process, to be collected when they have ended."""


def check_machine(folder: Path, programs: Path) -> None:
    if os.geteuid() != 0:
        raise CannotStart("The test cluster needs root: it makes namespaces, links and control groups.")
    if lacking := [name for name in FROM_DEBIAN if not shutil.which(name, path=SEARCH)]:
        raise CannotStart(f"{', '.join(lacking)} missing: `hack/setup test` installs what the cluster needs.")
    for needed in (folder, programs, CHECKOUT, Path(sys.executable)):
        for hidden in HIDDEN:
            if needed.is_relative_to(hidden):
                raise CannotStart(f"{needed} is in {hidden}, which the node has for itself: move it.")


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """One start at a time: they choose numbers. The lock is on a folder that every machine has."""
    descriptor = os.open(CGROUPS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def start_init(folder: Path, programs: Path, keep: bool) -> tuple[Bed, subprocess.Popen[str]]:
    layout = Layout(free_number(), folder, programs)
    folder.mkdir(parents=True, exist_ok=True)
    state_file(folder).write_text("{}")
    bed_files.write(layout)
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", "tests.cluster.bed_init"),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"PATH": SEARCH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=layout.log("init").open("wb"),
        text=True,
        start_new_session=True,
        preexec_fn=None if keep else die_with_parent,
    )
    assert process.stdin and process.stdout
    if process.stdout.readline() != "here\n":
        raise CannotStart(f"No namespaces for the cluster: {layout.log('init').read_text().strip()}")
    init = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    state = {"layout": layout.to_json(), "init": init, "network": network_of(init)}
    state_file(folder).write_text(json.dumps(state))
    make_link(layout, init)
    process.stdin.write(layout.to_json() + "\n")
    process.stdin.close()
    return Bed(layout, init), process


def make_link(layout: Layout, init: int) -> None:
    """The other end is born in the node's namespace: when that goes, they go. Its alias names it."""
    ip("link", "add", layout.link, "type", "veth", "peer", "name", "eth0", "netns", str(init))
    ip("link", "set", layout.link, "alias", f"{init} {network_of(init)}")
    ip("address", "add", f"{layout.machine_address}/30", "dev", layout.link)
    ip("link", "set", layout.link, "up")
    ip("route", "add", layout.block, "via", layout.node_address)


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise CannotStart(f"ip {' '.join(words)}: {done.stderr.strip()}")


def free_number() -> int:
    for number in NUMBERS:
        if not has_link(number):
            return number
    raise CannotStart(f"{len(NUMBERS)} test clusters run on this machine; stop one with `hack/cluster down`.")


def has_link(number: int) -> bool:
    return (LINKS / Layout(number, Path(), Path()).link).exists()


def owner_ended(link: Path) -> bool:
    try:
        named = (link / "ifalias").read_text().split()
    except OSError:
        return False  # it went while we looked
    return len(named) == 2 and not is_init(*map(int, named))


def sweep() -> None:
    """Remove what clusters left that were killed: all but this went with their namespaces."""
    for link in LINKS.glob(f"{LINK_PREFIX}*"):
        # The kernel keeps it for minutes when a connection into the cluster was cut in the middle.
        if owner_ended(link):
            subprocess.run(["ip", "link", "delete", link.name], capture_output=True)
    for hierarchy in cgroup_hierarchies():
        for path in hierarchy.glob(f"{CGROUP_PREFIX}*"):
            if not has_link(int(path.name.removeprefix(CGROUP_PREFIX))):
                remove_cgroup(path)
    for state in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/*/{STATE}"):
        if find(state.parent) is None:
            shutil.rmtree(state.parent.parent)


def remove_cgroup(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        # A process that was just killed leaves its group a moment later; in version 1 no event tells of it.
        wait_until(partial(removed, Path(folder)), f"{folder} to become empty")


def removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def wait_until_ready(bed: Bed) -> None:
    layout = bed.layout

    def alive() -> None:
        if layout.failure.exists():
            raise CannotStart(layout.failure.read_text().strip())
        if find(layout.folder) is None:
            raise CannotStart(f"The cluster was stopped. {layout.log('init').read_text().strip()}")

    def runtime_answers() -> bool:
        alive()
        return bed.run("ctr", "version").returncode == 0

    wait_until(runtime_answers, "containerd to answer")
    archive = layout.folder / "busybox.tar"
    write_busybox_archive(archive)
    bed.import_images(archive)
    target = Target("cluster", bed.kubeconfig)

    def answer(path: str) -> dict[str, Any] | None:
        try:
            status, body = target.request("GET", path)
        except OSError:
            return None
        return body if status == 200 else None

    def node_is_ready() -> bool:
        alive()
        node = answer(f"/api/v1/nodes/{NODE}")
        conditions = node["status"].get("conditions", []) if node else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    wait_until(node_is_ready, "the node to be ready")
    # The last thing that a Pod needs before the API server takes it.
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait_until(lambda: answer(account) is not None, "the first service account")


def state_file(folder: Path) -> Path:
    return folder / STATE


def network_of(process: int) -> int:
    return Path(f"/proc/{process}/ns/net").stat().st_ino


def is_init(process: int, network: int) -> bool:
    """Whether this process runs and has that network: its number alone could be another's by now."""
    try:
        return network_of(process) == network
    except OSError:
        return False


def find(folder: Path) -> Bed | None:
    """The cluster of this folder, when it runs."""
    try:
        state = json.loads(state_file(folder).read_text())
    except FileNotFoundError:
        return None
    if not state:
        return None
    if not is_init(state["init"], state["network"]):
        return None
    return Bed(Layout.from_json(state["layout"]), state["init"])


def stop(folder: Path, *, forget: bool = True) -> None:
    """Stop the cluster of this folder and remove all that it left; its logs stay with `forget=False`."""
    folder = folder.resolve()
    if bed := find(folder):
        kill(bed.init)
    if process := KEPT.pop(folder, None):
        process.wait()
    with only_one():
        if forget and folder.exists():
            if any(folder.iterdir()) and not state_file(folder).exists():
                raise CannotStart(f"{folder} holds something that is no test cluster: name another folder.")
            shutil.rmtree(folder)
        sweep()


def kill(init: int) -> None:
    """Kill the first process; the kernel tells of its end when all others have ended."""
    try:
        descriptor = os.pidfd_open(init)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
    except ProcessLookupError:
        pass  # it ended by itself in between
    finally:
        os.close(descriptor)
