"""What the API answered instead of what we asked for: one exception class per thing a caller can act on."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A refusal by the API, with the parts of Kubernetes' Status object."""

    def __init__(
        self, code: int, reason: str = "", message: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message or reason or f"HTTP {code}")
        self.code = code
        self.reason = reason
        self.message = message or reason or f"HTTP {code}"
        self.details = details or {}

    @property
    def retry_after(self) -> float | None:
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if seconds else None

    @property
    def namespace_ends(self) -> bool:
        """Refused because the namespace is being deleted: what is in it goes, and trying again is no use."""
        causes = self.details.get("causes") or ()
        return any(each.get("reason") == "NamespaceTerminating" for each in causes)

    def status(self) -> dict[str, Any]:
        """The Status object that says this."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


class BadRequest(ApiError):
    pass


class Unauthorized(ApiError):
    pass


class Forbidden(ApiError):
    pass


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    """The object changed since it was read: read again, decide again."""


class AlreadyExists(ApiError):
    pass


class Gone(ApiError):
    """The resourceVersion or continue token is too old: list again."""


class Invalid(ApiError):
    """The object cannot be valid; `details["causes"]` names the fields."""


class TooManyRequests(ApiError):
    pass


class ServerError(ApiError):
    pass


class Unreachable(ApiError):
    """No answer at all: nobody listens, the connection broke, time ran out. A write may have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "NotFound": NotFound,
    "Invalid": Invalid,
    "Forbidden": Forbidden,
    "Unauthorized": Unauthorized,
    "Expired": Gone,
    "Gone": Gone,
    "TooManyRequests": TooManyRequests,
    "BadRequest": BadRequest,
}
BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_for(code: int, status: Any = None) -> ApiError:
    """The exception for an HTTP code and the body that came with it (a Status object, or any text)."""
    reason, message, details = "", "", None
    if isinstance(status, dict):
        code = status.get("code") or code
        reason = status.get("reason") or ""
        message = status.get("message") or ""
        details = status.get("details")
    elif status:
        message = str(status)
    kind = BY_REASON.get(reason) or BY_CODE.get(code) or (ServerError if code >= 500 else ApiError)
    return kind(code, reason, message, details)
