"""Admission in a cluster's order: namespaces, the mutating hooks, (the schema,) the validating hooks."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from hotvirt.admission.request import AdmissionRequest, AdmissionResponse

from .call import Call
from .errors import StatusError, forbidden, not_found
from .kinds import Kind
from .store import Store

WEBHOOK = "hotvirt.io"


class AdmissionHooks(Protocol):
    """The part of `hotvirt.admission.webhooks.Admission` that is called here."""

    async def mutate(self, request: AdmissionRequest) -> AdmissionResponse: ...

    async def validate(self, request: AdmissionRequest) -> AdmissionResponse: ...


class Admit:
    def __init__(self, store: Store, hooks: AdmissionHooks | None) -> None:
        self._store = store
        self.hooks = hooks

    def namespace_exists(self, call: Call, name: str) -> None:
        """Create needs a namespace that is there and stays."""
        entry = self._store.get(("namespaces", "", call.namespace))
        if entry is None:
            raise not_found("", "namespaces", call.namespace)
        if b'"deletionTimestamp"' in entry.data and msgspec.json.decode(entry.data)["metadata"].get(
            "deletionTimestamp"
        ):
            raise forbidden(
                call.kind.group,
                call.kind.plural,
                name,
                f"unable to create new content in namespace {call.namespace} because it is being terminated",
                [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {call.namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    async def mutate(
        self, call: Call, kind: Kind, obj: dict[str, Any], old: dict[str, Any] | None
    ) -> dict[str, Any]:
        request = self._request(call, kind, obj, old)
        if request is None or self.hooks is None:
            return obj
        response = await self.hooks.mutate(request)
        self._check(call, kind, "mutate", response)
        return response.object if response.object is not None else obj

    async def validate(
        self, call: Call, kind: Kind, obj: dict[str, Any] | None, old: dict[str, Any] | None
    ) -> None:
        request = self._request(call, kind, obj, old)
        if request is None or self.hooks is None:
            return
        self._check(call, kind, "validate", await self.hooks.validate(request))

    def _request(self, call: Call, kind: Kind, obj: Any, old: Any) -> AdmissionRequest | None:
        if self.hooks is None:
            return None
        metadata = (obj or old or {}).get("metadata") or {}
        return AdmissionRequest(
            operation=_operation(call, obj, old),
            resource=kind.group_resource,
            subresource=call.subresource,
            namespace=call.namespace,
            name=metadata.get("name") or call.name,
            object=obj,
            old_object=old,
            user=call.user.name,
            groups=call.user.groups,
            dry_run=call.dry_run,
        )

    def _check(self, call: Call, kind: Kind, phase: str, response: AdmissionResponse) -> None:
        for warning in response.warnings or ():
            call.warn(warning)
        if response.allowed:
            return
        name = f"{kind.singular}-{phase}.{WEBHOOK}"
        message = response.message or "; ".join(
            str(getattr(one, "message", one)) for one in response.causes or ()
        )
        details: dict[str, Any] = {}
        if response.causes:
            details["causes"] = [
                {"reason": one.type, "message": one.message, "field": one.field} for one in response.causes
            ]
        code = response.code or 403
        reason = response.reason or {
            422: "Invalid",
            403: "Forbidden",
            400: "BadRequest",
            409: "Conflict",
        }.get(code, "Forbidden")
        raise StatusError(code, reason, f'admission webhook "{name}" denied the request: {message}', details)


def _operation(call: Call, obj: Any, old: Any) -> str:
    if obj is None:
        return "DELETE"
    return "CREATE" if old is None else "UPDATE"
