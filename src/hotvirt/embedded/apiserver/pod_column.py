"""What `kubectl get pods` says of a Pod in one word: the most telling of its many states."""

from __future__ import annotations

from typing import Any

from .tables import Object, age, object_age


def pod_cells(pod: Object) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    inits = {one["name"]: one for one in spec.get("initContainers") or []}
    sidecars = {name for name, one in inits.items() if one.get("restartPolicy") == "Always"}
    states = status.get("containerStatuses") or []
    reason, ready, initializing = _initial_reason(status), 0, False
    for index, state in enumerate(status.get("initContainerStatuses") or []):
        if state.get("name") in sidecars and state.get("started"):
            ready += bool(state.get("ready"))
            continue
        said = _init_reason(state, index, len(inits))
        if said is not None:
            reason, initializing = said, True
            break
    if not initializing or _condition(status, "Initialized") == "True":
        reason, running = _container_reason(reason, states, status)
        ready += running
    phase = status.get("phase", "")
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in ("Succeeded", "Failed"):
            reason = "Terminating"
    gates = [gate.get("conditionType") for gate in spec.get("readinessGates") or []]
    open_gates = sum(_condition(status, gate) == "True" for gate in gates)
    addresses = status.get("podIPs") or []
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or []) + len(sidecars)}",
        reason,
        _restarts(
            states + [one for one in status.get("initContainerStatuses") or [] if one.get("name") in sidecars]
        ),
        object_age(pod),
        addresses[0].get("ip") if addresses else "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{open_gates}/{len(gates)}" if gates else "<none>",
    ]


def _initial_reason(status: Object) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "")


def _condition(status: Object, type_: str) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == type_:
            return str(condition.get("status"))
    return ""


def _ended(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _init_reason(state: Object, index: int, total: int) -> str | None:
    """Why a Pod still initialises because of this container; None when it has ended well."""
    now = state.get("state") or {}
    if terminated := now.get("terminated"):
        return None if terminated.get("exitCode", 0) == 0 else f"Init:{_ended(terminated)}"
    waiting = (now.get("waiting") or {}).get("reason")
    if waiting and waiting != "PodInitializing":
        return f"Init:{waiting}"
    return f"Init:{index}/{total}"


def _container_reason(reason: str, states: list[Object], status: Object) -> tuple[str, int]:
    """The reason that the first container in trouble gives, and how many are ready."""
    running, failed = 0, ""
    for state in reversed(states):
        now = state.get("state") or {}
        if waiting := (now.get("waiting") or {}).get("reason"):
            reason = waiting
        elif terminated := now.get("terminated"):
            reason = _ended(terminated)
            if terminated.get("exitCode", 0):
                failed = reason
        elif state.get("ready") and "running" in now:
            running += 1
    if reason == "Completed":
        if running and _condition(status, "Ready") == "True":
            reason = "Running"
        elif failed:
            reason = failed
        elif running:
            reason = "NotReady"
    return reason, running


def _restarts(states: list[Object]) -> str:
    count = sum(state.get("restartCount", 0) for state in states)
    ends = [
        terminated.get("finishedAt")
        for state in states
        if (terminated := (state.get("lastState") or {}).get("terminated")) and terminated.get("finishedAt")
    ]
    return f"{count} ({age(max(ends))} ago)" if count and ends else str(count)
