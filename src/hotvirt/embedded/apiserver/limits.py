"""LimitRanges at admission: they fill in what a container leaves open, and refuse what lies outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from hotvirt.api.quantity import Quantity

from .errors import forbidden
from .pod_resources import all_containers, pod_limits, pod_requests
from .store import Store

Object = dict[str, Any]
Amounts = dict[str, Quantity]


def _limits(store: Store, namespace: str, type_: str) -> Iterator[Object]:
    for entry in store.entries("limitranges", namespace):
        for limit in (msgspec.json.decode(entry.data).get("spec") or {}).get("limits") or []:
            if limit.get("type") == type_:
                yield limit


def fill_from_limits(store: Store, pod: Object) -> None:
    """The defaults for containers that say nothing about a resource."""
    for limit in _limits(store, pod["metadata"].get("namespace", ""), "Container"):
        for _, container in all_containers(pod):
            resources = container.setdefault("resources", {})
            for target, source in (("limits", "default"), ("requests", "defaultRequest")):
                for name, amount in (limit.get(source) or {}).items():
                    resources.setdefault(target, {}).setdefault(name, amount)


def check_limits(store: Store, pod: Object) -> None:
    """Refuse a Pod whose containers, or which as a whole, lie outside of the limits."""
    namespace = pod["metadata"].get("namespace", "")
    problems: list[str] = []
    for limit in _limits(store, namespace, "Container"):
        for _, container in all_containers(pod):
            resources = container.get("resources") or {}
            requests, limits = _amounts(resources.get("requests")), _amounts(resources.get("limits"))
            problems += _problems(limit, "Container", requests, limits)
    for limit in _limits(store, namespace, "Pod"):
        problems += _problems(limit, "Pod", pod_requests(pod), pod_limits(pod))
    _refuse("pods", pod, problems)


def check_claim_limits(store: Store, claim: Object) -> None:
    problems: list[str] = []
    resources = (claim.get("spec") or {}).get("resources") or {}
    for limit in _limits(store, claim["metadata"].get("namespace", ""), "PersistentVolumeClaim"):
        kept: Object = {name: limit[name] for name in ("min", "max") if name in limit}
        requests = _amounts(resources.get("requests"))
        problems += _problems(kept, "PersistentVolumeClaim", requests, requests)
    _refuse(
        "persistentvolumeclaims", claim, [one.replace("but limit is", "but request is") for one in problems]
    )


def _refuse(resource: str, obj: Object, problems: list[str]) -> None:
    if problems:
        unique = list(dict.fromkeys(problems))
        said = unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
        raise forbidden("", resource, obj["metadata"].get("name", ""), said)


def _amounts(given: Object | None) -> Amounts:
    return {name: Quantity(str(amount)) for name, amount in (given or {}).items()}


def _problems(limit: Object, type_: str, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, least in _amounts(limit.get("min")).items():
        rule = f"minimum {name} usage per {type_} is {least}"
        if name not in requests:
            yield f"{rule}.  No request is specified"
        elif requests[name] < least:
            yield f"{rule}, but request is {requests[name]}"
        elif name in limits and limits[name] < least:
            yield f"{rule}, but limit is {limits[name]}"
    for name, most in _amounts(limit.get("max")).items():
        rule = f"maximum {name} usage per {type_} is {most}"
        if name not in limits:
            yield f"{rule}.  No limit is specified"
        elif limits[name] > most:
            yield f"{rule}, but limit is {limits[name]}"
        elif name in requests and requests[name] > most:
            yield f"{rule}, but request is {requests[name]}"
    for name, ratio in _amounts(limit.get("maxLimitRequestRatio")).items():
        rule = f"{name} max limit to request ratio per {type_} is {ratio}"
        if not requests.get(name) or name not in limits:
            yield f"{rule}, but no request is specified or request is 0"
        elif (actual := limits[name].nano / requests[name].nano) > ratio.nano / 10**9:
            yield f"{rule}, but provided ratio is {actual:f}"
