"""Why something is refused or has to wait, by field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

# The types that Kubernetes uses in `status.details.causes`.
INVALID: Final = "FieldValueInvalid"
REQUIRED: Final = "FieldValueRequired"
DUPLICATE: Final = "FieldValueDuplicate"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
FORBIDDEN: Final = "FieldValueForbidden"

_ERROR_PATH: Final = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?\Z", re.DOTALL)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z", re.ASCII)
LABEL_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: the field's path, a type, and a sentence for a person."""

    field: str
    type: str
    message: str


def type_error(error: msgspec.ValidationError) -> Cause:
    """The cause of a field with a value of the wrong type."""
    match = _ERROR_PATH.match(str(error))
    what, path = (match["what"], match["path"]) if match else (str(error), None)
    return Cause(path or "spec", INVALID, what.replace("`", "").replace("Expected", "expected"))


class Causes:
    """Collects every cause, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[Cause] = []

    def invalid(self, field: str, message: str) -> None:
        self.found.append(Cause(field, INVALID, message))

    def required(self, field: str, message: str) -> None:
        self.found.append(Cause(field, REQUIRED, message))

    def duplicate(self, field: str, message: str) -> None:
        self.found.append(Cause(field, DUPLICATE, message))

    def unsupported(self, field: str, message: str) -> None:
        self.found.append(Cause(field, NOT_SUPPORTED, message))

    def forbidden(self, field: str, message: str) -> None:
        self.found.append(Cause(field, FORBIDDEN, message))

    def one_of(self, field: str, value: str | None, known: Iterable[str]) -> None:
        """A value that is set must be one of the known ones."""
        known = list(known)
        if value and value not in known:
            self.unsupported(field, f"{value!r} is not known: use {', '.join(known)}")

    def label(self, field: str, value: str) -> bool:
        """Whether the value can be a DNS label; the name of a volume, a network, a host."""
        if len(value) > LABEL_MAX:
            self.invalid(field, f"{value!r} has {len(value)} characters; {LABEL_MAX} are allowed")
        elif not _LABEL.match(value):
            self.invalid(
                field,
                f"{value!r} must be lower-case letters, digits and '-', with a letter or digit at both ends",
            )
        else:
            return True
        return False

    def unique_name(self, field: str, name: str, seen: set[str], what: str) -> None:
        """A name that is required, a DNS label, and given once."""
        if not name:
            self.required(field, f"{what} needs a name")
            return
        self.label(field, name)
        if name in seen:
            self.duplicate(field, f"there is another {what} with the name {name!r}")
        seen.add(name)
