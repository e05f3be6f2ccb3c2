"""Whether a caller of the aggregated API may do what is asked: the cluster's own authorisers decide.

Nothing is remembered: a right that is taken away ends with the next request.
"""

from __future__ import annotations

from typing import Any, Final

from hotvirt.api.resources import SUBJECTACCESSREVIEWS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import Forbidden

from .front_proxy import Caller

VERBS: Final = {"GET": "get", "HEAD": "get", "PUT": "update", "POST": "create", "PATCH": "patch"}


def attributes(method: str, path: str) -> dict[str, Any]:
    """What a request asks for, in the words of authorisation, as the API server reads its path."""
    verb = VERBS.get(method, method.lower())
    parts = [part for part in path.split("/") if part]
    if len(parts) < 4 or parts[0] != "apis":
        return {"nonResourceAttributes": {"path": path, "verb": verb}}
    resource: dict[str, str] = {"group": parts[1], "version": parts[2]}
    rest = parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        resource["namespace"], rest = rest[1], rest[2:]
    for name, part in zip(("resource", "name", "subresource"), rest, strict=False):
        resource[name] = part
    if "name" not in resource:
        verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    return {"resourceAttributes": resource | {"verb": verb}}


class Authorizer:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def authorize(self, caller: Caller, method: str, path: str) -> None:
        """Raises Forbidden, in the API server's words."""
        asked = attributes(method, path)
        review = {
            "apiVersion": SUBJECTACCESSREVIEWS.api_version,
            "kind": SUBJECTACCESSREVIEWS.kind,
            "spec": {
                "user": caller.name,
                "groups": list(caller.groups),
                "uid": caller.uid,
                "extra": caller.extra,
                **asked,
            },
        }
        answer = await self._client.create(SUBJECTACCESSREVIEWS, review)
        status = answer.get("status") or {}
        if not status.get("allowed"):
            raise Forbidden(403, "Forbidden", refusal(caller, asked, str(status.get("reason") or "")))


def refusal(caller: Caller, asked: dict[str, Any], reason: str) -> str:
    because = f": {reason}" if reason else ""
    if path := asked.get("nonResourceAttributes"):
        return f'forbidden: User "{caller.name}" cannot {path["verb"]} path "{path["path"]}"{because}'
    what = asked["resourceAttributes"]
    resource = "/".join(what[part] for part in ("resource", "subresource") if part in what)
    named = f' "{what["name"]}"' if "name" in what else ""
    where = f' in the namespace "{what["namespace"]}"' if "namespace" in what else " at the cluster scope"
    return (
        f'{what["resource"]}.{what["group"]}{named} is forbidden: User "{caller.name}" cannot '
        f'{what["verb"]} resource "{resource}" in API group "{what["group"]}"{where}{because}'
    )
