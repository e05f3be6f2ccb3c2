"""Who is who in one-machine mode: its own CA, certificates, tokens and the kubeconfig.

Everything lies in `pki/` of the state folder, readable by its owner only. Certificates are renewed at start
when they have less than a month left. The components' tokens are made anew at each start and never on a disk.
`pki/tokens.csv` may name more users, in the form that kube-apiserver takes: `token,user,uid,"group1,group2"`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import ipaddress
import os
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hotvirt.api.names import MASTERS_GROUP

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


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def usable(self, now: datetime) -> bool:
        return (
            self.certificate.not_valid_before_utc <= now < self.certificate.not_valid_after_utc - RENEW_BEFORE
        )


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
            fresh = ca is None or not ca.usable(now)
            if ca is None or fresh:
                ca = _make(None, _name("hotvirt-ca"), CA_VALID, now, ca=True)
                _save(folder / "ca.pem", ca)
            server = None if fresh else _load(folder / "server.pem")
            if server is None or not server.usable(now):
                server = _make(ca, _name("hotvirt-api"), CERT_VALID, now, server=True)
                _save(folder / "server.pem", server)
            admin = None if fresh else _load(folder / "admin.pem")
            if admin is None or not admin.usable(now):
                admin = _make(ca, _name(ADMIN, MASTERS_GROUP), CERT_VALID, now)
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
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.ca_pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        fd = os.memfd_create("hotvirt-server-key", os.MFD_CLOEXEC)  # OpenSSL reads keys from a path only
        try:
            os.write(fd, self._server.certificate_pem + self._server.key_pem)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

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


def _name(common: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _make(
    issuer: Pair | None,
    subject: x509.Name,
    valid: timedelta,
    now: datetime,
    *,
    ca: bool = False,
    server: bool = False,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = issuer.key if issuer else key
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # for clocks that are a little behind
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not ca:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if server:
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def _save(path: Path, pair: Pair) -> None:
    write_atomically(path, pair.certificate_pem + pair.key_pem, 0o600)


def _load(path: Path) -> Pair | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    key = serialization.load_pem_private_key(data, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} has no key of ours")
    return Pair(x509.load_pem_x509_certificate(data), key)
