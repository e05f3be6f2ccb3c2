"""Refusals as Kubernetes words them: a Status object with code, reason, message and details."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True)
class FieldError:
    """One thing that is wrong with one field, worded as Kubernetes' field errors are."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def cause(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def quote(value: Any) -> str:
    """A value the way Go prints it in a field error: strings quoted, numbers and JSON as they are."""
    if value is None:
        return "null"
    return msgspec.json.encode(value).decode()


def invalid_value(field: str, value: Any, why: str) -> FieldError:
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {quote(value)}: {why}")


def wrong_type(field: str, value: Any, why: str) -> FieldError:
    return FieldError(field, "FieldValueTypeInvalid", f"Invalid value: {quote(value)}: {why}")


def required_value(field: str, why: str = "") -> FieldError:
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {why}" if why else ""))


def forbidden_value(field: str, why: str) -> FieldError:
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate_value(field: str, value: Any) -> FieldError:
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")


def not_supported(field: str, value: Any, supported: list[Any]) -> FieldError:
    known = ", ".join(quote(one) for one in supported)
    return FieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {known}"
    )


class StatusError(Exception):
    """A refusal that is sent to the client as a Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.extra_metadata: dict[str, str] = {}

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.extra_metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def details_of(group: str, resource: str, name: str = "", **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if resource:
        details["kind"] = resource
    details.update(more)
    return details


def group_resource(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource


def not_found(group: str, resource: str, name: str) -> StatusError:
    return StatusError(
        404,
        "NotFound",
        f'{group_resource(group, resource)} "{name}" not found',
        details_of(group, resource, name),
    )


def already_exists(group: str, resource: str, name: str, *, deleting: bool = False) -> StatusError:
    prefix = "object is being deleted: " if deleting else ""
    return StatusError(
        409,
        "AlreadyExists",
        f'{prefix}{group_resource(group, resource)} "{name}" already exists',
        details_of(group, resource, name),
    )


def conflict(group: str, resource: str, name: str, why: str) -> StatusError:
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {group_resource(group, resource)} "{name}": {why}',
        details_of(group, resource, name),
    )


def modified(group: str, resource: str, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, resource, name, why)


def invalid(group: str, kind: str, name: str, errors: list[FieldError]) -> StatusError:
    said = ", ".join(str(one) for one in errors)
    if len(errors) > 1:
        said = f"[{said}]"
    return StatusError(
        422,
        "Invalid",
        f'{group_resource(group, kind)} "{name}" is invalid: {said}',
        details_of(group, kind, name, causes=[one.cause() for one in errors]),
    )


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(group: str, resource: str, name: str, why: str, causes: Any = None) -> StatusError:
    more = {"causes": causes} if causes else {}
    subject = f'{group_resource(group, resource)} "{name}"' if name else group_resource(group, resource)
    return StatusError(
        403, "Forbidden", f"{subject} is forbidden: {why}", details_of(group, resource, name, **more)
    )


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def unsupported_media_type(message: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", message)


def internal(message: str) -> StatusError:
    return StatusError(
        500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]}
    )


def out_of_space() -> StatusError:
    message = (
        "The disk that holds the state folder is full: nothing was written. "
        "Free some space there and try again; nothing needs to be restarted."
    )
    return StatusError(507, "InternalError", message, {"causes": [{"message": message}]})
