"""The files that a test cluster starts from: certificates, kubeconfigs and the programs' configurations."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from hotvirt.kube import x509

from .bed_layout import IMAGE, NODE, Layout

VALID = timedelta(days=365)
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": None,
    "system:kube-scheduler": None,
    "system:kube-proxy": None,
    f"system:node:{NODE}": "system:nodes",
}


def write(layout: Layout) -> None:
    for folder in ("pki", "config", "config/cni", "logs"):
        (layout.folder / folder).mkdir(parents=True, exist_ok=True)
    (layout.folder / "pki").chmod(0o700)
    write_certificates(layout)
    for name, document in configurations(layout).items():
        layout.config(name).write_text(yaml.safe_dump(document, sort_keys=False))
    layout.config("cni/10-bridge.conflist").write_text(json.dumps(cni(layout)))
    layout.config("containerd.toml").write_text(containerd(layout))


def kubeconfig(layout: Layout, user: str) -> Path:
    return layout.kubeconfig if user == "admin" else layout.pki(f"{user.replace(':', '-')}.kubeconfig")


def write_certificates(layout: Layout) -> None:
    now = datetime.now(UTC)
    ca = x509.make_ca(x509.name("test-cluster"), VALID, now)
    front = x509.make_ca(x509.name("test-cluster-front-proxy"), VALID, now)
    save(layout, "ca", ca)
    save(layout, "front-proxy-ca", front)
    server_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    server_addresses = [layout.node_address, layout.first_service, "127.0.0.1"]
    name = x509.name("kube-apiserver")
    server = x509.make(ca, name, VALID, now, [x509.SERVER], server_names, server_addresses)
    save(layout, "apiserver", server)
    kubelet = x509.name(f"system:node:{NODE}", "system:nodes")
    addresses = [layout.node_address, "127.0.0.1"]
    save(layout, "kubelet", x509.make(ca, kubelet, VALID, now, [x509.SERVER], [NODE], addresses))
    to_kubelet = x509.name("kube-apiserver-kubelet-client", "system:masters")
    save(layout, "apiserver-kubelet-client", x509.make(ca, to_kubelet, VALID, now, [x509.CLIENT]))
    proxy = x509.name("front-proxy-client")
    save(layout, "front-proxy-client", x509.make(front, proxy, VALID, now, [x509.CLIENT]))
    accounts = x509.name("service-accounts")
    save(layout, "service-accounts", x509.make(None, accounts, VALID, now, [x509.CLIENT]))
    for user, group in USERS.items():
        pair = x509.make(ca, x509.name(user, group), VALID, now, [x509.CLIENT])
        write_kubeconfig(kubeconfig(layout, user), layout.server, ca, user, pair)


def save(layout: Layout, name: str, pair: x509.Pair) -> None:
    layout.pki(f"{name}.crt").write_bytes(pair.certificate_pem)
    layout.pki(f"{name}.key").write_bytes(pair.key_pem)


def write_kubeconfig(path: Path, server: str, ca: x509.Pair, user: str, pair: x509.Pair) -> None:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": server, "certificate-authority-data": encoded(ca.certificate_pem)}
    credentials = {
        "client-certificate-data": encoded(pair.certificate_pem),
        "client-key-data": encoded(pair.key_pem),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def configurations(layout: Layout) -> dict[str, Any]:
    return {
        "kubelet.yaml": kubelet(layout),
        "kube-proxy.yaml": kube_proxy(layout),
        "audit-policy.yaml": {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                # Nobody asks for them, and there are so many that the log would begin anew.
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "RequestResponse", "resources": [{"group": "", "resources": ["pods/resize"]}]},
                {"level": "Metadata"},
            ],
        },
    }


def kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki("ca.crt"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki("kubelet.crt")),
        "tlsPrivateKeyFile": str(layout.pki("kubelet.key")),
        "containerRuntimeEndpoint": f"unix://{layout.containerd}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # A machine that is nearly full, or that may not lower its score for the OOM killer, is good enough.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "oomScoreAdj": 0,
        # Images come from archives: one that is thrown away could not be had again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # There is no DNS in the cluster: Pods find Services by address.
        "resolvConf": "",
        # With it a Guaranteed Pod cannot change its cpu: the one size that this kubelet calls infeasible. It
        # wants something to be reserved.
        "cpuManagerPolicy": "static",
        "kubeReserved": {"cpu": "100m"},
        # Tests wait for these.
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }


def kube_proxy(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NODE,
        "clusterCIDR": layout.pods,
        "clientConnection": {"kubeconfig": str(kubeconfig(layout, "system:kube-proxy"))},
        "healthzBindAddress": "127.0.0.1:10256",
        "oomScoreAdj": 0,
        # Two Pods on one bridge: the answer must come back through the node, where the address was changed.
        "nftables": {"masqueradeAll": True, "minSyncPeriod": "0s"},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def cni(layout: Layout) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "test-cluster",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": layout.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def containerd(layout: Layout) -> str:
    # restrict_oom_score_adj: a negative score needs CAP_SYS_RESOURCE, and runc fails without it.
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{layout.containerd}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{layout.config("cni")}"
"""
