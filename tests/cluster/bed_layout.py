"""Where the parts of one test cluster are: its addresses, its folder, and the paths inside of it.

A cluster has network, mounts and processes of its own (see bed_init.py), so ports, tables and paths are the
usual ones of a node. What it shares with the machine carries its number: a /16 of addresses, one network link
and one control group. So several clusters can run at once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

NUMBERS = range(16)
NODE = "node-a"
IMAGE = "localhost/busybox:1"
"""Made here from Debian's busybox: the image of the sandboxes and of small Pods in tests."""
CGROUP_PREFIX = "hotvirt-cluster-"
LINK_PREFIX = "hvcluster"
PRIVATE_FOLDERS = {"/var/lib": "lib", "/var/log": "log"}
"""Folders of the machine that the cluster sees as folders of its own, and where those are."""
HIDDEN = (*PRIVATE_FOLDERS, "/run")


@dataclass(frozen=True)
class Layout:
    number: int
    folder: Path
    programs: Path

    @property
    def network(self) -> str:
        return f"10.{208 + self.number}"

    @property
    def block(self) -> str:
        return f"{self.network}.0.0/16"

    @property
    def pods(self) -> str:
        return f"{self.network}.0.0/20"

    @property
    def services(self) -> str:
        return f"{self.network}.16.0/20"

    @property
    def first_service(self) -> str:
        """The API server, as Pods see it."""
        return f"{self.network}.16.1"

    @property
    def machine_address(self) -> str:
        """The machine's end of the link to the node."""
        return f"{self.network}.255.1"

    @property
    def node_address(self) -> str:
        return f"{self.network}.255.2"

    @property
    def server(self) -> str:
        return f"https://{self.node_address}:6443"

    @property
    def link(self) -> str:
        return f"{LINK_PREFIX}{self.number}"

    @property
    def cgroup(self) -> str:
        return f"{CGROUP_PREFIX}{self.number}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.folder / "logs" / "audit.log"

    @property
    def containerd(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def failure(self) -> Path:
        """Why the cluster ended, when it ended by itself."""
        return self.folder / "failure"

    @property
    def kubelet_root(self) -> Path:
        """`/var/lib/kubelet` of the node, as the machine sees it (its mounts are the node's alone)."""
        return self.folder / PRIVATE_FOLDERS["/var/lib"] / "kubelet"

    def pki(self, name: str) -> Path:
        return self.folder / "pki" / name

    def config(self, name: str) -> Path:
        return self.folder / "config" / name

    def log(self, program: str) -> Path:
        return self.folder / "logs" / f"{program}.log"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        fields = json.loads(text)
        return cls(fields["number"], Path(fields["folder"]), Path(fields["programs"]))
