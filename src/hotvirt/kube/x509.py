"""Certificates: making a CA and what it signs, reading them back, and the TLS contexts that use them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .config import memory_file

Certificate = x509.Certificate
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
CLOCK_SKEW = timedelta(hours=1)
"""For clocks that are a little behind."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def made(self) -> datetime:
        return self.certificate.not_valid_before_utc + CLOCK_SKEW

    @property
    def ends(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def issued(self, certificate: Certificate) -> bool:
        """Whether this CA signed that certificate."""
        return issued_by(certificate, self.certificate)


def issued_by(certificate: Certificate, ca: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def name(common: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def make_ca(subject: x509.Name, valid: timedelta, now: datetime) -> Pair:
    return _make(None, subject, valid, now, (), (), (), ca=True)


def make(
    issuer: Pair | None,
    subject: x509.Name,
    valid: timedelta,
    now: datetime,
    purposes: Iterable[x509.ObjectIdentifier],
    dns_names: Iterable[str] = (),
    addresses: Iterable[str] = (),
) -> Pair:
    """Without an issuer it signs itself."""
    return _make(issuer, subject, valid, now, purposes, dns_names, addresses)


def _make(
    issuer: Pair | None,
    subject: x509.Name,
    valid: timedelta,
    now: datetime,
    purposes: Iterable[x509.ObjectIdentifier],
    dns_names: Iterable[str],
    addresses: Iterable[str],
    *,
    ca: bool = False,
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
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=False)
    names: list[x509.GeneralName] = [x509.DNSName(each) for each in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def pem(certificate: Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(der: bytes) -> str:
    """What a certificate is pinned by: the SHA-256 of its DER form."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()


def certificates(bundle: bytes) -> list[Certificate]:
    """All certificates of a PEM bundle, in its order. ValueError: there is none, or it is broken."""
    return x509.load_pem_x509_certificates(bundle)


def load_pair(certificate: bytes, key: bytes) -> Pair:
    """Of PEM; of several certificates the first. ValueError: they are not what we make."""
    loaded = serialization.load_pem_private_key(key, None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not one of an elliptic curve")
    first = x509.load_pem_x509_certificate(certificate)
    if first.public_key() != loaded.public_key():
        raise ValueError("the key is not that of the certificate")
    return Pair(first, loaded)


def dns_names(certificate: Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(names.get_values_for_type(x509.DNSName))


def server_context(chain: bytes, key: bytes, client_ca: bytes | None = None) -> ssl.SSLContext:
    """For a server: shows its certificate; takes a client's certificate of `client_ca`, or none."""
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=client_ca.decode() if client_ca else None
    )
    if client_ca:
        context.verify_mode = ssl.CERT_OPTIONAL
    with memory_file(chain + b"\n" + key) as path:
        context.load_cert_chain(path)
    return context
