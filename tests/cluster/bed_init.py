"""The first process of a test cluster: it makes the node's own view of the machine and runs the programs.

It is started as process 1 of new network, mount and process namespaces, and that is what makes the cluster
easy to remove: when this process ends, however it ends, the kernel ends every program, shim and container,
and with them go all mounts, links, routes and nftables. When a program ends by itself, the cluster ends too.

It says `here` on stdout, gets the layout as a line on stdin once the machine has given it a link, and then
says nothing more: whether the cluster is ready, its API tells.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.targets.target import wait_until

from .bed_files import kubeconfig
from .bed_layout import NODE, PRIVATE_FOLDERS, Layout

CGROUPS = Path("/sys/fs/cgroup")
ETCD = "http://127.0.0.1:2379"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
KUBELET = f"system:node:{NODE}"

# The kubelet sets these for the whole machine where they differ. It is shown what it wants to see instead.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


class Ended(Exception):
    """A program of the cluster ended; which one, and what it said."""


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def make_mounts(layout: Layout) -> None:
    # Shared within the node, so that a Pod's mounts can reach its host; the machine sees none of them.
    run("mount", "--make-rshared", "/")
    for path, own in PRIVATE_FOLDERS.items():
        (layout.folder / own).mkdir(exist_ok=True)
        run("mount", "--bind", layout.folder / own, path)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for setting, value in KERNEL_SETTINGS.items():
        shown = Path("/run/kernel-settings") / setting
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        run("mount", "--bind", shown, Path("/proc/sys") / setting)


def make_network(layout: Layout) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{layout.node_address}/30", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", layout.machine_address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def make_cgroups(layout: Layout) -> None:
    for hierarchy in cgroup_hierarchies():
        (hierarchy / layout.cgroup).mkdir(exist_ok=True)


def cgroup_hierarchies() -> Iterator[Path]:
    """The unified one, or one for each controller of version 1 (where links name some twice)."""
    if (CGROUPS / "cgroup.controllers").exists():
        yield CGROUPS
        return
    for path in CGROUPS.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield path


class Programs:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._running: dict[int, str] = {}

    def start(self, name: str, *arguments: str, program: str | Path | None = None) -> None:
        with self._layout.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(program or self._layout.programs / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running[process.pid] = name

    def check(self) -> None:
        """Collect what has ended, orphans too: this is process 1. A program that ended is the end of all."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._collected(pid, status)

    def watch(self) -> None:
        while True:
            self._collected(*os.waitpid(-1, 0))

    def _collected(self, pid: int, status: int) -> None:
        if name := self._running.get(pid):
            tail = self._layout.log(name).read_text(errors="replace").splitlines()[-25:]
            said = "\n".join(tail)
            raise Ended(f"{name} ended ({os.waitstatus_to_exitcode(status)}). It said last:\n{said}")


def start_etcd(programs: Programs, layout: Layout) -> None:
    peer = "http://127.0.0.1:2380"
    programs.start(
        "etcd",
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    )


def start_apiserver(programs: Programs, layout: Layout) -> None:
    pki = layout.pki
    programs.start(
        "kube-apiserver",
        f"--etcd-servers={ETCD}",
        "--secure-port=6443",
        f"--advertise-address={layout.node_address}",
        f"--tls-cert-file={pki('apiserver.crt')}",
        f"--tls-private-key-file={pki('apiserver.key')}",
        f"--client-ca-file={pki('ca.crt')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={layout.services}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki('service-accounts.crt')}",
        f"--service-account-signing-key-file={pki('service-accounts.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki('ca.crt')}",
        f"--kubelet-client-certificate={pki('apiserver-kubelet-client.crt')}",
        f"--kubelet-client-key={pki('apiserver-kubelet-client.key')}",
        "--enable-aggregator-routing=true",
        f"--proxy-client-cert-file={pki('front-proxy-client.crt')}",
        f"--proxy-client-key-file={pki('front-proxy-client.key')}",
        f"--requestheader-client-ca-file={pki('front-proxy-ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--audit-policy-file={layout.config('audit-policy.yaml')}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=10000",
    )


def start_controllers(programs: Programs, layout: Layout) -> None:
    programs.start(
        "kube-controller-manager",
        f"--kubeconfig={kubeconfig(layout, CONTROLLER_MANAGER)}",
        f"--authentication-kubeconfig={kubeconfig(layout, CONTROLLER_MANAGER)}",
        f"--authorization-kubeconfig={kubeconfig(layout, CONTROLLER_MANAGER)}",
        f"--service-account-private-key-file={layout.pki('service-accounts.key')}",
        f"--root-ca-file={layout.pki('ca.crt')}",
        "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
    )
    programs.start(
        "kube-scheduler",
        f"--kubeconfig={kubeconfig(layout, SCHEDULER)}",
        f"--authentication-kubeconfig={kubeconfig(layout, SCHEDULER)}",
        f"--authorization-kubeconfig={kubeconfig(layout, SCHEDULER)}",
        "--leader-elect=false",
    )


def start_node(programs: Programs, layout: Layout) -> None:
    programs.start(
        "kubelet",
        f"--config={layout.config('kubelet.yaml')}",
        f"--kubeconfig={kubeconfig(layout, KUBELET)}",
        f"--hostname-override={NODE}",
        f"--node-ip={layout.node_address}",
    )
    programs.start("kube-proxy", f"--config={layout.config('kube-proxy.yaml')}")


def wait_for(programs: Programs, url: str, what: str, tls: ssl.SSLContext | None = None) -> None:
    def answers() -> bool:
        programs.check()
        try:
            with urllib.request.urlopen(url, timeout=5, context=tls) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(answers, what)


def start_all(programs: Programs, layout: Layout) -> None:
    programs.start("containerd", f"--config={layout.config('containerd.toml')}", program="containerd")
    start_etcd(programs, layout)
    wait_for(programs, f"{ETCD}/health", "etcd")
    start_apiserver(programs, layout)
    trust = ssl.create_default_context(cafile=str(layout.pki("ca.crt")))
    wait_for(programs, f"{layout.server}/readyz", "kube-apiserver to be ready", trust)
    start_controllers(programs, layout)
    start_node(programs, layout)


def main() -> int:
    print("here", flush=True)
    line = sys.stdin.readline()
    if not line:
        return 1  # whoever started this is gone
    layout = Layout.from_json(line)
    try:
        make_mounts(layout)
        make_network(layout)
        make_cgroups(layout)
        programs = Programs(layout)
        start_all(programs, layout)
        programs.watch()
    except (OSError, subprocess.CalledProcessError, TimeoutError, Ended) as failure:
        layout.failure.write_text(f"{time.strftime('%H:%M:%S')} {failure}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
