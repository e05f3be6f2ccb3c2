"""Kubernetes quantities, exactly.

A quantity is a whole number of nano-units plus the family of suffixes it was written in (``1Gi`` is
binary, ``1G`` is decimal, ``1e9`` is an exponent). Anything finer than a nano-unit is rounded up, away
from zero, and what is written with a binary suffix is at most 2^63-1: both as Kubernetes does. Equality
and order look at the number alone: ``1Gi == 1024Mi``.
"""

from __future__ import annotations

import functools
import re
from enum import Enum
from functools import total_ordering
from typing import Final

NANO: Final = 10**9
_LARGEST_BINARY: Final = (2**63 - 1) * NANO
# Longer than any number that could still make a difference; bounds the work a hostile text can cause.
_MAX_TEXT: Final = 128
_MAX_EXPONENT: Final = 200


class Family(Enum):
    """The suffixes a quantity is written with."""

    DECIMAL = "decimal"
    BINARY = "binary"
    EXPONENT = "exponent"


_DECIMAL_SUFFIXES: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES: Final = {power: suffix for suffix, power in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES: Final = {power: suffix for suffix, power in _BINARY_SUFFIXES.items()}

PATTERN: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[eE][+-]?[0-9]+|[numkMGTPE]|)\Z",
    re.ASCII,
)


def _divide_away_from_zero(number: int, divisor: int) -> int:
    return -(-number // divisor) if number >= 0 else number // divisor


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[int, Family]:
    """The nano-units and the family of a text; raises ValueError with a sentence."""
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a quantity may have {_MAX_TEXT} characters, this one has {len(text)}")
    match = _GRAMMAR.match(text)
    if match is None or not (match["whole"] or match["fraction"]):
        raise ValueError(
            f"{text!r} is not a quantity: write a number with an optional suffix, like 500m, 2, 1.5Gi or 1e9"
        )
    fraction = match["fraction"] or ""
    digits = int((match["whole"] or "0") + fraction)
    suffix = match["suffix"]
    numerator, power_of_ten, family = digits * NANO, -len(fraction), Family.DECIMAL
    if suffix in _BINARY_SUFFIXES:
        numerator <<= _BINARY_SUFFIXES[suffix]
        family = Family.BINARY
    elif suffix in _DECIMAL_SUFFIXES:
        power_of_ten += _DECIMAL_SUFFIXES[suffix]
    else:
        family = Family.EXPONENT
        exponent = int(suffix[1:])
        power_of_ten += max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    if power_of_ten >= 0:
        nano = numerator * 10**power_of_ten
    else:
        nano = _divide_away_from_zero(numerator, 10**-power_of_ten)
    if family is Family.BINARY:
        nano = min(nano, _LARGEST_BINARY)
    return -nano if match["sign"] == "-" else nano, family


def _without_factor(number: int, factor: int, most: int | None) -> tuple[int, int]:
    """The number with whole factors taken out, `most` of them at most, and how many there were."""
    times = 0
    while number and number % factor == 0 and times != most:
        number //= factor
        times += 1
    return number, times


@total_ordering
class Quantity:
    """An exact, immutable amount of a resource."""

    __slots__ = ("_family", "_nano")
    _nano: int
    _family: Family

    def __init__(self, value: str | int | Quantity) -> None:
        if isinstance(value, Quantity):
            nano, family = value._nano, value._family
        elif isinstance(value, int):
            nano, family = value * NANO, Family.DECIMAL
        else:
            nano, family = _parse(value)
        object.__setattr__(self, "_nano", nano)
        object.__setattr__(self, "_family", family)

    @classmethod
    def from_nano(cls, nano: int, family: Family = Family.DECIMAL) -> Quantity:
        """The quantity of so many nano-units."""
        made = cls.__new__(cls)
        object.__setattr__(made, "_nano", nano)
        object.__setattr__(made, "_family", family)
        return made

    @classmethod
    def bytes(cls, count: int) -> Quantity:
        """So many bytes, written with binary suffixes."""
        return cls.from_nano(count * NANO, Family.BINARY)

    @classmethod
    def millis(cls, count: int) -> Quantity:
        """So many thousandths, as CPU requests are counted."""
        return cls.from_nano(count * (NANO // 1000))

    @staticmethod
    def parse_error(text: str) -> str | None:
        """Why the text is not a quantity, or None when it is one."""
        try:
            _parse(text)
        except ValueError as error:
            return str(error)
        return None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Quantity never changes: compute a new one")

    def __reduce__(self) -> tuple[object, tuple[int, Family]]:
        return Quantity.from_nano, (self._nano, self._family)

    @property
    def family(self) -> Family:
        return self._family

    @property
    def nano(self) -> int:
        """The exact amount in nano-units."""
        return self._nano

    @property
    def value(self) -> int:
        """The amount in whole units, rounded away from zero."""
        return _divide_away_from_zero(self._nano, NANO)

    @property
    def milli(self) -> int:
        """The amount in thousandths, rounded away from zero."""
        return _divide_away_from_zero(self._nano, NANO // 1000)

    def in_family_of(self, other: Quantity) -> Quantity:
        """The same amount, written with the other's suffixes."""
        return Quantity.from_nano(self._nano, other._family)

    def __str__(self) -> str:
        if self._nano == 0:
            return "0"
        # Kubernetes writes small and fractional amounts without a binary suffix: nothing is rounded away.
        if self._family is Family.BINARY and abs(self._nano) >= 1024 * NANO and self._nano % NANO == 0:
            number, times = _without_factor(self.value, 1024, most=6)
            return f"{number}{_BINARY_NAMES[times * 10] if times else ''}"
        most = None if self._family is Family.EXPONENT else 9 + max(_DECIMAL_NAMES)
        number, zeros = _without_factor(self._nano, 10, most)
        power = zeros - 9
        number, power = number * 10 ** (power % 3), power - power % 3
        if self._family is Family.EXPONENT:
            return f"{number}e{power}" if power else str(number)
        return f"{number}{_DECIMAL_NAMES[power]}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __bool__(self) -> bool:
        return self._nano != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self._nano == other._nano

    def __lt__(self, other: Quantity) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._nano < other._nano

    def __hash__(self) -> int:
        return hash(self._nano)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity.from_nano(self._nano + other._nano, (self or other)._family)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity.from_nano(self._nano - other._nano, (self or other)._family)

    def __mul__(self, times: int) -> Quantity:
        return Quantity.from_nano(self._nano * times, self._family)

    __rmul__ = __mul__

    def __neg__(self) -> Quantity:
        return Quantity.from_nano(-self._nano, self._family)

    def __abs__(self) -> Quantity:
        return Quantity.from_nano(abs(self._nano), self._family)
