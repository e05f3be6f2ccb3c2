"""pause, unpause, soft reboot and reset of a running machine, and what its guest agent says.

A wish is appended to the VMI's status; the node agent carries wishes out in order and takes them away.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

from hotvirt.api.meta import now_micro
from hotvirt.kube.client import Client
from hotvirt.plan.runstrategy import RUNNING

from .requests import (
    ACCEPTED,
    CLIENT,
    GROUP,
    condition_true,
    forbid,
    get_vmi,
    is_dry_run,
    options,
    phase,
    place,
    refuse,
    try_again,
    write_status,
)

Object = dict[str, Any]
Check = Callable[[Object], None]


async def pause(request: web.Request) -> web.Response:
    def check(vmi: Object) -> None:
        probe = vmi["spec"].get("livenessProbe")
        if probe and not probe.get("guestAgentPing"):
            forbid("Pausing VMIs with LivenessProbe is currently not supported")
        if condition_true(vmi, "Paused"):
            refuse(vmi["metadata"]["name"], "VMI is already paused")

    return await _ask(request, "Pause", check)


async def unpause(request: web.Request) -> web.Response:
    def check(vmi: Object) -> None:
        if not condition_true(vmi, "Paused"):
            refuse(vmi["metadata"]["name"], "VMI is not paused")

    return await _ask(request, "Unpause", check)


async def soft_reboot(request: web.Request) -> web.Response:
    def check(vmi: Object) -> None:
        name = vmi["metadata"]["name"]
        if condition_true(vmi, "Paused"):
            refuse(name, "VMI is paused")
        acpi = ((vmi["spec"].get("domain") or {}).get("features") or {}).get("acpi") or {}
        if acpi.get("enabled") is False and not condition_true(vmi, "AgentConnected"):
            refuse(name, "VMI neither have the agent connected nor the ACPI feature enabled")

    return await _ask(request, "SoftReboot", check)


async def reset(request: web.Request) -> web.Response:
    return await _ask(request, "Reset", lambda _vmi: None)


async def _ask(request: web.Request, action: str, check: Check) -> web.Response:
    client, (namespace, name) = request.app[CLIENT], place(request)
    dry_run = is_dry_run(await options(request))

    async def attempt() -> None:
        vmi = await get_vmi(client, namespace, name)
        require_running(vmi)
        check(vmi)
        await _append(client, vmi, action, dry_run)

    await try_again(attempt)
    return web.Response(status=ACCEPTED)


def require_running(vmi: Object) -> None:
    if phase(vmi) != RUNNING:
        refuse(vmi["metadata"]["name"], "VMI is not running")


async def _append(client: Client, vmi: Object, action: str, dry_run: bool) -> None:
    waiting = ((vmi.get("status") or {}).get("hotvirt") or {}).get("requests") or []
    if waiting and waiting[-1]["action"] == action:
        return  # asked for a moment ago and not carried out yet
    wish = {"action": action, "id": str(uuid.uuid4()), "requestedAt": now_micro()}
    await write_status(client, vmi, {"hotvirt": {"requests": [*waiting, wish]}}, dry_run=dry_run)


async def guest_os_info(request: web.Request) -> web.Response:
    client, (namespace, name) = request.app[CLIENT], place(request)
    vmi = await get_vmi(client, namespace, name)
    require_running(vmi)
    if not condition_true(vmi, "AgentConnected"):
        refuse(name, "VMI does not have guest agent connected")
    status = vmi["status"]
    info: Object = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "VirtualMachineInstanceGuestAgentInfo",
        "metadata": {},
        "os": status.get("guestOSInfo") or {},
    }
    return web.json_response(info)
