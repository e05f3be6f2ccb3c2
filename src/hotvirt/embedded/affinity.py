"""Which nodes a Pod accepts, and which taints it tolerates: Kubernetes' rules, on plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def matches_node_terms(required: Mapping[str, Any] | None, labels: Mapping[str, str], name: str) -> bool:
    """A NodeSelector: any of its terms. None asks for nothing; an empty term matches nothing."""
    if not required:
        return True
    terms = required.get("nodeSelectorTerms") or []
    return any(_matches_term(term, labels, name) for term in terms)


def _matches_term(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_matches(e, labels) for e in expressions) and all(
        _matches(f, {"metadata.name": name}) for f in fields
    )


def _matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = str(requirement.get("key", "")), requirement.get("operator")
    values = [str(value) for value in requirement.get("values") or []]
    actual = labels.get(key)
    match operator:
        case "In":
            return actual in values
        case "NotIn":
            return actual not in values
        case "Exists":
            return actual is not None
        case "DoesNotExist":
            return actual is None
        case "Gt" | "Lt":
            try:
                number, bound = int(actual or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > bound if operator == "Gt" else number < bound
    return False


def tolerates(tolerations: Iterable[Mapping[str, Any]], key: str, value: str, effect: str) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", effect):
            continue
        wanted = toleration.get("key") or ""
        if wanted and wanted != key:
            continue
        if toleration.get("operator", "Equal") == "Exists":
            return True
        if wanted and (toleration.get("value") or "") == value:
            return True
    return False
