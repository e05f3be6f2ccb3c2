"""Certificates over the years: at no moment somebody meets a certificate that nobody told them to trust."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hotvirt.cluster.lifetimes import SERVED_NAMES, Certificates, Lifetimes, due, next_look
from hotvirt.kube.x509 import SERVER, certificates, dns_names, issued_by, make, name

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)
LIFETIMES = Lifetimes()


def new(now: datetime = BEGIN) -> Certificates:
    return due(None, LIFETIMES, now)


def test_the_first_ones_fit_together_and_nothing_is_due_then() -> None:
    held = new()
    assert held.ca.issued(held.serving.certificate)
    assert dns_names(held.serving.certificate) == set(SERVED_NAMES)
    assert held.serving.ends - BEGIN == timedelta(days=90)
    assert [each.subject for each in certificates(held.bundle)] == [held.ca.certificate.subject]
    assert due(held, LIFETIMES, BEGIN + timedelta(days=59)) is held


def test_the_serving_certificate_is_renewed_by_the_same_ca_after_two_thirds() -> None:
    held = new()
    renewed = due(held, LIFETIMES, BEGIN + timedelta(days=61))
    assert renewed.ca is held.ca
    assert renewed.serving.ends == BEGIN + timedelta(days=151)


def test_a_new_ca_is_trusted_before_it_signs_and_the_old_one_until_it_is_no_longer_shown() -> None:
    now = BEGIN + timedelta(days=3650 * 2 / 3 + 1)
    held = new()
    held = replace(held, serving=make(held.ca, name("x"), timedelta(days=90), now, [SERVER], SERVED_NAMES))

    announced = due(held, LIFETIMES, now)
    assert announced.serving is held.serving
    assert announced.older == (held.ca.certificate,)
    assert due(announced, LIFETIMES, now + timedelta(minutes=59)) is announced

    later = now + timedelta(minutes=61)
    signed = due(announced, LIFETIMES, later)
    assert announced.ca.issued(signed.serving.certificate)
    assert signed.older == announced.older
    assert due(signed, LIFETIMES, later + timedelta(minutes=59)) is signed

    forgotten = due(signed, LIFETIMES, later + timedelta(minutes=61))
    assert forgotten.older == ()
    assert forgotten.serving is signed.serving


def test_names_that_changed_are_certified_at_once() -> None:
    held = new()
    held = replace(held, serving=make(held.ca, name("x"), timedelta(days=90), BEGIN, [SERVER], ["old.svc"]))
    assert dns_names(due(held, LIFETIMES, BEGIN).serving.certificate) == set(SERVED_NAMES)


def test_what_has_ended_is_made_anew() -> None:
    held = new()
    late = BEGIN + timedelta(days=91)
    assert due(held, LIFETIMES, late).serving.ends > late
    assert due(held, LIFETIMES, late).ca is not held.ca


def test_a_year_of_many_changes_without_a_moment_of_distrust() -> None:
    """Looked at no more often than it asks to be."""
    quick = Lifetimes(ca=timedelta(days=90), serving=timedelta(days=12))
    now, held = BEGIN, due(None, quick, BEGIN)
    authorities = set()
    while now < BEGIN + timedelta(days=365):
        assert now < held.serving.ends
        following = due(held, quick, now)
        if following is not held:
            # Who has not heard of the change yet trusts what is shown next; who has trusts what was shown.
            assert any(issued_by(following.serving.certificate, ca) for ca in certificates(held.bundle))
            assert any(issued_by(held.serving.certificate, ca) for ca in certificates(following.bundle))
            held = following
            authorities.add(held.ca.certificate.serial_number)
            assert len(held.older) <= 1
        now += next_look(held, quick, now)
    assert len(authorities) >= 6


def test_the_next_look_is_never_long_after_something_is_due() -> None:
    held = new()
    assert next_look(held, LIFETIMES, BEGIN) <= timedelta(hours=13)
    almost = BEGIN + timedelta(days=60) - timedelta(minutes=5)
    assert next_look(held, LIFETIMES, almost) <= timedelta(minutes=6)
