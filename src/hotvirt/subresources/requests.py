"""What the verbs share: refusals as Kubernetes says them, options in a body, writes that try again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from aiohttp import web

from hotvirt.api.resources import VMIS, VMS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError, BadRequest, Conflict, Forbidden, NotFound

GROUP: Final = "subresources.kubevirt.io"
TRIES: Final = 5
ACCEPTED: Final = 202
CLIENT: Final = web.AppKey("client", Client)


def refuse(name: str, message: str) -> NoReturn:
    """409: it cannot be done to the machine as it is now."""
    raise Conflict(409, "Conflict", f'Operation cannot be fulfilled on "{name}": {message}')


def forbid(message: str) -> NoReturn:
    raise Forbidden(403, "Forbidden", message)


def bad_request(message: str) -> NoReturn:
    raise BadRequest(400, "BadRequest", message)


def not_implemented(message: str) -> NoReturn:
    raise ApiError(501, "NotImplemented", message)


async def options(request: web.Request) -> dict[str, Any]:
    """The body, which is optional; virtctl sends JSON without saying so."""
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except ValueError as error:
        bad_request(f"The body is not JSON: {error}")
    if body is None:
        return {}
    if not isinstance(body, dict):
        bad_request("The body must be a JSON object with the options of this request.")
    return body


def is_dry_run(body: dict[str, Any]) -> bool:
    given = body.get("dryRun") or []
    if given not in ([], ["All"]):
        bad_request('dryRun must be ["All"] or left out.')
    return bool(given)


def seconds(body: dict[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        bad_request(f"{field} must be a number of seconds, 0 or more; got {value!r}.")
    return value


def place(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def get_vm(client: Client, namespace: str, name: str) -> dict[str, Any]:
    return await client.get(VMS, name, namespace)


async def get_vmi(client: Client, namespace: str, name: str) -> dict[str, Any]:
    return await client.get(VMIS, name, namespace)


async def find_vmi(client: Client, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        return await get_vmi(client, namespace, name)
    except NotFound:
        return None


async def try_again(attempt: Callable[[], Awaitable[None]]) -> None:
    """Read, decide and write again when somebody else wrote in between."""
    for _ in range(TRIES - 1):
        try:
            return await attempt()
        except StaleWrite:
            continue
    try:
        return await attempt()
    except StaleWrite as stale:
        raise stale.conflict from None


class StaleWrite(Exception):
    """A write lost a race; a refusal of ours is a Conflict too, but is final."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


async def write_spec(client: Client, obj: dict[str, Any], spec: dict[str, Any], *, dry_run: bool) -> None:
    await _write(client, obj, {"spec": spec}, None, dry_run)


async def write_status(client: Client, obj: dict[str, Any], status: dict[str, Any], *, dry_run: bool) -> None:
    await _write(client, obj, {"status": status}, "status", dry_run)


async def _write(
    client: Client, obj: dict[str, Any], change: dict[str, Any], subresource: str | None, dry_run: bool
) -> None:
    metadata = obj["metadata"]
    resource = VMS if obj["kind"] == VMS.kind else VMIS
    change["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
    try:
        await client.patch(
            resource,
            metadata["name"],
            change,
            metadata["namespace"],
            subresource=subresource,
            dry_run=dry_run,
        )
    except Conflict as conflict:
        raise StaleWrite(conflict) from None


def condition_true(obj: dict[str, Any], type: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == type and each.get("status") == "True" for each in conditions)


def phase(vmi: dict[str, Any]) -> str:
    return str((vmi.get("status") or {}).get("phase") or "")
