"""How long certificates live, and what is due now: pure decisions about the CA and what it signed.

A new CA is trusted everywhere before anything that it signed is shown, and an old one is trusted until
nothing that it signed is shown any more: so at no moment a caller meets a certificate that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hotvirt.api import names
from hotvirt.kube.x509 import (
    CLIENT,
    SERVER,
    Certificate,
    Pair,
    dns_names,
    issued_by,
    make,
    make_ca,
    name,
    pem,
)

SERVED_NAMES = (
    f"{names.API_SERVICE}.{names.NAMESPACE}.svc",
    f"{names.API_SERVICE}.{names.NAMESPACE}.svc.cluster.local",
    f"{names.API_SERVICE}.{names.NAMESPACE}",
    names.API_SERVICE,
)


@dataclass(frozen=True)
class Lifetimes:
    ca: timedelta = timedelta(days=3650)
    serving: timedelta = timedelta(days=90)
    overlap: timedelta = timedelta(hours=1)
    """How long everybody has to learn of a new CA, and to forget an old certificate."""

    def is_worn(self, pair: Pair, now: datetime) -> bool:
        """Two thirds of its life are over (or it is from the future: then a clock was wrong)."""
        return not pair.certificate.not_valid_before_utc <= now < pair.made + (pair.ends - pair.made) * 2 / 3


@dataclass(frozen=True)
class Certificates:
    ca: Pair
    """What signs from now on."""
    older: tuple[Certificate, ...]
    """CAs that are still trusted beside it."""
    serving: Pair
    """Shown to the API server, and by us to the node agents."""

    @property
    def bundle(self) -> bytes:
        return b"".join(pem(each) for each in (self.ca.certificate, *self.older))


def due(held: Certificates | None, lifetimes: Lifetimes, now: datetime) -> Certificates:
    """What should be held now; the same object when nothing is due."""
    if held is None or held.ca.ends <= now or held.serving.ends <= now:
        # Nothing that works is lost, so nothing has to overlap.
        ca = _new_ca(lifetimes, now)
        return Certificates(ca, (), _serving(ca, lifetimes, now))
    if lifetimes.is_worn(held.ca, now):
        return replace(held, ca=_new_ca(lifetimes, now), older=(held.ca.certificate, *held.older))
    of_this_ca = held.ca.issued(held.serving.certificate)
    wrong = lifetimes.is_worn(held.serving, now) or not dns_names(held.serving.certificate).issuperset(
        SERVED_NAMES
    )
    if (wrong or not of_this_ca) and _is_known(held, lifetimes, now):
        return replace(held, serving=_serving(held.ca, lifetimes, now))
    kept = tuple(each for each in held.older if _is_needed(each, held, lifetimes, now))
    return held if kept == held.older else replace(held, older=kept)


def _is_known(held: Certificates, lifetimes: Lifetimes, now: datetime) -> bool:
    """Everybody trusts the CA by now; the first one is awaited by all."""
    return not held.older or now >= held.ca.made + lifetimes.overlap


def _is_needed(older: Certificate, held: Certificates, lifetimes: Lifetimes, now: datetime) -> bool:
    if older.not_valid_after_utc <= now:
        return False
    if issued_by(held.serving.certificate, older):
        return True
    return now < held.serving.made + lifetimes.overlap


def next_look(held: Certificates, lifetimes: Lifetimes, now: datetime) -> timedelta:
    """When something is due again, at the latest; a time that has passed is a short wait."""
    moments = [
        held.ca.made + (held.ca.ends - held.ca.made) * 2 / 3,
        held.serving.made + (held.serving.ends - held.serving.made) * 2 / 3,
    ]
    if held.older:
        moments += [held.ca.made + lifetimes.overlap, held.serving.made + lifetimes.overlap]
    ahead = [moment - now for moment in moments if moment > now]
    return min([*ahead, LONGEST_LOOK]) + timedelta(seconds=1)  # certificates count in whole seconds


LONGEST_LOOK = timedelta(hours=12)


def _new_ca(lifetimes: Lifetimes, now: datetime) -> Pair:
    # A name of its own: whoever verifies picks the issuer by name.
    return make_ca(name(f"hotvirt-ca@{int(now.timestamp())}"), lifetimes.ca, now)


def _serving(ca: Pair, lifetimes: Lifetimes, now: datetime) -> Pair:
    valid = min(lifetimes.serving, ca.ends - now)
    return make(ca, name(names.API_SERVICE), valid, now, [SERVER, CLIENT], SERVED_NAMES)
