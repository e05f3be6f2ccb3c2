"""A real kube-apiserver on an etcd of its own, in a folder that is thrown away."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hotvirt.kube.x509 import CLIENT, make, make_ca, name

from .target import CHECKOUT, Target, free_ports, start_process, stop_process, wait_until

BUILD = CHECKOUT / "hack" / "kube" / "build"
PROGRAMS = ("etcd", "kube-apiserver")


def programs(*names: str, minor: str | None = None) -> Path:
    """The folder with the Kubernetes programs, built first where they are missing (its progress shows)."""
    version = ["--minor", minor] if minor else []
    built = subprocess.run([str(BUILD), *version, *names], stdout=subprocess.PIPE, text=True)
    if built.returncode:
        raise RuntimeError("The Kubernetes programs to test against are missing; hack/kube/build says why.")
    return Path(built.stdout.splitlines()[-1])


def start(
    folder: Path,
    *,
    aggregates: bool = False,
    crds: bool = True,
    minor: str | None = None,
) -> Target:
    """`aggregates`: it proxies to APIServices, and vouches for users by the request headers."""
    binaries = programs(*PROGRAMS, minor=minor)
    with ExitStack() as started:
        etcd = start_etcd(binaries, folder, started)
        more = aggregation(folder) if aggregates else ()
        target = start_apiserver(binaries, folder, etcd, started, more)
        if crds:
            install_hotvirts_crds(target)
        target.stop = started.pop_all().close
    return target


def start_etcd(binaries: Path, folder: Path, started: ExitStack) -> str:
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    log = folder / "etcd.log"
    command = [str(binaries / "etcd"), f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"]
    command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
    command += [f"--initial-cluster=default={peer}"]
    process = start_process(command, log)
    started.callback(stop_process, process)

    def healthy() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"etcd ended:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{client}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(healthy, "etcd")
    have_a_past(client)
    return client


def aggregation(folder: Path) -> list[str]:
    """The flags, and the certificates that they name."""
    now, valid = datetime.now(UTC), timedelta(days=30)
    ca = make_ca(name("front-proxy-ca"), valid, now)
    proxy = make(ca, name("front-proxy-client"), valid, now, [CLIENT])
    files = {"ca.crt": ca.certificate_pem, "proxy.crt": proxy.certificate_pem, "proxy.key": proxy.key_pem}
    for file, content in files.items():
        (folder / f"front-{file}").write_bytes(content)
    return [
        f"--requestheader-client-ca-file={folder / 'front-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder / 'front-proxy.crt'}",
        f"--proxy-client-key-file={folder / 'front-proxy.key'}",
    ]


def start_apiserver(
    binaries: Path, folder: Path, etcd: str, started: ExitStack, more: Sequence[str] = ()
) -> Target:
    (port,) = free_ports(1)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "sa.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    log = folder / "kube-apiserver.log"
    process = start_process(
        [
            str(binaries / "kube-apiserver"),
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder / 'pki'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=true",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            # Without a controller-manager nobody makes the account `default`, and every Pod would be refused.
            "--disable-admission-plugins=ServiceAccount",
            *more,
        ],
        log,
    )
    started.callback(stop_process, process)
    certificate = folder / "pki" / "apiserver.crt"

    def has_certificate() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"kube-apiserver ended:\n{log.read_text()[-3000:]}")
        return certificate.exists() and certificate.stat().st_size > 0

    wait_until(has_certificate, "kube-apiserver to make its certificate")
    target = Target("real", write_kubeconfig(folder, port, token))

    def ready() -> bool:
        try:
            return has_certificate() and target.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    wait_until(ready, "kube-apiserver to be ready")
    return target


def write_kubeconfig(folder: Path, port: int, token: str) -> Path:
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": "pki/apiserver.crt"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def install_hotvirts_crds(target: Target) -> None:
    for path in sorted((CHECKOUT / "deploy" / "crds").glob("*.yaml")):
        for crd in yaml.safe_load_all(path.read_text()):
            if crd:
                target.install_crd(crd)


def have_a_past(etcd: str) -> None:
    """Make and forget some revisions, as a server that ran for a while has: resourceVersion 1 is too old."""

    def call(method: str, body: dict[str, str]) -> None:
        request = urllib.request.Request(f"{etcd}/v3/kv/{method}", json.dumps(body).encode(), method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    key = base64.b64encode(b"hotvirt-tests").decode()
    for _ in range(9):
        call("put", {"key": key, "value": key})
    call("compaction", {"revision": "9"})
