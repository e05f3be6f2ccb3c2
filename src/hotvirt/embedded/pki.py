"""Who is who in one-machine mode: its own CA, certificates, tokens and the kubeconfig.

Everything lies in `pki/` of the state folder, readable by its owner only. Certificates are renewed at start
when they have less than a month left. The components' tokens are made anew at each start and never on a disk.
`pki/tokens.csv` may name more users, in the form that kube-apiserver takes: `token,user,uid,"group1,group2"`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from hotvirt.api.names import MASTERS_GROUP
from hotvirt.kube.x509 import CLIENT, SERVER, Pair, load_pair, make, make_ca, name, server_context

from .state import StateError, write_atomically

ADMIN = "hotvirt-admin"
RENEW_BEFORE = timedelta(days=30)
CA_VALID = timedelta(days=3650)
CERT_VALID = timedelta(days=730)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
SERVER_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""


class Pki:
    def __init__(self, ca: Pair, server: Pair, admin: Pair, users: dict[bytes, User]) -> None:
        self._ca = ca
        self._server = server
        self._admin = admin
        self._users = users

    @classmethod
    def open(cls, folder: Path, now: datetime | None = None) -> Pki:
        """What is in `folder`, made or renewed where that is needed."""
        now = now or datetime.now(UTC)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            ca = _load(folder / "ca.pem")
            fresh = ca is None or not _usable(ca, now)
            if ca is None or fresh:
                ca = make_ca(name("hotvirt-ca"), CA_VALID, now)
                _save(folder / "ca.pem", ca)
            server = None if fresh else _load(folder / "server.pem")
            if server is None or not _usable(server, now):
                server = make(
                    ca, name("hotvirt-api"), CERT_VALID, now, [SERVER], SERVER_NAMES, SERVER_ADDRESSES
                )
                _save(folder / "server.pem", server)
            admin = None if fresh else _load(folder / "admin.pem")
            if admin is None or not _usable(admin, now):
                admin = make(ca, name(ADMIN, MASTERS_GROUP), CERT_VALID, now, [CLIENT])
                _save(folder / "admin.pem", admin)
            return cls(ca, server, admin, _static_users(folder / "tokens.csv"))
        except (OSError, ValueError) as error:
            raise StateError(
                f"The certificates in {folder} cannot be used: {error}. Remove the folder to get new ones."
            ) from error

    @property
    def ca_pem(self) -> bytes:
        return self._ca.certificate_pem

    def server_context(self) -> ssl.SSLContext:
        """For the API server: shows its certificate, takes a client's certificate of our CA, or none."""
        return server_context(self._server.certificate_pem, self._server.key_pem, self.ca_pem)

    def user_of_token(self, token: str) -> User | None:
        return self._users.get(_digest(token))

    def token_for(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A new token for one of our own components, valid as long as this process."""
        token = secrets.token_urlsafe(32)
        self._users[_digest(token)] = User(name, groups)
        return token

    def write_kubeconfig(self, path: Path, server: str) -> None:
        def encoded(data: bytes) -> str:
            return base64.b64encode(data).decode()

        name = "hotvirt"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": server, "certificate-authority-data": encoded(self.ca_pem)},
                }
            ],
            "users": [
                {
                    "name": ADMIN,
                    "user": {
                        "client-certificate-data": encoded(self._admin.certificate_pem),
                        "client-key-data": encoded(self._admin.key_pem),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": ADMIN}}],
        }
        write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode(), 0o600)


def _digest(token: str) -> bytes:
    """Tokens are looked up by digest, so that the time it takes says nothing about them."""
    return hashlib.sha256(token.encode()).digest()


def _static_users(path: Path) -> dict[bytes, User]:
    if not path.exists():
        return {}
    users = {}
    with path.open(newline="") as lines:
        for row in csv.reader(lines):
            if len(row) < 3:
                raise ValueError(f"{path.name} has a line without token, user and uid")
            groups = tuple(row[3].split(",")) if len(row) > 3 and row[3] else ()
            users[_digest(row[0])] = User(row[1], groups, row[2])
    return users


def _usable(pair: Pair, now: datetime) -> bool:
    return pair.certificate.not_valid_before_utc <= now < pair.ends - RENEW_BEFORE


def _save(path: Path, pair: Pair) -> None:
    write_atomically(path, pair.certificate_pem + pair.key_pem, 0o600)


def _load(path: Path) -> Pair | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return load_pair(data, data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
