"""What admission is asked, and what it answers. Objects are plain dicts: nothing is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hotvirt.api.resources import Resource
from hotvirt.plan.causes import Cause

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which writes are asked about."""

    resource: Resource
    operations: tuple[Operation, ...]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    operation: str
    resource: str  # virtualmachines.kubevirt.io
    subresource: str | None = None
    namespace: str = ""
    name: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def is_deleting(self) -> bool:
        """Whether the object is on its way out: then nothing stops what is left to be written."""
        metadata = (self.object or {}).get("metadata") or {}
        return bool(metadata.get("deletionTimestamp"))

    @property
    def changes_spec(self) -> bool:
        """Whether this write makes a spec or changes one."""
        if self.old_object is None:
            return True
        return (self.object or {}).get("spec") != self.old_object.get("spec")


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """`object` is the object as it should be stored, or None when it stays as it came."""

    allowed: bool = True
    object: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    code: int = 200
    reason: str = ""
    message: str = ""


def refuse(causes: list[Cause]) -> AdmissionResponse:
    """Refuse an object that cannot work: 422 with every cause."""
    message = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
    return AdmissionResponse(allowed=False, causes=causes, code=422, reason="Invalid", message=message)


def forbid(message: str) -> AdmissionResponse:
    """Refuse a write that this user may not make, or nobody may."""
    return AdmissionResponse(allowed=False, code=403, reason="Forbidden", message=message)
