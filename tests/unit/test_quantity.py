"""Quantities behave exactly as Kubernetes' do."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api.quantity import NANO, PATTERN, Family, Quantity

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000Ki", "1000Ki"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("1000k", "1M"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e7", "120e6"),
        ("1e-3", "1e-3"),
        ("+2Gi", "2Gi"),
        ("-1.5Gi", "-1536Mi"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("0.1Ki", "102400m"),
        ("1023Ki", "1023Ki"),
        ("9223372036854775807", "9223372036854775807"),
        ("9999E", "9999E"),
        ("1000000E", "1000000E"),
        ("8Ei", "9223372036854775807"),
        ("-9Ei", "-9223372036854775807"),
        ("55.298Ki", "56625152m"),
        ("1e30", "1e30"),
        ("1e-1000000000", "1e-9"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a",
        ".",
        "Ki",
        "1.1.1",
        "1+1",
        "0.1mi",
        "1i",
        "1ki",
        "1e",
        "1e1.5",
        "1 ",
        " 1",
        "1Gib",
        "--1",
        "1\n",
        "１",
    ],
)
def test_what_is_not_a_quantity_is_refused_with_a_sentence(text: str) -> None:
    error = Quantity.parse_error(text)
    assert error is not None
    assert "not a quantity" in error
    with pytest.raises(ValueError, match="not a quantity"):
        Quantity(text)


def test_an_endless_number_is_refused() -> None:
    assert "128 characters" in str(Quantity.parse_error("1" * 5000))


def test_value_and_milli_round_up() -> None:
    assert Quantity("1500m").value == 2
    assert Quantity("100u").milli == 1
    assert Quantity("-1500m").value == -2
    assert Quantity("1Ki").value == 1024


def test_a_quantity_never_changes() -> None:
    quantity = Quantity("1Gi")
    with pytest.raises(AttributeError):
        quantity._nano = 1  # type: ignore[misc]  # what is tested is that this fails
    assert pickle.loads(pickle.dumps(quantity)) == quantity


def test_the_empty_side_of_a_sum_takes_the_other_family() -> None:
    assert str(Quantity("0") + Quantity("1Gi")) == "1Gi"
    assert str(Quantity("1Gi") + Quantity("0")) == "1Gi"
    assert str(Quantity("1Gi") + Quantity("1G")) == str(Quantity.bytes(2**30 + 10**9))


def test_not_equal_to_other_types() -> None:
    assert Quantity("1") != 1
    assert Quantity("1Gi") == Quantity("1024Mi")
    assert len({Quantity("1Gi"), Quantity("1024Mi")}) == 1


numbers = st.integers(min_value=-LARGEST, max_value=LARGEST)
small = st.integers(min_value=-(2**60), max_value=2**60)
families = st.sampled_from(Family)
quantities = st.builds(
    Quantity.from_nano,
    st.integers(min_value=-LARGEST * NANO, max_value=LARGEST * NANO),
    st.just(Family.DECIMAL),
)
SUFFIXES = [*"numkMGTPE", "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E9", "e-3", "E-12", "e+2", "e0"]


@st.composite
def texts(draw: st.DrawFn) -> str:
    whole, fraction = draw(st.integers(0, 10**20)), draw(st.integers(-1, 10**12))
    number = draw(
        st.sampled_from([f"{whole}", f"{whole}.", f"{whole}.{abs(fraction):012d}", f".{abs(fraction)}"])
    )
    return draw(st.sampled_from(["", "+", "-"])) + number + draw(st.sampled_from(SUFFIXES))


@given(quantities)
def test_decimal_round_trip_is_exact(quantity: Quantity) -> None:
    assert Quantity(str(quantity)) == quantity


@given(texts())
def test_canonical_form_is_stable_and_means_the_same(text: str) -> None:
    quantity = Quantity(text)
    canonical = str(quantity)
    assert Quantity(canonical) == quantity
    assert str(Quantity(canonical)) == canonical


def test_a_hostile_exponent_costs_nothing() -> None:
    assert Quantity("1e1000000000") > Quantity("1e100")
    assert Quantity("1e-1000000000") == Quantity("1n")


@given(texts())
def test_the_schema_pattern_accepts_what_parses(text: str) -> None:
    assert re.match(PATTERN, text)
    assert re.match(PATTERN, str(Quantity(text)))


@given(st.text(max_size=12))
def test_the_schema_pattern_and_the_parser_agree(text: str) -> None:
    matches = re.match(PATTERN, text, re.ASCII) is not None and not text.endswith("\n")
    assert matches == (Quantity.parse_error(text) is None)


@given(numbers, families)
def test_whole_numbers_survive_in_every_family(number: int, family: Family) -> None:
    quantity = Quantity.from_nano(number * NANO, family)
    assert Quantity(str(quantity)) == quantity
    assert quantity.value == number


@given(quantities, quantities)
def test_order_is_that_of_the_numbers(left: Quantity, right: Quantity) -> None:
    assert (left < right) == (left.nano < right.nano)
    assert (left == right) == (left.nano == right.nano)
    assert (left <= right) == (left.nano <= right.nano)
    if left == right:
        assert hash(left) == hash(right)


@given(small, small, families, families)
def test_arithmetic_is_exact(left: int, right: int, one: Family, other: Family) -> None:
    a, b = Quantity.from_nano(left * NANO, one), Quantity.from_nano(right * NANO, other)
    assert (a + b).value == left + right
    assert (a - b).value == left - right
    assert (a + b) == (b + a)
    assert (a + b - b) == a
    assert (a * 3) == a + a + a
    assert 3 * a == a * 3
    assert bool(a) == bool(left)


@given(quantities)
def test_rounding_never_loses_any(quantity: Quantity) -> None:
    assert abs(quantity.value) * NANO >= abs(quantity.nano)
    assert abs(quantity.milli) * NANO >= abs(quantity.nano) * 1000
    assert (abs(quantity.value) - 1) * NANO < abs(quantity.nano) or quantity.value == 0
