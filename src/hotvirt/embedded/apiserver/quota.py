"""Quota at admission: a Pod that does not fit into its namespace's quotas is refused, and so is its growth.

What is used is counted from the Pods that are there, not from the status that the quota controller writes a
moment later, and from those that are on their way: two Pods created at once are both counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from hotvirt.api.quantity import Quantity

from .errors import forbidden
from .pod_resources import containers, pod_limits, pod_requests, qos_class
from .store import Store

Object = dict[str, Any]
Amounts = dict[str, Quantity]
ZERO: Final = Quantity(0)
_ENDED: Final = ("Succeeded", "Failed")


def usage(pod: Object) -> Amounts:
    """What one Pod takes of a quota, by the names that quotas use."""
    used = {"pods": Quantity(1), "count/pods": Quantity(1)}
    for name, amount in pod_requests(pod).items():
        used[f"requests.{name}"] = amount
        if name in ("cpu", "memory", "ephemeral-storage"):
            used[name] = amount
    for name, amount in pod_limits(pod).items():
        used[f"limits.{name}"] = amount
    return used


def counts(spec: Object, pod: Object) -> bool:
    """Whether a quota with these scopes is about this Pod; one without is about all."""
    rules = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    rules += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_in_scope(rule, pod) for rule in rules)


def _in_scope(rule: Object, pod: Object) -> bool:
    spec = pod.get("spec") or {}
    scope, operator = rule.get("scopeName"), rule.get("operator")
    if scope in ("Terminating", "NotTerminating"):
        return (spec.get("activeDeadlineSeconds") is not None) is (scope == "Terminating")
    if scope in ("BestEffort", "NotBestEffort"):
        return (qos_class(pod) == "BestEffort") is (scope == "BestEffort")
    if scope != "PriorityClass":
        return False
    priority = spec.get("priorityClassName") or ""
    if operator in ("In", "NotIn"):
        return (priority in (rule.get("values") or ())) is (operator == "In")
    return bool(priority) is (operator == "Exists")


class QuotaGate:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._coming: dict[str, Object] = {}
        """Admitted and not yet stored, by uid."""

    def check(self, pod: Object, old: Object | None = None) -> None:
        """Refuse the Pod, or count it as coming until it is `settled`."""
        metadata = pod["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        quotas = [each for each in self._quotas(namespace) if counts(each[1], pod)]
        if not quotas:
            return
        before = usage(old) if old else {}
        wanted = {
            key: amount - before.get(key, ZERO)
            for key, amount in usage(pod).items()
            if amount > before.get(key, ZERO)
        }
        for quota, spec, hard in quotas:
            used = self.used(namespace, spec)
            if old is None:
                _all_given(pod, name, quota, hard)
            exceeded = [
                key for key in sorted(hard) if key in wanted and used.get(key, ZERO) + wanted[key] > hard[key]
            ]
            if exceeded:
                said = ", ".join(
                    f"{word}: {','.join(f'{key}={amounts.get(key, ZERO)}' for key in exceeded)}"
                    for word, amounts in (("requested", wanted), ("used", used), ("limited", hard))
                )
                raise forbidden("", "pods", name, f"exceeded quota: {quota}, {said}")
        self._coming[metadata["uid"]] = pod

    def settled(self, pod: Object) -> None:
        """The Pod is stored, or will never be."""
        self._coming.pop(pod["metadata"].get("uid", ""), None)

    def _quotas(self, namespace: str) -> Iterator[tuple[str, Object, Amounts]]:
        for entry in self._store.entries("resourcequotas", namespace):
            spec = msgspec.json.decode(entry.data).get("spec") or {}
            hard = {key: Quantity(str(value)) for key, value in (spec.get("hard") or {}).items()}
            yield entry.name, spec, hard

    def used(self, namespace: str, spec: Object | None = None) -> Amounts:
        """What the Pods of the namespace take, as far as a quota of this spec is about them."""
        by_uid: dict[str, Amounts] = {}
        for entry in self._store.entries("pods", namespace):
            pod = msgspec.json.decode(entry.data)
            if (pod.get("status") or {}).get("phase") not in _ENDED and counts(spec or {}, pod):
                by_uid[pod["metadata"]["uid"]] = usage(pod)
        for uid, pod in self._coming.items():
            if pod["metadata"].get("namespace", "") == namespace and counts(spec or {}, pod):
                amounts, known = usage(pod), by_uid.get(uid, {})
                by_uid[uid] = {
                    key: max(amounts.get(key, ZERO), known.get(key, ZERO)) for key in amounts | known
                }
        total: Amounts = {}
        for amounts in by_uid.values():
            for key, amount in amounts.items():
                total[key] = total[key] + amount if key in total else amount
        return total


def _all_given(pod: Object, name: str, quota: str, hard: Amounts) -> None:
    """Under a quota of cpu or memory every container has to say how much it wants."""
    missing = []
    for key in sorted(hard):
        kind, _, resource = key.rpartition(".")
        if not (key in ("cpu", "memory") or key in ("requests.cpu", "requests.memory") or kind == "limits"):
            continue
        silent = [
            one.get("name", "")
            for one in containers(pod)
            if resource not in ((one.get("resources") or {}).get(kind or "requests") or {})
        ]
        if silent:
            missing.append(f"{key} for: {','.join(silent)}")
    if missing:
        raise forbidden("", "pods", name, f"failed quota: {quota}: must specify {'; '.join(missing)}")
