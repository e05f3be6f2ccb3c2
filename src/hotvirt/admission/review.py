"""`admission.k8s.io/v1`: the form in which a cluster's API server asks and is answered."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from hotvirt.admission.request import AdmissionRequest, AdmissionResponse
from hotvirt.admission.webhooks import Admission

API_VERSION = "admission.k8s.io/v1"
Phase = Literal["mutate", "validate"]


async def review(admission: Admission, phase: Phase, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to an AdmissionReview."""
    asked = body["request"]
    request = request_of(asked)
    response = await (admission.mutate(request) if phase == "mutate" else admission.validate(request))
    return {
        "apiVersion": API_VERSION,
        "kind": "AdmissionReview",
        "response": _answer(asked["uid"], request, response),
    }


def request_of(asked: dict[str, Any]) -> AdmissionRequest:
    resource, user = asked["resource"], asked.get("userInfo") or {}
    group = resource.get("group") or ""
    return AdmissionRequest(
        operation=asked["operation"],
        resource=f"{resource['resource']}.{group}" if group else resource["resource"],
        subresource=asked.get("subResource") or "",
        namespace=asked.get("namespace") or "",
        name=asked.get("name") or "",
        object=asked.get("object"),
        old_object=asked.get("oldObject"),
        user=user.get("username") or "",
        groups=tuple(user.get("groups") or ()),
        dry_run=bool(asked.get("dryRun")),
    )


def _answer(uid: str, request: AdmissionRequest, response: AdmissionResponse) -> dict[str, Any]:
    answer: dict[str, Any] = {"uid": uid, "allowed": response.allowed}
    if response.warnings:
        answer["warnings"] = response.warnings
    if not response.allowed:
        status: dict[str, Any] = {
            "status": "Failure",
            "code": response.code,
            "reason": response.reason,
            "message": response.message,
        }
        if response.causes:
            status["details"] = {
                "causes": [
                    {"reason": cause.type, "field": cause.field, "message": cause.message}
                    for cause in response.causes
                ]
            }
        answer["status"] = status
    elif response.object is not None and response.object != request.object:
        operations = [
            {"op": "add", "path": f"/{_escaped(name)}", "value": value}
            for name, value in response.object.items()
            if (request.object or {}).get(name) != value
        ]
        answer |= {
            "patchType": "JSONPatch",
            "patch": base64.b64encode(msgspec.json.encode(operations)).decode(),
        }
    return answer


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
