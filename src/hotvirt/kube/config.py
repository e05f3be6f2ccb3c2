"""Where an API is and how to get in: kubeconfig files, a Pod's service account, or a unix socket.

Standard library only (PyYAML when a kubeconfig is read), so that short commands start quickly.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConfigError(Exception):
    """The configuration cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class ClientConfig:
    server: str = "http://localhost"
    ca_data: bytes | None = None
    token: str | None = None
    cert_data: bytes | None = None
    key_data: bytes | None = None
    unix_socket: Path | None = None
    namespace: str = "default"
    token_file: Path | None = None
    """Read again before it is used: a service account's token is renewed in place."""
    verify_tls: bool = True
    tls_server_name: str | None = None

    def bearer_token(self) -> str | None:
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.token

    def ssl_context(self) -> ssl.SSLContext | None:
        """None where the way in is not TLS."""
        if self.unix_socket is not None or not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.ca_data.decode() if self.ca_data else None)
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_data and self.key_data:
            with memory_file(self.cert_data + b"\n" + self.key_data) as path:
                context.load_cert_chain(path)
        return context


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """OpenSSL reads keys from a path only; this one is never on a disk."""
    fd = os.memfd_create("hotvirt-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def kubeconfig_paths(path: Path | str | None = None) -> list[Path]:
    """The files that count: the given one, else those in KUBECONFIG, else ~/.kube/config."""
    if path is not None:
        return [Path(path)]
    if named := os.environ.get("KUBECONFIG"):
        return [Path(part) for part in named.split(os.pathsep) if part]
    return [Path.home() / ".kube" / "config"]


def load_kubeconfig(path: Path | str | None = None, context: str | None = None) -> ClientConfig:
    """Read a kubeconfig as kubectl does: several files merge, the first to name a thing wins."""
    paths = kubeconfig_paths(path)
    merged: dict[str, dict[str, tuple[Any, Path]]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = context or ""
    found = False
    for file in paths:
        document = _read(file, required=path is not None)
        if document is None:
            continue
        found = True
        current = current or document.get("current-context") or ""
        for section, singular in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for entry in document.get(section) or []:
                merged[section].setdefault(entry["name"], (entry.get(singular) or {}, file))
    names = ", ".join(str(file) for file in paths)
    if not found:
        raise ConfigError(f"There is no kubeconfig at {names}.")
    if current not in merged["contexts"]:
        raise ConfigError(f"The kubeconfig {names} has no context {current!r}.")
    chosen, _ = merged["contexts"][current]
    cluster, cluster_file = merged["clusters"].get(chosen.get("cluster", ""), (None, Path()))
    if cluster is None:
        raise ConfigError(f"The kubeconfig {names} has no cluster {chosen.get('cluster')!r}.")
    user, user_file = merged["users"].get(chosen.get("user", ""), ({}, Path()))
    for unsupported in ("exec", "auth-provider", "username"):
        if unsupported in user:
            raise ConfigError(
                f"The user {chosen.get('user')!r} of the kubeconfig logs in with {unsupported!r}, which "
                "Hotvirt does not do: use a token or a client certificate."
            )
    token_file = user.get("tokenFile")
    return ClientConfig(
        server=str(cluster["server"]).rstrip("/"),
        ca_data=_data(cluster, "certificate-authority", cluster_file),
        token=user.get("token"),
        cert_data=_data(user, "client-certificate", user_file),
        key_data=_data(user, "client-key", user_file),
        namespace=chosen.get("namespace") or "default",
        token_file=(user_file.parent / token_file) if token_file else None,
        verify_tls=not cluster.get("insecure-skip-tls-verify", False),
        tls_server_name=cluster.get("tls-server-name"),
    )


def _read(path: Path, *, required: bool) -> dict[str, Any] | None:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(path.read_bytes(), loader)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"There is no kubeconfig at {path}.") from None
        return None
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"The kubeconfig {path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"The file {path} is not a kubeconfig.")
    return document


def _data(section: dict[str, Any], key: str, file: Path) -> bytes | None:
    if inline := section.get(f"{key}-data"):
        try:
            return base64.b64decode(inline)
        except binascii.Error as error:
            raise ConfigError(f"The field {key}-data in {file} is not base64.") from error
    if named := section.get(key):
        try:
            return file.parent.joinpath(str(named)).read_bytes()
        except OSError as error:
            raise ConfigError(f"The {key} that {file} names cannot be read: {error}") from error
    return None


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> ClientConfig:
    """The way in from a Pod: its service account's token, renewed in place by the kubelet."""
    if not (folder / "token").exists():
        raise ConfigError(f"This is not a Pod with a service account: there is no {folder / 'token'}.")
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if ":" in host:
        host = f"[{host}]"
    namespace = folder / "namespace"
    return ClientConfig(
        server=f"https://{host}:{port}",
        ca_data=(folder / "ca.crt").read_bytes(),
        token_file=folder / "token",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )
