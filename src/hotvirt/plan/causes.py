"""Why something is refused or has to wait, by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The types that Kubernetes uses in `status.details.causes`.
INVALID: Final = "FieldValueInvalid"
REQUIRED: Final = "FieldValueRequired"
DUPLICATE: Final = "FieldValueDuplicate"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
FORBIDDEN: Final = "FieldValueForbidden"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: the field's path, a type, and a sentence for a person."""

    field: str
    type: str
    message: str
