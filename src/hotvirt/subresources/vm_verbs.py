"""start, stop and restart of a VM, as virtctl asks for them.

They change the run strategy, or queue a request in the VM's status; the VM reconciler does the rest.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from hotvirt.kube.client import Client
from hotvirt.plan.runstrategy import (
    ALWAYS,
    FAILED,
    FINAL_PHASES,
    HALTED,
    MANUAL,
    ONCE,
    RERUN_ON_FAILURE,
    effective,
)

from .requests import (
    ACCEPTED,
    CLIENT,
    bad_request,
    condition_true,
    find_vmi,
    get_vm,
    is_dry_run,
    options,
    phase,
    place,
    refuse,
    seconds,
    try_again,
    write_spec,
    write_status,
)

NOT_RUNNING: Final = "VM is not running"
FORCED_GRACE: Final = 1
START: Final = "Start"
STOP: Final = "Stop"
Object = dict[str, Any]


async def start(request: web.Request) -> web.Response:
    client, (namespace, name) = request.app[CLIENT], place(request)
    body = await options(request)
    dry_run, paused = is_dry_run(body), body.get("paused") is True

    async def attempt() -> None:
        vm = await get_vm(client, namespace, name)
        vmi = await find_vmi(client, namespace, name)
        if vmi is not None and phase(vmi) not in FINAL_PHASES:
            refuse(name, "VM is already running")
        if condition_true(vm, "ManualRecoveryRequired"):
            refuse(name, "VM recovery required")
        strategy = _strategy(vm)
        start_request: Object = {"action": START}
        if paused:
            start_request["data"] = {"paused": "true"}
        if strategy == HALTED and not paused:
            await _set_strategy(client, vm, ALWAYS, dry_run)
        elif strategy == HALTED:
            await _queue(client, vm, [start_request], dry_run)
        elif strategy in (MANUAL, RERUN_ON_FAILURE):
            if vmi is not None and strategy == RERUN_ON_FAILURE and phase(vmi) == FAILED:
                refuse(name, f"{strategy} does not support starting VM from failed state")
            first = [_stop_request(vmi)] if vmi is not None else []
            await _queue(client, vm, [*first, start_request], dry_run)
        else:
            refuse(name, f"{strategy} does not support manual start requests")

    await try_again(attempt)
    return web.Response(status=ACCEPTED)


async def stop(request: web.Request) -> web.Response:
    client, (namespace, name) = request.app[CLIENT], place(request)
    body = await options(request)
    dry_run, grace = is_dry_run(body), seconds(body, "gracePeriod")

    async def attempt() -> None:
        vm = await get_vm(client, namespace, name)
        vmi = await find_vmi(client, namespace, name)
        strategy = _strategy(vm)
        active = vmi is not None and phase(vmi) not in FINAL_PHASES
        if strategy not in (ALWAYS, ONCE) and not active:
            refuse(name, NOT_RUNNING)
        if strategy == HALTED and (grace is None or (vmi is not None and grace >= _grace(vmi))):
            refuse(name, f"{strategy} only supports manual stop requests with a shorter graceperiod")
        if strategy not in (ALWAYS, ONCE, MANUAL, RERUN_ON_FAILURE, HALTED):
            refuse(name, f"{strategy} does not support manual stop requests")
        if grace is not None and active and vmi is not None and grace != vmi["spec"].get(GRACE_FIELD):
            await write_spec(client, vmi, {GRACE_FIELD: grace}, dry_run=dry_run)
        if strategy in (ALWAYS, ONCE):
            await _set_strategy(client, vm, HALTED, dry_run)
        elif strategy in (MANUAL, RERUN_ON_FAILURE) and vmi is not None:
            await _queue(client, vm, [_stop_request(vmi)], dry_run)

    await try_again(attempt)
    return web.Response(status=ACCEPTED)


async def restart(request: web.Request) -> web.Response:
    client, (namespace, name) = request.app[CLIENT], place(request)
    body = await options(request)
    dry_run, grace = is_dry_run(body), seconds(body, "gracePeriodSeconds")
    if grace:
        bad_request("For force restart, only gracePeriod=0 is supported for now")

    async def attempt() -> None:
        vm = await get_vm(client, namespace, name)
        strategy = _strategy(vm)
        if strategy not in (ALWAYS, MANUAL, RERUN_ON_FAILURE):
            refuse(name, f"{strategy} does not support manual restart requests")
        vmi = await find_vmi(client, namespace, name)
        if vmi is None:
            refuse(name, NOT_RUNNING)
        if condition_true(vm, "VolumesChange"):
            refuse(name, "VM recovery required: its volumes are being migrated")
        await _queue(client, vm, [_stop_request(vmi), {"action": START}], dry_run)
        if grace is not None and vmi["spec"].get(GRACE_FIELD) != FORCED_GRACE:
            await write_spec(client, vmi, {GRACE_FIELD: FORCED_GRACE}, dry_run=dry_run)

    await try_again(attempt)
    return web.Response(status=ACCEPTED)


GRACE_FIELD: Final = "terminationGracePeriodSeconds"
DEFAULT_GRACE: Final = 30


def _grace(vmi: Object) -> int:
    given = vmi["spec"].get(GRACE_FIELD)
    return DEFAULT_GRACE if given is None else int(given)


def _strategy(vm: Object) -> str:
    return effective(vm["spec"].get("runStrategy"), vm["spec"].get("running"))


def _stop_request(vmi: Object) -> Object:
    return {"action": STOP, "uid": vmi["metadata"]["uid"]}


async def _set_strategy(client: Client, vm: Object, strategy: str, dry_run: bool) -> None:
    """In the words that the VM's owner uses: runStrategy, or the older running."""
    old_way = vm["spec"].get("runStrategy") is None
    change: Object = {"running": strategy == ALWAYS} if old_way else {"runStrategy": strategy}
    await write_spec(client, vm, change, dry_run=dry_run)


async def _queue(client: Client, vm: Object, requests: list[Object], dry_run: bool) -> None:
    """A single stop takes the place of all that waits; anything else waits until the queue is empty."""
    waiting = (vm.get("status") or {}).get("stateChangeRequests") or []
    single_stop = len(requests) == 1 and requests[0]["action"] == STOP
    if waiting == requests:
        return
    if waiting and not single_stop:
        refuse(vm["metadata"]["name"], "unable to complete request: stop/start already underway")
    await write_status(client, vm, {"stateChangeRequests": requests, "startFailure": None}, dry_run=dry_run)
