"""Quota at admission: a Pod that does not fit into its namespace's quotas is refused.

What is used is counted from the Pods that are there, not from the status that the quota controller writes a
moment later: two Pods created one after the other are both counted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hotvirt.api.quantity import Quantity

from .errors import forbidden
from .pod_resources import containers, pod_limits, pod_requests
from .store import Store

Object = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


def usage(pod: Object) -> dict[str, Quantity]:
    """What one Pod takes of a quota, by the names that quotas use."""
    used = {"pods": Quantity(1), "count/pods": Quantity(1)}
    for name, amount in pod_requests(pod).items():
        used[f"requests.{name}"] = amount
        if name in ("cpu", "memory", "ephemeral-storage"):
            used[name] = amount
    for name, amount in pod_limits(pod).items():
        used[f"limits.{name}"] = amount
    return used


def check_quota(store: Store, pod: Object) -> None:
    namespace, name = pod["metadata"].get("namespace", ""), pod["metadata"].get("name", "")
    quotas = list(store.entries("resourcequotas", namespace))
    if not quotas:
        return
    wanted = usage(pod)
    others: list[dict[str, Quantity]] | None = None
    for entry in quotas:
        quota = msgspec.json.decode(entry.data)
        spec = quota.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        hard = {key: Quantity(str(value)) for key, value in (spec.get("hard") or {}).items()}
        missing = [key for key in sorted(hard) if _must_be_given(key) and not _all_give(pod, key)]
        if missing:
            unnamed = ",".join(one.get("name", "") for one in containers(pod))
            said = "; ".join(f"{key} for: {unnamed}" for key in missing)
            raise forbidden("", "pods", name, f"failed quota: {entry.name}: must specify {said}")
        if others is None:
            others = _others(store, namespace)
        used = {key: sum((one.get(key, Quantity(0)) for one in others), Quantity(0)) for key in hard}
        exceeded = [key for key in sorted(hard) if key in wanted and used[key] + wanted[key] > hard[key]]
        if exceeded:
            said = ", ".join(
                f"{word}: {','.join(f'{key}={amounts[key]}' for key in exceeded)}"
                for word, amounts in (("requested", wanted), ("used", used), ("limited", hard))
            )
            raise forbidden("", "pods", name, f"exceeded quota: {entry.name}, {said}")


def _others(store: Store, namespace: str) -> list[dict[str, Quantity]]:
    pods = (msgspec.json.decode(entry.data) for entry in store.entries("pods", namespace))
    return [usage(pod) for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED]


def _must_be_given(key: str) -> bool:
    return key in ("cpu", "memory") or key.startswith(("requests.cpu", "requests.memory", "limits."))


def _all_give(pod: Object, key: str) -> bool:
    kind, _, name = key.rpartition(".")
    amounts = [((one.get("resources") or {}).get(kind or "requests") or {}) for one in containers(pod)]
    return all(name in one for one in amounts)
